"""A run of one's own code is evaluated, exported and resumed by its folder; a stranger's is not."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from ninefold.checkpoint.store import read
from ninefold.config import own
from tests.conftest import ROOT, Shell, result
from tests.faults.refusals import refused

CODE = """
from pathlib import Path

import numpy as np
import torch
from torch import nn


class Stripes:
    def __init__(self, path, seed):
        assert seed == 3, seed
        file = np.load(path)
        self.images, self.classes = file["images"], file["classes"]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, item):
        return torch.from_numpy(self.images[item]), int(self.classes[item])


def loss(output, target):
    return nn.functional.nll_loss(output, target, reduction="none")


class Net(nn.Module):
    def __init__(self, canary=None):
        super().__init__()
        if canary:
            Path(canary).touch()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    def forward(self, images):
        return self.layers(images).log_softmax(1)
"""
DATA = """
_target_: ninefold.dataset.mapped.Mapped
_recursive_: false
root: DATA
train: {_target_: stripes_of_mine.Stripes, path: "${dataset.root}/train.npz", seed: "${seed}"}
test: {_target_: stripes_of_mine.Stripes, path: "${dataset.root}/test.npz", seed: "${seed}"}
keys: null
classes: 3
shape: [1, 4, 4]
"""
CONF = {
    "dataset/stripes": DATA,
    "model/mynet": "net: {_target_: stripes_of_mine.Net}\ninput_channels: 1\ninput_size: null\n"
    "memory_format: contiguous_format\n",
    "optimizer/adadelta": "_target_: torch.optim.Adadelta\n_partial_: true\nlr: 1.0\n",
    "scheduler/steps": "_target_: torch.optim.lr_scheduler.StepLR\n_partial_: true\nstep_size: 1\n",
    "task/nll": "_target_: ninefold.task.classification.Classification\n"
    "classes: ${dataset.classes}\nloss: {_target_: torch.nn.NLLLoss}\n",
}
GROUPS = ["--config-dir", "mine/conf", "dataset=stripes", "model=mynet", "task=nll"]
TRAIN = [*GROUPS, "optimizer=adadelta", "scheduler=steps", "batch_size=8", "max_steps=2",
         "logger=quiet", "clock.warmup=0", "clock.probe=0", "device=cpu"]  # fmt: skip
INLINE = "launch.inline=true"
WHOLE = """# @package _global_
defaults: [override /dataset: mapped, override /task: own_loss, override /model: null,
           override /optimizer: null, override /scheduler: null]
dataset:
  root: MINE/data
  train: {_target_: stripes_of_mine.Stripes, path: "${dataset.root}/train.npz", seed: "${seed}"}
  test: {_target_: stripes_of_mine.Stripes, path: "${dataset.root}/test.npz", seed: "${seed}"}
model: {net: {_target_: stripes_of_mine.Net}}
task: {loss: {_target_: stripes_of_mine.loss, _partial_: true}}
optimizer: {_target_: torch.optim.Adadelta, lr: 1.0}
scheduler: {_target_: torch.optim.lr_scheduler.StepLR, step_size: 1}
seed: 3
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's code in `mine`, and a run of it in `run`."""
    folder = tmp_path_factory.mktemp("made")
    data = folder / "mine" / "data"
    data.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        np.savez(
            data / f"{split}.npz",
            images=generator.normal(size=(16, 1, 4, 4)).astype("f4"),
            classes=generator.integers(0, 3, 16),
        )
    (folder / "mine" / "stripes_of_mine.py").write_text(CODE)
    for name, text in CONF.items():
        path = folder / "mine" / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("DATA", str(data)))
    env = {"PYTHONPATH": f"{ROOT}:{folder}/mine"}
    done = Shell(folder).train(*TRAIN, "seed=3", INLINE, "hydra.run.dir=run", env=env)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_of_ones_own_needs_its_folder_and_nothing_else(made: Path, shell: Shell) -> None:
    """Copied, and used from another folder, without PYTHONPATH."""
    shutil.copytree(made / "run", shell.folder / "copied")
    loss = [json.loads(line) for line in (made / "run" / "metrics.jsonl").read_text().splitlines()]
    done = shell.evaluate("ckpt=copied", INLINE, "hydra.run.dir=eval")
    assert done.returncode == 0, done.stderr
    found = json.loads((shell.folder / "eval" / "evaluation.json").read_text())
    assert found["loss"] == pytest.approx(loss[-1]["test_loss"], rel=1e-6)
    done = shell.evaluate("ckpt=copied/checkpoints/best.pt", "parallel=ddp",
                          "parallel.processes=2", "hydra.run.dir=two")  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = shell.run("-m", "ninefold.export", "ckpt=copied", "format=pt2")
    assert done.returncode == 0, done.stderr
    done = shell.train("resume=copied", "max_steps=3")
    assert done.returncode == 0, done.stderr
    assert result(shell.folder / "copied")["steps"] == 3
    done = shell.evaluate("ckpt=copied", INLINE, "hydra.run.dir=later")
    assert done.returncode == 0, done.stderr


