"""Set R: a run that is stopped and goes on with another strategy, on other processes, is the same.

60 resumes: 5 strategies that begin, 6 that go on, with and without a GradScaler.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninefold.checkpoint.store import read
from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another
from tests.promises.test_resume_and_evaluate import same
from tests.promises.test_sharded import STRATEGIES

SOURCES = ("none", "ddp2", "fsdp2", "fsdp4", "hsdp2x2")
TARGETS = ("none", "ddp2", "ddp4", "fsdp2", "fsdp4", "hsdp2x2")
PRECISION = {"fp32": ["amp=fp32"],
             "scaler": ["amp=scaler", "amp.dtype=float32", "amp.growth_interval=4"]}  # fmt: skip
STOP, STEPS = 5, 12
RUN = ["dataset=synthetic", "dataset.shape=[1,8,8]", "dataset.train_count=96",
       "dataset.test_count=21", "dataset.flip=true", "model.net.width=8", "batch_size=16",
       "epochs=2", "ema=0.9", "scheduler=cosine", "scheduler.per=step", "threads=1", "log_every=1",
       "logger=quiet", "clock.warmup=1", "clock.probe=0", "deterministic=true"]  # fmt: skip


def strategy(name: str) -> list[str]:
    return [*STRATEGIES[name], *(["parallel.least=1000"] if "sdp" in name else [])]


def stopped(shell: Shell, source: str, precision: str) -> Iterator[tuple[str, Path]]:
    """Each target with the folder of a run that `source` began and the target is to go on with."""
    begun = shell.folder / "begun"
    job = [*RUN, *PRECISION[precision], *strategy(source)]
    straight, part = one_after_another(
        shell,
        ["train.py", *job, f"max_steps={STEPS}", "hydra.run.dir=straight"],
        ["train.py", *job, f"max_steps={STOP}", f"hydra.run.dir={begun}"],
    )
    assert (straight.returncode, part.returncode) == (0, 0), straight.stderr + part.stderr
    for target in TARGETS:
        yield target, shutil.copytree(begun, shell.folder / target)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISION)
@pytest.mark.parametrize("source", SOURCES)
def test_a_run_goes_on_with_any_strategy_as_if_it_had_never_stopped(
    shell: Shell, source: str, precision: str
) -> None:
    runs = dict(stopped(shell, source, precision))
    resumes = (
        ["train.py", f"resume={run}", *strategy(target), f"max_steps={STEPS}"]
        for target, run in runs.items()
    )
    for target, done in zip(runs, one_after_another(shell, *resumes), strict=True):
        assert done.returncode == 0, (target, done.stderr)
    straight = shell.folder / "straight"
    expected = metrics(straight, "loss")
    for target, run in runs.items():
        losses = metrics(run, "loss")
        worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        print(f"{source} -> {target} {precision}: {worst:.2g}")
        assert len(losses) == STEPS
        assert worst <= 1e-6, target
        assert result(run)["processes"] == int(target[-1]) if target[-1].isdigit() else 1
        if target == source:
            ours, theirs = (read(each / "checkpoints" / "last.pt") for each in (straight, run))
            for key in ("model", "optimizer", "average", "scheduler", "scaler", "rng", "skipped"):
                assert same(ours[key], theirs[key]), key
            assert losses == expected
