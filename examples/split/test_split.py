"""A network in parts on several devices computes what it computes on one.

No test of the default suite has two real devices. The way of the values is followed with PyTorch's
fake tensors, which have a device and no values; the values with two parts on one CPU.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from split import MIXED, Chunks, Split, cut, moved
from split_keys import REFUSED as ROWS
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import ours
from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import load_weights, weights
from ninefold.config.options import of_class
from ninefold.engine.amp import Amp
from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError
from ninefold.model.convnet import ConvNet
from ninefold.model.unet import UNet
from ninefold.report.data.recording import Recording
from ninefold.report.data.runs import run_of_result
from ninefold.task import Objective
from ninefold.task.classification import Classification
from ninefold.task.segmentation import Segmentation
from ninefold.train import kernels
from ninefold.types import accepts
from tests.conftest import ROOT, Shell, metrics, only_run, result
from tests.parallel.test_dp import classification, segmentation
from tests.report.made import built
from tests.report.made import result as reported
from tests.train.test_on_gpu import same, trained

CPU = torch.device("cpu")
GPUS = (torch.device("cuda", 0), torch.device("cuda", 1))
TWO = RankContext(0, 1, GPUS[0], devices=GPUS)
ALONE = RankContext(0, 1, CPU)
HERE = Path(__file__).parent
SPLIT = (f"hydra.searchpath=[file://{ROOT},file://{HERE}/conf]", "parallel=split")
OWN = ("--config-dir", f"{HERE}/conf", "parallel=split")  # of a command
TWICE = (*SPLIT, "parallel._target_=test_split.Twice")


@pytest.fixture(autouse=True)
def found_by_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the commands that a test starts find the modules of this folder."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)


def mobilenet() -> nn.Module:
    import timm  # here, as a bare machine with a GPU lacks it and runs the other tests

    model: nn.Module = timm.create_model("mobilenetv3_small_050", num_classes=10)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], int, list[str]]] = {
    "alexnet": (lambda: torchvision.models.alexnet(num_classes=10), 64, ["classifier"]),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=10), 32, ["layer3"]),
    "unet": (lambda: UNet(3, 10, width=4, depth=2), 16, ["up.0"]),
    "mobilenetv3": (
        mobilenet,
        32,
        ["blocks.3"],
    ),
}


def objective_of(name: str) -> Objective:
    network = MODELS[name][0]()
    return Objective(network, Segmentation(10) if name == "unet" else Classification(10))


def batch_of(name: str, device: torch.device) -> tuple[Tensor, Tensor]:
    size = MODELS[name][1]
    inputs = torch.empty(4, 3, size, size, device=device)
    shape = (4, size, size) if name == "unet" else (4,)
    return inputs, torch.zeros(shape, dtype=torch.int64, device=device)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "where"),
    [*((name, "auto") for name in MODELS), *((name, "named") for name in MODELS),
     ("resnet18", "inside two wrappers")],
)  # fmt: skip
def test_networks_pass_two_gpus_and_fail_without_the_hooks(name: str, where: str) -> None:
    objective = objective_of(name)
    network = objective.network
    if where == "inside two wrappers":
        objective.network = nn.Sequential(nn.Sequential(network))
    at = "auto" if where == "auto" else MODELS[name][2]
    with FakeTensorMode(allow_non_fake_inputs=True):
        wrapped = Split(at=at, chunks=2).wrap(objective, TWO)
        found = {parameter.device for parameter in network.parameters()}
        assert found == set(GPUS)
        inputs, targets = batch_of(name, GPUS[0])
        with torch.no_grad():
            output = objective.network(inputs)
            assert output.device == GPUS[1]
            assert wrapped(inputs, targets).device == GPUS[0]
            loss, sums = wrapped(inputs, targets, measure=True)
            assert loss.device == sums.device == GPUS[0]
            for module in network.modules():
                module._forward_pre_hooks.clear()
                module._forward_pre_hooks_with_kwargs.clear()
            with pytest.raises(RuntimeError, match=r"cuda:0.*cuda:1|cuda:1.*cuda:0"):
                objective.network(inputs)


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_in_order_and_have_about_half_of_the_parameters(name: str) -> None:
    network = MODELS[name][0]()
    first, second = cut(network, None, 2)
    assert first
    assert second
    sizes = [sum(p.numel() for _, m in own for p in m.parameters()) for own in (first, second)]
    assert sum(sizes) == sum(p.numel() for p in network.parameters())
    assert max(sizes) < 0.75 * sum(sizes)
    order = [path for path, _ in network.named_modules()]
    assert (names := [path for path, _ in [*first, *second]]) == sorted(names, key=order.index)


@pytest.mark.parametrize("chunks", [2, 3, 7, 20])
@pytest.mark.parametrize("make", [classification, segmentation])
def test_chunks_of_unlike_sizes_have_the_loss_and_gradients_of_the_whole(
    make: Any, chunks: int
) -> None:
    torch.manual_seed(0)
    network, task, inputs, targets = make()
    whole, parts = (Objective(copy.deepcopy(network), task) for _ in range(2))
    wrapped = Split(device="cpu", chunks=chunks).wrap(parts, ALONE)
    truth, loss = whole(inputs, targets), wrapped(inputs, targets)
    assert abs(loss - truth) < 1e-6
    truth.backward()
    loss.backward()
    for mine, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert (mine.grad - theirs.grad).abs().max() < 1e-6
    with torch.no_grad():
        found, truths = wrapped(inputs, targets, True), whole(inputs, targets, True)
    assert all(map(torch.equal, found, truths))  # an evaluation is computed at once


@dataclass(frozen=True)
class Twice(Split):
    """Two parts on one CPU, as if it were two devices."""

    @contextmanager
    def join(self) -> Iterator[RankContext]:
        yield RankContext(0, 1, CPU, devices=(CPU, CPU))


@pytest.mark.parametrize(
    ("how", "shared"),
    [
        (SPLIT, ()),
        (TWICE, ("ema=0.9",)),
        ((*TWICE, "parallel.at=[classifier]"), ("amp=scaler", "clip_grad_norm=0.1")),
    ],
    ids=["one device", "two parts, averaged", "two named parts, scaler, clipped"],
)
def test_a_run_is_bitwise_that_of_none(
    how: tuple[str, ...], shared: tuple[str, ...], tmp_path: Path
) -> None:
    none = trained(tmp_path / "none", *shared)
    split = trained(tmp_path / "split", *how, *shared)
    assert same(none, split)


def test_a_run_in_chunks_has_the_losses_of_none(tmp_path: Path) -> None:
    none = trained(tmp_path / "none")
    split = trained(tmp_path / "split", *TWICE, "parallel.chunks=2")
    assert split.logged["loss"] == pytest.approx(none.logged["loss"], abs=1e-6, rel=0)
    assert load_weights(ConvNet(3, 10, width=8), weights(split.checkpoint)).complete


def test_one_device_makes_it_a_no_op_and_says_so() -> None:
    (note,) = Split().notes(ALONE)
    assert note.startswith("parallel=split is a no-op on one device: it trains what none does, ")
    (note,) = Split(chunks=2).notes(ALONE)
    assert "a batch is computed in chunks" in note
    assert Split().notes(TWO) == []
    assert Split().no_op(ALONE)
    assert not Split(chunks=2).no_op(ALONE)
    assert not Split().no_op(TWO)


@pytest.mark.slow
def test_a_command_says_that_one_device_makes_it_a_no_op_and_is_evaluated_anywhere(
    shell: Shell,
) -> None:
    split = [*OWN, "parallel.at=[classifier]", "parallel.chunks=2"]
    shell.train(*split, "max_steps=2", "threads=1", code=0)
    found = result(run := only_run(shell.folder))
    assert (found["parallel"], found["processes"], found["devices"]) == ("split", 1, ["cpu"])
    assert (len(found["peak_memory_bytes"]), found["chunks"]) == (1, 2)
    assert "parallel=split is a no-op on one device" in " ".join(found["notes"])
    assert list(weights(read(run / "checkpoints" / "last.pt"))) == list(ConvNet(1, 10).state_dict())
    shell.evaluate(f"ckpt={run}", "trust=true", "parallel=none", "threads=1", code=0)
    assert len(metrics(run, "test_loss")) == 1


NONE_SUCH = "the network (ConvNet) has no such module; features, classifier and modules in them are"
LINES = {
    "[layer9]": f"layer9: {NONE_SUCH} allowed; name one of them",
    "[featres.3]": f"featres.3: {NONE_SUCH} allowed; did you mean features.3?",
    "[features]": "[features]: no module would be on the first device; ",
    "[classifier,features.3]": "[classifier, features.3]: a device would have no module; the "
    "network has them in the order features.3, classifier; ",
}


@pytest.mark.parametrize(("at", "line"), LINES.items(), ids=LINES)
def test_cuts_that_the_network_does_not_have_are_one_line_on_one_device_too(
    at: str, line: str
) -> None:
    with pytest.raises(ConfigError) as caught, ours.training(*SPLIT, f"parallel.at={at}"):
        pass
    assert str(caught.value).startswith(f"error: parallel.at={line}")


REFUSED = {
    ("parallel.processes=2",): "parallel.processes=2: parallel=split runs in 1 process; ",
    ("parallel.devices=[cuda:3]",): "parallel.devices=[cuda:3]: there is no GPU 3; ",
    ("parallel.devices=[0,cpu]",): "parallel.devices=[0, cpu]: cpu is not the first device; ",
    ("parallel.devices=[0,cuda:0]",): "parallel.devices=[0, cuda:0]: not allowed; auto, null, or",
    ("parallel.devices=[gpu]",): "parallel.devices=[gpu]: not allowed; auto, null, or a list",
    ("parallel.at=layer3",): "parallel.at=layer3: not allowed; a list of different names of",
    ("parallel.chunks=0",): "parallel.chunks=0: not allowed; a whole number of at least 1",
    ("parallel.devices=[0,1,2]", "parallel.at=[a]"): "parallel.at=[a]: it cuts the network into 2 "
    "parts; parallel.devices=[0, 1, 2] are 3 devices; ",
    ("parallel.devices=[0,1]", "compile=true"): "compile.mode=default: parallel.devices=[0, 1] are",
    ("parallel.devices=[cpu,0]", "amp=autocast"): "amp.dtype=auto: it is entered for one kind of",
    ("parallel.devices=[cpu,0]", "amp.scaler=true"): "amp.scaler=true: a GradScaler is of one ",
    ("parallel.devices=[cpu,0]", "on_nonfinite=skip"): "on_nonfinite=skip: it takes a GradScaler",
    ("parallel.devices=[cpu,0]", "device=cpu"): "parallel.devices=[cpu, 0]: these are GPUs, ",
    ("device=cuda:1",): "device=cuda:1: this strategy takes several GPUs; ",
}


@pytest.mark.parametrize(("how", "line"), REFUSED.items(), ids=lambda value: str(value)[:60])
def test_what_cannot_be_honored_is_refused_before_a_process_starts(
    how: tuple[str, ...], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ours.job(*SPLIT, *how)
    assert str(caught.value).startswith(f"error: {line}")


def test_each_row_of_its_table_has_an_example_here() -> None:
    said = []
    for how in REFUSED:
        with pytest.raises(ConfigError) as caught:
            ours.job(*SPLIT, *how)
        said.append(f"{caught.value.field}: {caught.value.wrong}")
    patterns = [f"{row.field}: {re.sub('{.+?}', '.+', row.wrong)}" for row in ROWS]
    assert [each for each in patterns if not any(re.fullmatch(each, one) for one in said)] == []


@pytest.mark.parametrize(
    ("value", "fine"),
    [(["layer3"], True), (["features.3", "classifier"], True), ([4], True), ("auto", True),
     (None, False), ("layer3", False), ([], False), ([""], False), (["a", "a"], False),
     ([4, "4"], False), ([1.5], False)],
)  # fmt: skip
def test_cuts_are_a_list_of_different_names(value: Any, fine: bool) -> None:
    assert accepts(of_class("split.Split")["at"].kind, value) == fine


def test_the_devices_are_all_gpus_or_as_many_as_there_are_parts() -> None:
    assert Split()._devices(0) == ["cpu"]
    assert Split()._devices(3) == ["cuda:0", "cuda:1", "cuda:2"]
    assert Split(devices="auto", at=["a"])._devices(3) == ["cuda:0", "cuda:1"]
    assert Split(at=["a", "b"])._devices(1) == ["cuda:0"]
    assert Split(device="cpu")._devices(3) == ["cpu"]
    assert Split(devices=[2, "cuda:0"])._devices(3) == ["cuda:2", "cuda:0"]
    assert Split(devices=["cpu", 0])._devices(1) == ["cpu", "cuda:0"]
    with pytest.raises(ConfigError, match=r"at=\[a, b\]: .* 3 parts; 2 GPUs found; name 1"):
        Split(at=["a", "b"])._devices(2)


def test_more_devices_than_modules_are_refused() -> None:
    said = (
        r"^error: parallel.at=auto: more devices than parts; the network has 2 modules to put on 3"
    )
    with pytest.raises(ConfigError, match=said):
        cut(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), None, 3)


class OfTwoDevices(nn.Module):
    """Fails as PyTorch does where it gets values of two devices."""

    def forward(self, inputs: Tensor) -> Tensor:
        raise RuntimeError(f"{MIXED}, but found cuda:0 and cuda:1!")


@pytest.mark.parametrize(("cuts", "value"), [(None, "auto"), (["2", "4"], "[2, 4]")])
def test_values_of_two_devices_are_told_with_the_cuts_that_were_set(
    cuts: list[str] | None, value: str
) -> None:
    chunks = Chunks(Objective(OfTwoDevices(), Classification(2)), 1, TWO.devices, cuts)
    with pytest.raises(ConfigError) as caught:
        chunks(torch.ones(2, 2), torch.zeros(2, dtype=torch.long))
    assert str(caught.value).startswith(f"error: parallel.at={value}: the network computes with ")


def test_a_parameter_of_two_parts_is_refused() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    network[2].weight = network[0].weight
    objective = Objective(network, Classification(2))
    with pytest.raises(ConfigError, match=r"parallel.at=2: it has a parameter that another"):
        Split(at=["2"]).wrap(objective, TWO)


def test_what_a_module_gets_is_moved_in_containers_too() -> None:
    meta = torch.device("meta")
    value = torch.ones(2)
    found = moved((value, [value, {"a": value, "b": 3}], "text", None), meta)
    assert found[0].device == found[1][0].device == found[1][1]["a"].device == meta
    assert (found[1][1]["b"], *found[2:]) == (3, "text", None)
    assert value.device == CPU
    assert moved(value, CPU) is value


def test_autocast_is_not_entered_for_one_of_two_kinds_of_device() -> None:
    both = RankContext(0, 1, CPU, devices=(CPU, GPUS[0]))
    kernels.require_one_kind(Amp("float32"), both)
    kernels.require_one_kind(Amp("bfloat16"), TWO)
    with pytest.raises(ConfigError, match=r"amp.dtype=bfloat16: it is entered for one kind"):
        kernels.require_one_kind(Amp("bfloat16"), both)


def test_a_report_has_a_row_for_it() -> None:
    runs = [reported(parallel, seed=seed) for parallel in ("none", "split") for seed in (0, 1)]
    found = [run_of_result({**run, "folder": str(n)}) for n, run in enumerate(runs)]
    recording = Recording(found, {}, (), ())
    [group] = built(recording).groups
    assert [cell.label for cell in group.shown] == ["none, fp32", "split, fp32"]


@pytest.mark.gpu
def test_the_cpu_and_a_gpu_train_digits_to_the_losses_of_none(shell: Shell) -> None:
    job = ["max_steps=30", "log_every=1", "logger=quiet", "amp=fp32"]
    both = [*OWN, "parallel.devices=[cpu,cuda:0]"]
    commands = {
        "none": [*job, "device=cpu"],
        "split": [*both, *job, "clip_grad_norm=1000", "ema=0.9"],
        "chunks": [*both, *job, "parallel.chunks=2", "parallel.at=[classifier]"],
    }
    for name, command in commands.items():
        shell.train(*command, f"hydra.run.dir={name}", code=0)
    none, split, chunks = (metrics(shell.folder / name, "loss") for name in commands)
    assert split == pytest.approx(none, abs=1e-5, rel=0)
    assert chunks == pytest.approx(none, abs=1e-5, rel=0)
    found = result(shell.folder / "split")
    assert found["devices"][0] == "cpu"
    assert len(found["peak_memory_bytes"]) == len(found["devices"]) == 2
    assert all(found["peak_memory_bytes"])
    shell.train(*both, "resume=split", "max_steps=35", code=0)
    shell.evaluate("ckpt=split", "trust=true", "device=cpu", code=0)
