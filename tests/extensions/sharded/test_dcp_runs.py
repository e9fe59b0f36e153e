"""Runs with parallel.checkpoint=sharded: they stop, go on, are evaluated and start others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ninefold.checkpoint import manifest
from ninefold.checkpoint.store import Checkpoints, read
from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another
from tests.kit import same

pytestmark = pytest.mark.slow  # quicker: test_dcp.py and test_fsdp_runs.py

FSDP = ["parallel=fsdp", "parallel.processes=2", "parallel.least=1000"]
JOB = ["model.net.width=8", "threads=1", "log_every=1", "logger=quiet",
       "dataset.limit=128", "dataset.flip=true", "batch_size=32", "epochs=9", "ema=0.9",
       "parallel.checkpoint=sharded"]  # fmt: skip
STEPS = 7
COMMANDS = [
    ["train.py", *JOB, *FSDP, "clock.warmup=0", f"max_steps={STEPS}", "hydra.run.dir=straight"],
    ["train.py", *JOB, *FSDP, "clock.warmup=2", "max_steps=3", "hydra.run.dir=stopped"],
    ["evaluate.py", "ckpt=stopped", "hydra.run.dir=evaluated"],
    ["train.py", *JOB[:-1], "init=stopped", "max_steps=1", "hydra.run.dir=started"],
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with fsdp, one like it that stopped early and goes on in copies, and what they gave."""
    shell = Shell(tmp_path_factory.mktemp("sharded"))
    one_after_another(shell, *COMMANDS, code=0)
    return shell.folder


def went_on(runs: Path, name: str, *arguments: str) -> Path:
    """A copy of the run that stopped, resumed with these arguments."""
    run = shutil.copytree(runs / "stopped", runs / name, symlinks=True)
    command = ["train.py", f"resume={name}", f"max_steps={STEPS}", *arguments]
    one_after_another(Shell(runs), command, code=0)
    return run


def test_a_run_that_goes_on_alike_ends_bitwise_like_one_that_never_stopped(runs: Path) -> None:
    run = went_on(runs, "alike")
    assert metrics(run, "loss") == metrics(runs / "straight", "loss")
    paths = [manifest.named(each) for each in (runs / "straight", run)]
    assert [path.name for path in paths] == ["last.dcp", "last.dcp"]
    ours, theirs = map(read, paths)
    for key in ("model", "optimizer", "average", "scheduler", "rng", "losses", "step"):
        assert same(ours[key], theirs[key]), key


@pytest.mark.parametrize(
    "arguments",
    [
        ["parallel=none"],
        ["parallel=ddp", "parallel.processes=2"],
        [*FSDP, "parallel.checkpoint=whole"],
        ["parallel=fsdp", "parallel.processes=4", "parallel.replicas=2",
         "parallel.checkpoint=sharded"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_run_goes_on_with_another_strategy_or_format(runs: Path, arguments: list[str]) -> None:
    run = went_on(runs, "-".join(arguments).replace("=", "-"), *arguments)
    assert metrics(run, "loss") == pytest.approx(metrics(runs / "straight", "loss"), abs=1e-6)
    format = "dcp" if "parallel.checkpoint=sharded" in arguments else "pt"
    assert manifest.named(run).name == f"last.{format}"
    checkpoints = Checkpoints(run / "checkpoints", keep=2)
    there = {path.name for path in (run / "checkpoints").iterdir()} - {manifest.FILE}
    assert there == set(checkpoints.manifest())
    assert read(checkpoints.newest())["step"] == STEPS


def test_an_evaluation_finds_what_training_found(runs: Path) -> None:
    found = json.loads((runs / "evaluated" / "evaluation.json").read_text())
    trained = result(runs / "stopped")
    assert found["accuracy"] == trained["accuracy"]
    assert found["loss"] == pytest.approx(trained["test_loss"], rel=1e-5)
    assert found["checkpoint"].endswith("/stopped/checkpoints/last.dcp")


def test_a_new_run_starts_with_its_weights(runs: Path) -> None:
    (note,) = (note for note in result(runs / "started")["notes"] if "initial weights" in note)
    assert note.endswith("/stopped/checkpoints/last.dcp (average).")
