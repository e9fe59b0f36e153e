"""What graph=true cannot be combined with is one line, before anything starts."""

from __future__ import annotations

import pytest

from benchmarks import ours
from ninefold.errors import ConfigError
from tests.conftest import Shell


@pytest.mark.parametrize(
    ("with_", "line"),
    [
        ("parallel=ddp", "this strategy can have several processes"),
        (
            "checkpoint_activations=[features]",
            "checkpoint_activations=['features'] reads the state",
        ),
        ("compile.mode=reduce-overhead", "compile.mode=reduce-overhead records CUDA graphs"),
        ("compile.mode=max-autotune", "compile.mode=max-autotune records CUDA graphs"),
        ("optimizer.fused=false", "the optimizer is torch.optim.AdamW, not fused; torch.optim.Ad"),
        ("optimizer._target_=torch.optim.NAdam", "the optimizer is torch.optim.NAdam, fused"),
    ],
)
def test_what_cannot_be_recorded_is_refused(with_: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ours.job("graph=true", with_)
    assert str(caught.value).startswith(f"error: graph=true: {line}")
    ours.job("graph=false", with_)


def test_dp_on_several_gpus_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"graph=true: parallel.devices=\[0, 1\] are several"):
        ours.job("graph=true", "parallel=dp", "parallel.devices=[0,1]")


@pytest.mark.parametrize(
    "with_",
    [
        ["parallel=dp"],
        ["optimizer=sgd", "amp=scaler", "accumulate=4"],
        ["optimizer._target_=torch.optim.Adam", "on_nonfinite=skip"],
    ],
    ids=" ".join,
)
def test_the_rest_is_allowed(with_: list[str]) -> None:
    assert ours.job("graph=true", *with_).values["graph"] is True


def test_a_stored_run_that_cannot_be_recorded_is_not_resumed_with_a_graph(shell: Shell) -> None:
    job = ["parallel=ddp", "parallel.processes=1", "logger=quiet", "hydra.run.dir=run"]
    done = shell.train(*job, "max_steps=1", "threads=1")
    assert done.returncode == 0, done.stderr
    done = shell.train("resume=run", "graph=true", "max_steps=2")
    assert done.returncode == 2
    assert done.stderr.startswith("error: graph=true: this strategy can have several processes")
