"""Set R: a run that is stopped and goes on with another strategy, on other processes, is the same.

40 resumes: 4 strategies that begin, 5 that go on, with and without a GradScaler.
"""

import shutil

import pytest

from ninefold.checkpoint.store import read
from tests.extensions.sharded.made import trained
from tests.kit import same

SOURCES = ("none", "ddp2", "fsdp2", "fsdp4")
TARGETS = ("none", "ddp2", "ddp4", "fsdp2", "fsdp4")
PRECISION = {
    "fp32": ["amp=fp32"],
    "scaler": ["amp=scaler", "amp.dtype=float32", "amp.growth_interval=4"],
}
STOP, STEPS = 5, 12
RUN = ["dataset=synthetic", "dataset.shape=[1,8,8]", "dataset.train_count=96",
       "dataset.test_count=21", "dataset.flip=true", "model.net.width=8", "batch_size=16",
       "epochs=2", "ema=0.9", "scheduler=cosine", "scheduler.per=step", "scheduler.warmup=7",
       "threads=1", "clock.warmup=1", "checkpoint.keep=9"]  # fmt: skip
UNITS = {name: ["parallel.least=1000"] for name in ("fsdp2", "fsdp4")}


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISION)
@pytest.mark.parametrize("source", SOURCES)
def test_a_run_goes_on_with_any_strategy_as_if_it_had_never_stopped(tmp_path, source, precision):
    def job(name: str) -> list[str]:
        return [*RUN, *PRECISION[precision], *UNITS.get(name, [])]

    straight, begun = tmp_path / "straight", tmp_path / "begun"
    expected = trained(source, job(source), straight)
    assert len(trained(source, job(source), begun, STOP)) == STOP
    for target in TARGETS:
        run = shutil.copytree(begun, tmp_path / target)
        losses = trained(target, job(target), run, STEPS, resume=True)
        worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        assert len(losses) == STEPS
        assert worst <= 1e-6, target
        if target == source:
            ours, theirs = (read(each / "checkpoints" / "last.pt") for each in (straight, run))
            for key in ("model", "optimizer", "average", "scheduler", "scaler", "rng", "skipped"):
                assert same(ours[key], theirs[key]), key
            assert losses == expected
