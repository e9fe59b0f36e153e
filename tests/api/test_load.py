"""`ninefold.load`: the trained network of a run computes what its evaluation does."""

import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from onnx.reference import ReferenceEvaluator
from torch import nn

import ninefold
from ninefold.checkpoint.manifest import FORMAT
from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import LoadReport
from ninefold.config.job import asked, check
from ninefold.engine.parallel import RankContext
from ninefold.errors import CheckpointError, ConfigError, Failure, NumericsError
from ninefold.launch.command import composed
from ninefold.train import build
from ninefold.train.evaluate import Restored
from tests.conftest import ROOT
from tests.dataset import scenes


class Own(nn.Linear):
    """A network that conf/ does not name."""


def run_folder(folder: Path, *overrides: str) -> DictConfig:
    """Make a run folder with last.pt of a network as drawn, buffers too; returns its job."""
    config = composed(overrides, "")
    job = OmegaConf.create(check(asked(config, config.hydra)).settle().text)
    assert isinstance(job, DictConfig)
    model = build.network(job)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    (folder / "checkpoints").mkdir(parents=True)
    content = {"format": FORMAT, "model": model.state_dict(), "config": OmegaConf.to_yaml(job)}
    torch.save(content, folder / "checkpoints" / "last.pt")
    return job


def changed(folder: Path, change: Callable[[dict[str, Any]], object], name: str = "last") -> None:
    """Write another checkpoint, which holds what `change` leaves of the last one."""
    content = read(folder / "checkpoints" / "last.pt")
    change(content)
    torch.save(content, folder / "checkpoints" / f"{name}.pt")


def test_the_page_makes_files_that_compute_what_the_network_does(shell):
    page = (ROOT / "docs" / "how-to" / "export.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert [len(block.strip().splitlines()) <= 4 for block in blocks[1:]] == [True, True]
    run_folder(shell.folder / "RUN", "dataset=digits", "model=convnet")
    (shell.folder / "page.py").write_text("".join(blocks))
    shell.run("page.py", code=0)
    network = ninefold.load(shell.folder / "RUN")
    onnx = ReferenceEvaluator(str(shell.folder / "model.onnx"))
    program = torch.export.load(shell.folder / "model.pt2").module()
    for count in (1, 5):
        images = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8)
        with torch.no_grad():
            inputs = network.prepare_inputs(images)
            wanted = network(inputs)
            torch.testing.assert_close(program(inputs), wanted)
        found = onnx.run(None, {"input": inputs.numpy()})[0]
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_weights"])
def test_a_run_in_any_precision_is_loaded(tmp_path, precision):
    run_folder(tmp_path, "dataset=digits", "model=mlp", f"amp={precision}")
    assert not ninefold.load(tmp_path).training


def test_inputs_of_float64_are_taken_as_float32_as_in_training(tmp_path):
    run_folder(tmp_path, "dataset=diabetes", "model=mlp", "task=regression")
    network = ninefold.load(tmp_path)
    assert network(network.prepare_inputs(np.zeros((2, 10)))).dtype == torch.float32


@pytest.mark.parametrize("kind", ["images", "resized", "masks"])
def test_it_computes_what_an_evaluation_does_without_the_data(tmp_path, kind):
    scene = scenes.write(tmp_path / "scenes", counts={"train": 4, "test": 4})
    run = tmp_path / "run"
    job = run_folder(run, *{
        "images": ["dataset=digits", "model=convnet"],
        "resized": ["dataset=digits", "model=convnet", "model.input_size=12",
                    "model.net.channels=3", "model.input_channels=3"],
        "masks": ["task=segmentation", "dataset=masks", f"dataset.root={scene}", "model=unet",
                  "dataset.classes=3", "dataset.ignore=11", "dataset.shape=[3,24,32]",
                  "model.net.width=4", "model.net.depth=2"],
    }[kind])  # fmt: skip
    here = RankContext(0, 1, torch.device("cpu"))
    dataset = build.built_dataset(job, here, None, "test")
    examples = dataset.load("test")
    prepare = build.preparation(job, dataset, False, "contiguous_format")
    both = (np.array(array[np.arange(4)]) for array in (examples.inputs, examples.targets))
    raw, targets = map(torch.from_numpy, both)
    model = build.network(job).eval()
    model.load_state_dict(read(run / "checkpoints" / "last.pt")["model"])
    scene.rename(tmp_path / "elsewhere")
    network = ninefold.load(run)
    with torch.no_grad():
        found = network(network.prepare_inputs(raw))
        torch.testing.assert_close(found, model(prepare(raw.clone(), targets, None)[0]))
        assert torch.equal(found, network(network.prepare_inputs(raw.numpy())))
    assert not network.training


