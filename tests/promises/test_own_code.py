"""A run of one's own code is evaluated and resumed by one word; no stranger's without."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from ninefold.checkpoint.store import read
from ninefold.errors import ConfigError
from ninefold.train.build import built_network, network
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
# The groups that it replaces are left out; nothing in it has a number of classes.
WHOLE = """# @package _global_
defaults: [override /dataset: mapped, override /task: own_loss, override /model: null,
           override /optimizer: null, override /scheduler: null]
dataset:
  root: mine/data
  train: {_target_: stripes_of_mine.Stripes, path: "${dataset.root}/train.npz", seed: "${seed}"}
  test: {_target_: stripes_of_mine.Stripes, path: "${dataset.root}/test.npz", seed: "${seed}"}
model: {net: {_target_: stripes_of_mine.Net}}
task: {loss: {_target_: stripes_of_mine.loss, _partial_: true}}
optimizer: {_target_: torch.optim.Adadelta, lr: 1.0}
scheduler: {_target_: torch.optim.lr_scheduler.StepLR, step_size: 1}
seed: 3
"""
INLINE = "launch.inline=true"
SMALL = ["batch_size=8", "max_steps=2", "logger=quiet", "clock.warmup=0", "device=cpu"]


def train(folder: Path) -> list[str]:
    """The words of a run with the code and data in this folder."""
    conf, data = folder / "mine" / "conf", folder / "mine" / "data"
    return ["--config-dir", str(conf), "experiments=whole", f"dataset.root={data}", *SMALL]


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
    overlays = folder / "mine" / "conf" / "experiments"
    overlays.mkdir(parents=True)
    (overlays / "whole.yaml").write_text(WHOLE)
    words = ["--config-dir", "mine/conf", "experiments=whole", *SMALL, INLINE, "hydra.run.dir=run"]
    done = Shell(folder).train(*words, env=code_of(folder), code=0)
    assert "dataset=Stripes  model=Net (" in done.stdout
    return folder


def evaluated(folder: Path) -> float:
    return float(json.loads((folder / "evaluation.json").read_text())["loss"])


def test_a_run_that_names_classes_that_conf_does_not_takes_the_word_trust(made, shell):
    """Copied, and used from another folder: evaluated and resumed.

    What refers to dataset.root holds from there too, as that is kept as an absolute path.
    """
    shutil.copytree(made / "run", shell.folder / "copied")
    losses = [json.loads(line) for line in (made / "run/metrics.jsonl").read_text().splitlines()]
    evaluate = [str(ROOT / "evaluate.py"), "ckpt=copied"]
    for field, *command in (
        ("ckpt", *evaluate, INLINE, "hydra.run.dir=eval"),
        ("ckpt", *evaluate, "parallel=ddp", "parallel.processes=2", "hydra.run.dir=two"),
        ("resume", str(ROOT / "train.py"), "resume=copied", "max_steps=3", INLINE),
    ):
        line = rf"error: {field}=.*: its configuration has [\w.]+=stripes_of_mine\.\w+, which is "
        done = shell.run(*command, env=code_of(made))
        refused(done, 3, f"{field}=", hint="add trust=true if you made it, or name it")
        assert re.match(line, done.stderr)
        shell.run(*command, "trust=true", env=code_of(made), code=0)
    for name in ("eval", "two"):
        assert evaluated(shell.folder / name) == pytest.approx(losses[-1]["test_loss"], rel=1e-6)
    assert result(shell.folder / "copied")["steps"] == 3
    assert "trust" not in (shell.folder / "copied" / "config.yaml").read_text()


def test_a_command_that_is_repeated_names_its_own_classes_itself(made, shell):
    shutil.copytree(made / "run", shell.folder / "runs" / "first")
    (shell.folder / "runs" / "first" / "result.json").unlink()  # as of one that was killed
    words = train(made)
    more = [INLINE, "max_steps=3"]
    shell.train(
        *words, *more, "resume=auto", "hydra.run.dir=runs/second", env=code_of(made), code=0
    )
    assert result(shell.folder / "runs" / "first")["steps"] == 3
    shell.train(*words, "max_steps=4", INLINE, "resume=runs/first", env=code_of(made), code=0)


def test_code_that_is_not_found_is_missed_in_one_line(made, shell):
    for word in (f"ckpt={made}/run", f"resume={made}/run"):
        program = "evaluate.py" if word.startswith("ckpt") else "train.py"
        done = shell.run(str(ROOT / program), word, "trust=true", INLINE)
        refused(done, 2, "", hint="No module named 'stripes_of_mine'")


# The command that a study prints


PLAIN = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, hidden=16):
        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
"""


def test_a_network_of_ones_own_needs_none_of_the_arguments_of_the_option_it_replaces(shell):
    (shell.folder / "mynet.py").write_text(PLAIN)
    given = ["model.net._target_=mynet.Net", "max_steps=2", "logger=quiet", "launch.inline=true"]
    path = {"PYTHONPATH": str(shell.folder)}
    shell.train(*given, "+model.net.hidden=8", "hydra.run.dir=run", env=path, code=0)
    weights = read(shell.folder / "run" / "checkpoints" / "last.pt")["model"]
    assert weights["1.weight"].shape == (8, 64)
    done = shell.train(*given, "model.net.width=8", "hydra.run.dir=other", env=path)
    refused(done, 2, "model.net=mynet.Net: it cannot be built so", hint="argument 'width'")


class Kept(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 10)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}


class Drawn(torch.nn.Linear):
    """Draws from the generators that are not torch's."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.drawn = random.random(), float(np.random.rand())


def test_a_network_that_draws_from_any_generator_is_the_same_with_the_same_seed():
    def drawn(seed: int) -> tuple[float, float]:
        random.random(), np.random.rand()
        net = {"_target_": f"{__name__}.Drawn"}
        made = network(OmegaConf.create({"seed": seed, "model": {"net": net}, "choices": {}}))
        assert isinstance(made, Drawn)
        return made.drawn

    assert drawn(0) == drawn(0)
    assert drawn(0)[0] != drawn(1)[0]
    assert drawn(0)[1] != drawn(1)[1]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("builtins.int", r"it returns an object of type int; a torch\.nn\.Module is needed"),
        (f"{__name__}.Kept", "the state of the network has a dict, _extra_state; .* hold tensors"),
    ],
)
def test_what_is_no_network_or_keeps_more_than_tensors_is_refused(target, said):
    job = OmegaConf.create({"model": {"net": {"_target_": target}}, "choices": {}})
    with pytest.raises(ConfigError, match=f"model.net={target}: {said}"):
        built_network(job)
