"""A run goes on where it stopped; a checkpoint gives its figure again, however it is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from ninefold.checkpoint.store import read
from tests.conftest import Shell, metrics, result
from tests.faults.runs import one_after_another

CELLS = [("none", "fp32"), ("ddp", "scaler")]
# 11 steps in an epoch.
WIDTH = "model.net.width=8"
SMALL = [WIDTH, "batch_size=16", "dataset.limit=176", "threads=2", "logger=quiet"]


def same(one: object, other: object) -> bool:
    """Whether two trees of tensors and plain containers are equal, bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs that the tests look at, and do not change."""
    shell = Shell(tmp_path_factory.mktemp("runs"))
    commands = [["train.py", *SMALL, "max_steps=40", "hydra.run.dir=short"]]
    for parallel, amp in CELLS:
        job = [*SMALL, f"parallel={parallel}", f"amp={amp}", "launch.cpu_processes=2",
               "log_every=1", "dataset.flip=true", "dataset.crop=1", "epochs=3",
               "checkpoint.every=11", "checkpoint.keep=9"]  # fmt: skip
        commands += [
            [
                "train.py",
                *job,
                "clock.warmup=5",
                f"hydra.run.dir=stopped-{parallel}",
                "max_steps=15",
            ],
            ["train.py", *job, "clock.warmup=0", f"hydra.run.dir=straight-{parallel}"],
            ["train.py", f"resume=stopped-{parallel}", "max_steps=33"],
        ]
    for done in one_after_another(shell, *commands):
        assert done.returncode == 0, done
    return shell.folder


@pytest.mark.parametrize("parallel", [parallel for parallel, _ in CELLS])
def test_a_run_stopped_within_an_epoch_and_resumed_ends_like_one_that_never_stopped(
    runs: Path, parallel: str
) -> None:
    straight, stopped = runs / f"straight-{parallel}", runs / f"stopped-{parallel}"
    assert metrics(stopped, "loss") == metrics(straight, "loss")
    assert metrics(stopped, "lr") == metrics(straight, "lr")
    ours, theirs = (read(run / "checkpoints" / "last.pt") for run in (straight, stopped))
    for key in ("model", "optimizer", "scheduler", "scaler", "rng", "losses", "step", "skipped"):
        assert same(ours[key], theirs[key]), key
    assert theirs["optimizer"]["state"]
    assert result(stopped)["steps"] == 33


def test_a_checkpoint_due_at_the_end_of_an_epoch_holds_the_epochs_end(runs: Path) -> None:
    """It is the state after the scheduler's step, not the one before."""
    saved = read(runs / "straight-none" / "checkpoints" / "step-00000011.pt")
    assert saved["scheduler"]["last_epoch"] == 1
    assert saved["losses"].sum() == 0


def test_warm_up_steps_leave_no_trace(runs: Path) -> None:
    """Not even in the first steps after it."""
    for parallel, _ in CELLS:
        cold = metrics(runs / f"straight-{parallel}", "loss")[:10]
        assert len(cold) == 10
        assert metrics(runs / f"stopped-{parallel}", "loss")[:10] == cold


def test_evaluation_gives_the_figure_of_training_on_any_strategy_and_batch_size(
    runs: Path, shell: Shell
) -> None:
    accuracy = result(runs / "short")["accuracy"]
    ways = [[], ["parallel=ddp", "parallel.processes=2", "batch_size=77"], ["parallel=dp"]]
    evaluations = one_after_another(shell, *(
        ["evaluate.py", f"ckpt={runs / 'short'}", f"hydra.run.dir=eval{number}", *options]
        for number, options in enumerate(ways)
    ))  # fmt: skip
    for number, done in enumerate(evaluations):
        assert done.returncode == 0, done.stderr
        assert f"accuracy {accuracy:.4f}" in done.stdout
        folder = shell.folder / f"eval{number}"
        found = json.loads((folder / "evaluation.json").read_text())
        assert found["accuracy"] == accuracy
        assert found["count"] == 360
        assert set(found["per_class"]) == {str(label) for label in range(10)}
        assert found["config"]["choices"]["model"] == "convnet"
        assert (folder / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_a_foreign_state_dict_is_evaluated_whatever_its_prefixes(
    runs: Path, shell: Shell, tmp_path: Path
) -> None:
    model = read(runs / "short" / "checkpoints" / "last.pt")["model"]
    torch.save({f"module._orig_mod.{key}": value for key, value in model.items()},
               tmp_path / "foreign.pt")  # fmt: skip
    del model["classifier.bias"]
    torch.save(model, tmp_path / "part.pt")
    part = ["evaluate.py", "ckpt=part.pt", "model=convnet", "dataset=digits", WIDTH]
    whole = ["evaluate.py", "ckpt=foreign.pt", *part[2:]]
    done, strict, partial = one_after_another(shell, whole, part, [*part, "load.partial=true"])
    assert done.returncode == 0, done.stderr
    assert f"accuracy {result(runs / 'short')['accuracy']:.4f}" in done.stdout
    assert strict.returncode == 3
    assert "1 missing (classifier.bias)" in strict.stderr
    assert partial.returncode == 0, partial.stderr
    assert "1 missing (classifier.bias)" in partial.stdout


def test_a_checkpoint_cannot_make_its_reader_call_what_it_names(
    runs: Path, shell: Shell, tmp_path: Path
) -> None:
    content = read(runs / "short" / "checkpoints" / "last.pt")
    job = OmegaConf.create(content["config"])
    canary = tmp_path / "canary"
    job.model.net = {"_target_": "pathlib.Path.touch", "self": str(canary)}
    torch.save({**content, "config": OmegaConf.to_yaml(job)}, tmp_path / "evil.pt")
    done = shell.evaluate("ckpt=evil.pt")
    assert done.returncode == 3
    assert "names the target pathlib.Path.touch" in done.stderr
    assert not canary.exists()


@pytest.mark.slow
def test_every_model_trains_a_step_on_images_of_another_size(shell: Shell) -> None:
    done = shell.train(
        "-m", "model=alexnet,resnet18", "dataset=synthetic,digits", "dataset.limit=16",
        "batch_size=8", "max_steps=1", "amp=autocast", "optimizer=sgd", "scheduler=cosine",
        "hydra.sweep.dir=s", "logger=quiet", "clock.warmup=0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [result(path.parent) for path in (shell.folder / "s").glob("*/result.json")]
    assert sorted((each["dataset"], each["random_inputs"]) for each in found) == [
        *[("digits", False)] * 2,
        *[("synthetic", True)] * 2,
    ]
