"""A run goes on where it stopped; a checkpoint gives its figure again, however it is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from ninefold.checkpoint import read
from tests.conftest import Shell, metrics, result

CELLS = [("none", "fp32"), ("ddp", "scaler")]


def same(one: object, other: object) -> bool:
    """Whether two trees of tensors and plain containers are equal, bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize(("parallel", "amp"), CELLS)
def test_a_run_stopped_within_an_epoch_and_resumed_ends_like_one_that_never_stopped(
    shell: Shell, parallel: str, amp: str
) -> None:
    job = [f"parallel={parallel}", f"amp={amp}", "launch.cpu_processes=2", "log_every=1",
           "dataset.flip=true", "dataset.crop=1", "epochs=3"]  # fmt: skip
    assert shell.train(*job, "hydra.run.dir=straight").returncode == 0
    assert shell.train(*job, "hydra.run.dir=stopped", "max_steps=30").returncode == 0
    done = shell.train("resume=stopped", "max_steps=66")
    assert done.returncode == 0, done.stderr
    straight, stopped = shell.folder / "straight", shell.folder / "stopped"
    assert metrics(stopped, "loss") == metrics(straight, "loss")
    assert metrics(stopped, "lr") == metrics(straight, "lr")
    ours, theirs = (read(run / "checkpoints" / "last.pt") for run in (straight, stopped))
    for key in ("model", "optimizer", "scheduler", "scaler", "rng", "losses", "step", "skipped"):
        assert same(ours[key], theirs[key]), key
    assert theirs["optimizer"]["state"]
    assert result(stopped)["steps"] == 66


def test_a_checkpoint_due_at_the_end_of_an_epoch_holds_the_epochs_end(shell: Shell) -> None:
    """It is the state after the scheduler's step, not the one before."""
    job = ["checkpoint.every=22", "epochs=2", "logger=quiet", "checkpoint.keep=9"]
    assert shell.train(*job, "hydra.run.dir=run").returncode == 0
    saved = read(shell.folder / "run" / "checkpoints" / "step-00000022.pt")
    assert saved["scheduler"]["last_epoch"] == 1
    assert saved["losses"].sum() == 0


def test_warm_up_steps_leave_no_trace(shell: Shell) -> None:
    done = shell.train("-m", "clock.warmup=0,5", "parallel=ddp", "amp=scaler", "max_steps=10",
                       "log_every=1", "hydra.sweep.dir=s")  # fmt: skip
    assert done.returncode == 0, done.stderr
    cold, warm = sorted((shell.folder / "s").glob("*_ddp_*"))
    assert metrics(cold, "loss") == metrics(warm, "loss")
    one, other = (read(run / "checkpoints" / "last.pt") for run in (cold, warm))
    for key in ("model", "optimizer", "scaler", "rng"):
        assert same(one[key], other[key]), key


def test_only_what_may_change_changes_in_a_resumed_run(shell: Shell) -> None:
    assert shell.train("max_steps=2", "hydra.run.dir=run").returncode == 0
    before = (shell.folder / "run" / "result.json").read_bytes()
    done = shell.train("resume=run", "seed=3", "model=resnet18")
    assert done.returncode == 2
    assert "seed=3 (was 0), model=resnet18 (was convnet) cannot change" in done.stderr
    assert (shell.folder / "run" / "result.json").read_bytes() == before


def test_evaluation_gives_the_figure_of_training_on_any_strategy_and_batch_size(
    shell: Shell,
) -> None:
    assert shell.train("max_steps=40", "hydra.run.dir=run").returncode == 0
    accuracy = result(shell.folder / "run")["accuracy"]
    for number, options in enumerate(
        [[], ["parallel=ddp", "parallel.processes=2", "batch_size=77"], ["parallel=dp"]]
    ):
        done = shell.evaluate("ckpt=run", f"hydra.run.dir=eval{number}", *options)
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
    shell: Shell, tmp_path: Path
) -> None:
    assert shell.train("max_steps=40", "hydra.run.dir=run").returncode == 0
    model = read(tmp_path / "run" / "checkpoints" / "last.pt")["model"]
    torch.save({f"module._orig_mod.{key}": value for key, value in model.items()},
               tmp_path / "foreign.pt")  # fmt: skip
    done = shell.evaluate("ckpt=foreign.pt", "model=convnet", "dataset=digits")
    assert done.returncode == 0, done.stderr
    assert f"accuracy {result(tmp_path / 'run')['accuracy']:.4f}" in done.stdout

    del model["classifier.bias"]
    torch.save(model, tmp_path / "part.pt")
    strict = shell.evaluate("ckpt=part.pt", "model=convnet", "dataset=digits")
    assert strict.returncode == 3
    assert "1 missing (classifier.bias)" in strict.stderr
    partial = shell.evaluate("ckpt=part.pt", "model=convnet", "dataset=digits", "load.partial=true")
    assert partial.returncode == 0, partial.stderr
    assert "1 missing (classifier.bias)" in partial.stdout


def test_a_checkpoint_cannot_make_its_reader_call_what_it_names(
    shell: Shell, tmp_path: Path
) -> None:
    assert shell.train("max_steps=2", "hydra.run.dir=run").returncode == 0
    content = read(tmp_path / "run" / "checkpoints" / "last.pt")
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
    assert len(list((shell.folder / "s").glob("*/result.json"))) == 4
