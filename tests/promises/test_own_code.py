"""A run of one's own code is evaluated, exported and resumed by one word; no stranger's without."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from ninefold.checkpoint.store import read
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
         "logger=quiet", "clock.warmup=0", "device=cpu"]  # fmt: skip
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


def code_of(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}:{folder}/mine"}


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
    done = Shell(folder).train(*TRAIN, "seed=3", INLINE, "hydra.run.dir=run", env=code_of(folder))
    assert done.returncode == 0, done.stderr
    return folder


def evaluated(folder: Path) -> float:
    return float(json.loads((folder / "evaluation.json").read_text())["loss"])


def test_a_run_that_names_classes_that_conf_does_not_takes_the_word_trust(
    made: Path, shell: Shell
) -> None:
    """Copied, and used from another folder: evaluated, exported and resumed."""
    shutil.copytree(made / "run", shell.folder / "copied")
    losses = [json.loads(line) for line in (made / "run/metrics.jsonl").read_text().splitlines()]
    evaluate = [str(ROOT / "evaluate.py"), "ckpt=copied"]
    for field, *command in (
        ("ckpt", *evaluate, INLINE, "hydra.run.dir=eval"),
        ("ckpt", *evaluate, "parallel=ddp", "parallel.processes=2", "hydra.run.dir=two"),
        ("ckpt", "-m", "ninefold.export", "ckpt=copied", "format=pt2"),
        ("resume", str(ROOT / "train.py"), "resume=copied", "max_steps=3", INLINE),
    ):
        line = rf"error: {field}=.*: its configuration names the target stripes_of_mine\.\w+ at "
        done = shell.run(*command, env=code_of(made))
        refused(done, 3, f"{field}=", hint="yours or a stranger's")
        assert re.match(line, done.stderr)
        assert done.stderr.endswith("; add trust=true if you made it\n")
        done = shell.run(*command, "trust=true", env=code_of(made))
        assert done.returncode == 0, done.stderr
    for name in ("eval", "two"):
        assert evaluated(shell.folder / name) == pytest.approx(losses[-1]["test_loss"], rel=1e-6)
    assert result(shell.folder / "copied")["steps"] == 3
    assert "trust" not in (shell.folder / "copied" / "config.yaml").read_text()


def test_a_command_that_is_repeated_names_its_own_classes_itself(made: Path, shell: Shell) -> None:
    shutil.copytree(made / "run", shell.folder / "runs" / "first")
    (shell.folder / "runs" / "first" / "result.json").unlink()  # as of one that was killed
    words = [word.replace("mine/", f"{made}/mine/") for word in TRAIN]
    more = ["seed=3", INLINE, "max_steps=3"]
    done = shell.train(*words, *more, "resume=auto", "hydra.run.dir=runs/second", env=code_of(made))
    assert done.returncode == 0, done.stderr
    assert result(shell.folder / "runs" / "first")["steps"] == 3
    done = shell.train(*words, "max_steps=4", INLINE, "resume=runs/first", env=code_of(made))
    assert done.returncode == 0, done.stderr


def test_a_project_in_one_yaml_is_trained_resumed_and_evaluated(made: Path, shell: Shell) -> None:
    """Without the options that it replaces; nothing in it has a number of classes. From another
    folder too: what refers to dataset.root is absolute, as that is.
    """
    conf = shell.folder / "conf" / "experiments"
    conf.mkdir(parents=True)
    shutil.copytree(made / "mine" / "data", shell.folder / "data")
    (conf / "whole.yaml").write_text(WHOLE.replace("MINE/data", "data"))
    env = code_of(made)
    done = shell.train("--config-dir", "conf", "experiments=whole", "max_steps=2", "batch_size=8",
                       INLINE, "hydra.run.dir=run", env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "dataset=mapped  model=Net (" in done.stdout
    (shell.folder / "away").mkdir()
    away = Shell(shell.folder / "away")
    run = shell.folder / "run"
    for command in (["train.py", f"resume={run}", "max_steps=3"], ["evaluate.py", f"ckpt={run}"]):
        done = away.run(str(ROOT / command[0]), *command[1:], "trust=true", env=env)
        assert done.returncode == 0, done.stderr
    found = result(shell.folder / "run")
    assert (found["steps"], found["model"]) == (3, "Net")


def test_groups_of_ones_own_may_refer_to_each_other_and_to_the_run_in_an_evaluation(
    made: Path, shell: Shell
) -> None:
    """Their dataset refers to its root and to the seed, which an evaluation has not."""
    groups = [word.replace("mine/", f"{made}/mine/") for word in GROUPS]
    env = code_of(made)
    evaluate = (str(ROOT / "evaluate.py"), *groups, INLINE, "hydra.run.dir=eval")
    done = shell.run(*evaluate, f"ckpt={made}/run", "trust=true", env=env)  # of its optimizer
    assert done.returncode == 0, done.stderr
    bare = shell.folder / "bare.pt"
    torch.save(read(made / "run" / "checkpoints" / "last.pt")["model"], bare)
    nowhere = "dataset.train={_target_: stripes_of_mine.Stripes, path: x, seed: '${epochs}'}"
    done = shell.run(*evaluate, f"ckpt={bare}", nowhere, "hydra.run.dir=bare", env=env)
    refused(done, 2, "dataset.train.seed=", hint="neither the command nor the checkpoint has it")


def test_code_that_is_not_found_is_missed_in_one_line(made: Path, shell: Shell) -> None:
    for word in (f"ckpt={made}/run", f"resume={made}/run"):
        program = "evaluate.py" if word.startswith("ckpt") else "train.py"
        done = shell.run(str(ROOT / program), word, "trust=true", INLINE)
        refused(done, 2, "", hint="No module named 'stripes_of_mine'")


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


def an_optimizer(run: Path) -> None:
    named(run, "optimizer", "os.system")


def another_network(run: Path) -> None:
    named(run, "model.net", "torch.nn.Identity")


def its_own_word(run: Path) -> None:
    another_network(run)
    with (run / "config.yaml").open("a") as file:
        file.write("trust: true\n")


@pytest.mark.parametrize("change", [an_optimizer, another_network, its_own_word])
def test_a_changed_configuration_builds_nothing_that_the_command_does_not_name(
    change: Callable[[Path], None], made: Path, shell: Shell
) -> None:
    run = shell.folder / "run"
    shutil.copytree(made / "run", run)
    change(run)
    words = [word.replace("mine/", f"{made}/mine/") for word in TRAIN]
    evaluate = (str(ROOT / "evaluate.py"), "ckpt=run", INLINE, "hydra.run.dir=eval")
    done = shell.train(*words, "resume=run", "max_steps=3", INLINE, env=code_of(made))
    refused(done, 3, "resume=", hint="names the target ")
    refused(shell.run(*evaluate, env=code_of(made)), 3, "ckpt=", hint="names the target ")
    assert not (run / "canary").exists()


# The command that a study prints


# dp does the work of none on a CPU, so that the answer is decided however busy the machine is.
SWEEP = """study: {ask: [time]}
hydra: {mode: MULTIRUN, sweeper: {params: {parallel: "none,dp", amp: fp32}}}
"""
SMALL = ["batch_size=8", "max_steps=2", "logger=quiet", "clock.warmup=0"]
AXES = ["parallel=none,dp", "amp=fp32", "study.ask=[time]"]


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
    short = ("seed=3", "study.time_budget=0.1", "hydra.sweep.dir=study")
    done = shell.train(*words, *short, env=env)
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