def test_the_best_checkpoint_the_average_and_a_file_are_taken_where_they_are_asked_for(tmp_path):
    run_folder(tmp_path, "dataset=digits", "model=convnet")
    raw = read(tmp_path / "checkpoints" / "last.pt")["model"]

    def add(content: dict[str, Any]) -> None:
        content["average"] = {key: value + 0.125 for key, value in content["model"].items()}

    changed(tmp_path, add, "best")
    for given, added in (
        ({"run": str(tmp_path)}, 0),
        ({"run": tmp_path, "which": "best"}, 0.125),
        ({"run": tmp_path / "checkpoints" / "best.pt"}, 0.125),
    ):
        found = ninefold.load(**given).state_dict()
        assert all(torch.equal(found[key], raw[key] + added) for key in raw)


def test_the_callers_draws_go_on_and_the_network_can_be_copied_and_pickled(tmp_path):
    run_folder(tmp_path, "dataset=digits", "model=convnet")
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    network = ninefold.load(tmp_path)
    assert torch.equal(torch.rand(2), wanted)
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    found = [
        each(each.prepare_inputs(images))
        for each in (network, copy.deepcopy(network), pickle.loads(pickle.dumps(network)))
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_names_of_ones_own_classes_take_the_word_trust(tmp_path):
    own = (f"model.net._target_={__name__}.Own", "+model.net.in_features=8")
    run_folder(tmp_path, "dataset=digits", "model=convnet", *own, "+model.net.out_features=10")
    named = rf"model\.net\._target_={__name__}\.Own"
    line = rf"ckpt=.*: its configuration has {named}, which is not in .*; pass trust=True if"
    with pytest.raises(CheckpointError, match=line):
        ninefold.load(tmp_path)
    assert type(ninefold.load(tmp_path, trust=True)) is Own


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody/run", "a\0b"], ids=len)
def test_a_name_that_no_file_has_is_no_checkpoint(name):
    with pytest.raises(CheckpointError, match="no such checkpoint; looked for "):
        ninefold.load(name)


def test_the_defaults_of_the_caller_are_not_the_networks(tmp_path):
    run_folder(tmp_path, "dataset=digits", "model=convnet")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            network = ninefold.load(tmp_path)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert {(p.dtype, p.device.type) for p in network.parameters()} == {(torch.float32, "cpu")}


def strangers(content: dict[str, Any]) -> None:
    target = "ninefold.model.convnet.ConvNet"
    content["config"] = content["config"].replace(target, "os.system")


def not_finite(content: dict[str, Any]) -> None:
    content["model"]["classifier.bias"].fill_(math.nan)


@pytest.mark.parametrize(
    ("change", "given", "kind", "line"),
    [
        (len, {"which": "first"}, ConfigError, "which=first: there is none; last and best"),
        (len, {"which": "best"}, CheckpointError, "no such checkpoint; looked for .*/best.pt; "),
        (strangers, {}, CheckpointError, "configuration has model.net._target_=os.system, which"),
        (not_finite, {}, NumericsError, "last.pt: classifier.bias in it is not finite; 10 of its "),
        (lambda c: c["model"].pop("classifier.bias"), {}, CheckpointError, "does not fit model="),
        (lambda c: c.pop("config"), {}, ConfigError, "does not say which model it is for"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_one_line(tmp_path, change, given, kind, line):
    run_folder(tmp_path, "dataset=digits", "model=convnet")
    changed(tmp_path, change)
    with pytest.raises(kind, match=line) as caught:
        ninefold.load(tmp_path, **given)
    assert isinstance(caught.value, Failure)
    assert str(caught.value).startswith("error: ")
    assert "\n" not in str(caught.value)
    assert not re.search(r"load\.partial|model=\.\.\.", str(caught.value))  # keys of a command


def test_a_damaged_safetensors_file_is_refused_in_a_line(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(CheckpointError, match=f"error: ckpt={path}: it cannot be read; "):
        ninefold.load(path)


def test_the_infinity_of_a_mask_in_a_buffer_is_accepted_and_nan_is_not(tmp_path):
    network = torch.nn.BatchNorm1d(2)
    found = Restored(network, OmegaConf.create({}), tmp_path, "raw", LoadReport([], [], [], []), {})
    network.running_mean[0] = -math.inf  # as a mask of attention has it
    found.require_finite()
    network.running_mean[0] = math.nan
    with pytest.raises(NumericsError, match="running_mean in it is not finite; 1 of its 2 values"):
        found.require_finite()
