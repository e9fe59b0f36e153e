"""A run goes on with parallel=fsdp, and trains what it would have trained without."""

import pytest

from tests.conftest import metrics, result
from tests.faults.runs import one_after_another

FSDP = ["parallel=fsdp", "parallel.processes=2", "parallel.least=1000"]
JOB = ["model.net.width=8", "threads=1", "log_every=1", "logger=quiet", "clock.warmup=1",
       "dataset.limit=128", "epochs=9", "ema=0.9", "accumulate=2",
       "clip_grad_norm=1"]  # fmt: skip
STEPS = 7


def test_a_run_that_goes_on_with_fsdp_learns_the_same_from_contiguous_parameters(shell):
    one_after_another(
        shell,
        ["train.py", *JOB, f"max_steps={STEPS}", "hydra.run.dir=none"],
        ["train.py", *JOB, "max_steps=3", "hydra.run.dir=there"],
        ["train.py", "resume=there", *FSDP, f"max_steps={STEPS}"],
        code=0,
    )
    there, none = shell.folder / "there", shell.folder / "none"
    losses = metrics(there, "loss")
    assert losses == pytest.approx(metrics(none, "loss"), abs=1e-6, rel=0)
    assert len(losses) == STEPS
    norms = metrics(there, "grad_norm")  # of the whole, by which it is clipped
    assert norms == pytest.approx(metrics(none, "grad_norm"), rel=1e-5)
    found = result(there)
    assert found["memory_format"] == "contiguous_format"
    notes = "\n".join(found["notes"])
    assert "resumed with parallel=fsdp instead of none, processes=2 instead of 1:" in notes
    assert "model.memory_format=auto is contiguous here" in notes