def test_a_project_in_one_yaml_is_trained_resumed_and_evaluated(made: Path, shell: Shell) -> None:
    """Without the options that it replaces; nothing in it has a number of classes. From another
    folder too: what refers to dataset.root is absolute, as that is.
    """
    conf = shell.folder / "conf" / "experiments"
    conf.mkdir(parents=True)
    shutil.copytree(made / "mine" / "data", shell.folder / "data")
    (conf / "whole.yaml").write_text(WHOLE.replace("MINE/data", "data"))
    env = {"PYTHONPATH": f"{ROOT}:{made}/mine"}
    done = shell.train("--config-dir", "conf", "experiments=whole", "max_steps=2", "batch_size=8",
                       INLINE, "hydra.run.dir=run", env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "dataset=mapped  model=Net (" in done.stdout
    (shell.folder / "away").mkdir()
    away = Shell(shell.folder / "away")
    run = shell.folder / "run"
    for command in (["train.py", f"resume={run}", "max_steps=3"], ["evaluate.py", f"ckpt={run}"]):
        done = away.run(str(ROOT / command[0]), *command[1:])
        assert done.returncode == 0, done.stderr
    found = result(shell.folder / "run")
    assert (found["steps"], found["model"]) == (3, "Net")


def test_groups_of_ones_own_may_refer_to_each_other_and_to_the_run_in_an_evaluation(
    made: Path, shell: Shell
) -> None:
    """Their dataset refers to its root and to the seed, which an evaluation has not."""
    groups = [word.replace("mine/", f"{made}/mine/") for word in GROUPS]
    env = {"PYTHONPATH": f"{ROOT}:{made}/mine"}
    evaluate = (str(ROOT / "evaluate.py"), *groups, INLINE, "hydra.run.dir=eval")
    done = shell.run(*evaluate, f"ckpt={made}/run", env=env)
    assert done.returncode == 0, done.stderr
    bare = shell.folder / "bare.pt"
    torch.save(read(made / "run" / "checkpoints" / "last.pt")["model"], bare)
    nowhere = "dataset.train={_target_: stripes_of_mine.Stripes, path: x, seed: '${epochs}'}"
    done = shell.run(*evaluate, f"ckpt={bare}", nowhere, "hydra.run.dir=bare", env=env)
    refused(done, 2, "dataset.train.seed=", hint="neither the command nor the checkpoint has it")


def test_code_that_is_gone_is_missed_in_one_line(made: Path, shell: Shell) -> None:
    shutil.copytree(made / "mine", shell.folder / "mine")
    env = {"PYTHONPATH": f"{ROOT}:{shell.folder}/mine"}
    done = shell.train(*TRAIN, "seed=3", INLINE, "hydra.run.dir=run", env=env)
    assert done.returncode == 0, done.stderr
    (shell.folder / "mine").rename(shell.folder / "moved")
    gone = f"it needs your module stripes_of_mine, which is not found; it was in {shell.folder}/m"
    for command in (["evaluate.py", "ckpt=run", "hydra.run.dir=a"], ["train.py", "resume=run"]):
        done = shell.run(str(ROOT / command[0]), *command[1:], INLINE)
        refused(done, 3, "ckpt=" if "ckpt=run" in command else "resume=", hint=gone)
    env = {"PYTHONPATH": f"{ROOT}:{shell.folder}/moved"}
    evaluate = (str(ROOT / "evaluate.py"), "ckpt=run", INLINE, "hydra.run.dir=b")
    assert shell.run(*evaluate, env=env).returncode == 0


# Strangers


def named(run: Path, place: str, target: str) -> None:
    """Have a run's stored configuration call another target, in config.yaml and the checkpoint."""
    path = run / "checkpoints" / "last.pt"
    content = read(path)
    job = OmegaConf.create(content["config"])
    OmegaConf.update(job, place, {"_target_": target, "canary": str(run / "canary")})
    content["config"] = OmegaConf.to_yaml(job)
    torch.save(content, path)
    listed = json.loads((path.parent / "manifest.json").read_text())
    del listed["files"]["last.pt"]  # as of a file from elsewhere, there is nothing to compare with
    (path.parent / "manifest.json").write_text(json.dumps(listed))
    (run / "config.yaml").write_text(content["config"])


def without_a_mark(run: Path, ours: Path) -> None:
    (run / own.FILE).unlink()


def with_another_argument(run: Path, ours: Path) -> None:
    named(run, "model.net", "stripes_of_mine.Net")


def with_an_optimizer_of_its_own(run: Path, ours: Path) -> None:
    named(run, "optimizer", "os.system")


def with_a_forged_mark(run: Path, ours: Path) -> None:
    with_another_argument(run, ours)
    content = json.loads((run / own.FILE).read_text())
    text = (run / "config.yaml").read_text()
    content["jobs"] = {own._sha256(text): next(iter(content["jobs"].values()))}
    (run / own.FILE).write_text(json.dumps(content))


def with_a_link_to_ones_own_mark(run: Path, ours: Path) -> None:
    with_another_argument(run, ours)
    (run / own.FILE).unlink()
    (run / own.FILE).symlink_to(ours / own.FILE)


def with_a_link_to_ones_own_configuration(run: Path, ours: Path) -> None:
    with_another_argument(run, ours)
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to(ours / "config.yaml")


def signed_by_another_user(run: Path, ours: Path) -> None:
    content = json.loads((run / own.FILE).read_text())
    content["signature"] = own._hmac(bytes(own.SIZE), own._plain(content["jobs"]))
    (run / own.FILE).write_text(json.dumps(content))


STRANGERS = [without_a_mark, with_another_argument, with_an_optimizer_of_its_own,
             with_a_forged_mark, with_a_link_to_ones_own_mark,
             with_a_link_to_ones_own_configuration, signed_by_another_user]  # fmt: skip


@pytest.mark.parametrize("change", STRANGERS)
def test_a_strangers_folder_still_names_nothing_that_conf_does_not(
    change: Callable[[Path, Path], None], made: Path, shell: Shell
) -> None:
    run = shell.folder / "run"
    shutil.copytree(made / "run", run)
    change(run, made / "run")
    done = shell.evaluate("ckpt=run", INLINE, "hydra.run.dir=eval")
    refused(done, 3, "ckpt=", hint="names the target ")
    if change is not with_a_link_to_ones_own_configuration:  # that is what one made oneself
        refused(shell.train("resume=run", "max_steps=3", INLINE), 3, "resume=", hint="names the")
    assert not (run / "canary").exists()


# The command that a study prints


SWEEP = """study: {burn_in: 0}
hydra: {mode: MULTIRUN, sweeper: {params: {parallel: "none,dp", amp: "fp32,autocast"}}}
"""
SMALL = ["batch_size=8", "max_steps=2", "logger=quiet", "clock.warmup=0", "clock.probe=0"]
AXES = ["parallel=none,dp", "amp=fp32,autocast", "study.burn_in=0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["-m", *TRAIN, *AXES], ["dataset=stripes"]),
        (["-m", "--config-dir", "mine/conf", "experiments=whole", *SMALL, *AXES],
         ["experiments=whole", "batch_size=8"]),
        (["--config-dir", "mine/conf", "experiments=sweep", *SMALL],
         ["experiments=sweep", "hydra.mode=RUN", "~study"]),
    ],
    ids=["options", "overlay", "overlay that sweeps"],
)  # fmt: skip
def test_the_printed_command_of_a_study_of_ones_own_code_works_pasted(
    words: list[str], kept: list[str], made: Path, shell: Shell
) -> None:
    shutil.copytree(made / "mine", shell.folder / "mine")
    overlays = shell.folder / "mine" / "conf" / "experiments"
    overlays.mkdir()
    whole = WHOLE.replace("MINE", f"{shell.folder}/mine")
    (overlays / "whole.yaml").write_text(whole)
    (overlays / "sweep.yaml").write_text(whole + SWEEP)
    env = {"PYTHONPATH": f"{ROOT}:{shell.folder}/mine"}
    done = shell.train(*words, "seed=3,3", "hydra.sweep.dir=study", env=env)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("train with it: ")]
    path, python, *typed = shlex.split(shown[0].removeprefix("train with it: "))
    assert (path, python) == (f"PYTHONPATH={shell.folder}/mine", "python")
    assert " ".join(kept) in " ".join(typed)
    done = shell.run(*typed, "seed=3", "hydra.run.dir=run", env={"PYTHONPATH": path[11:]})
    assert done.returncode == 0, done.stderr
    assert (
        "train.py --config-dir mine/conf " in (shell.folder / "study/report/report.md").read_text()
    )
