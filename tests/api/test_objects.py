"""What no comparison can use is refused in one line, before anything is written or started."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

import ninefold
from ninefold.api import FILE, parts
from ninefold.api.compare import new_folder
from ninefold.api.objects import gather
from ninefold.config.untrusted import unknown
from ninefold.errors import ConfigError, Failure, ResourceError
from ninefold.files import sha256_of

X, Y = torch.randn(20, 4), torch.randint(0, 3, (20,))
LOSS = nn.functional.cross_entropy


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def net() -> nn.Module:
    return nn.Linear(4, 3)


class Headless(nn.Module):
    """As a LightningModule whose training_step alone calls its layers."""


Call = Callable[[], object]


def comparing(*given: Any, **named: Any) -> Call:
    return lambda: ninefold.compare(*given, **named)


def comparing_loader(**its: Any) -> Call:
    return comparing(net, DataLoader(TensorDataset(X, Y), **its), LOSS)


def comparing_in_place() -> None:
    model = net()
    model.compile()
    ninefold.compare(model, (X, Y), LOSS)


NET = net()
REFUSED: list[tuple[str, Call]] = [
    ("seeds='3': it is no number of runs; .*; correct it", comparing(net, (X, Y), LOSS, seeds="3")),
    ("seeds=0: it is no number of runs; .*; correct it", comparing(net, (X, Y), LOSS, seeds=0)),
    ("model=Linear: it is on meta; .*model.cpu()", comparing(net().to("meta"), (X, Y), LOSS)),
    ("model=Headless: it has no forward.*model.training_step", comparing(Headless(), (X, Y), LOSS)),
    ("model=DataParallel: .*; give the module in it", comparing(nn.DataParallel(net()), X, LOSS)),
    ("model=OptimizedModule: .*; give the plain",
     lambda: ninefold.compare(torch.compile(net()), (X, Y), LOSS)),
    ("model=Linear: its Linear is compiled; .*overrides=.'compile=true'.", comparing_in_place),
    ("model=str: it cannot be called", comparing("resnet18", (X, Y), LOSS)),
    ("model=TensorDataset: .*; the model comes first", comparing(TensorDataset(X, Y), net, LOSS)),
    ("dataset=Endless: it cannot be shuffled .*ninefold bench", comparing(net, Endless(), LOSS)),
    ("dataset=tensors on meta: .*tensor.cpu", comparing(net, (X.to("meta"), Y), LOSS)),
    ("dataset=20 inputs: there are 19 targets", comparing(net, (X, Y[1:]), LOSS)),
    ("dataset=arrays: plain tensors do not hold", comparing(net, (X.to_sparse(), Y), LOSS)),
    ("dataset=arrays: plain .*; convert them", comparing(net, (X, np.array(["a"] * 20)), LOSS)),
    ("dataset=arrays: plain .*; convert them", comparing(net, (X, ["a"] * 20), LOSS)),
    (
        "dataset=tuple: it has 3 arrays, .*TensorDataset.a, b, targets., and overrides=.'dataset.k",
        comparing(net, (X, X, Y), LOSS),
    ),
    ("dataset=tuple: it has 2 arrays, which are no", comparing(net, ((X, X), Y), LOSS)),
    ("dataset=list: it has 2 arrays, .* a tuple: .inputs, t", comparing(net, [X, Y], LOSS)),
    (
        "dataset=dict: it holds datasets by name; there: train, test; .*, such as dataset.'train'.",
        comparing(net, {"train": TensorDataset(X, Y), "test": TensorDataset(X, Y)}, LOSS),
    ),
    (
        "dataset=DataLoader: its worker_init_fn is its own .*, and each item is seeded; leave it",
        comparing_loader(worker_init_fn=torch.manual_seed),
    ),
    (
        "dataset=DataLoader: its sampler is its own .RandomSampler",
        comparing_loader(sampler=RandomSampler(range(20), num_samples=10)),
    ),
    (
        "dataset=DataLoader: its batch_sampler is its own .*ninefold bench --precisions",
        comparing_loader(batch_sampler=BatchSampler(SequentialSampler(range(20)), 4, True)),
    ),
    (
        "dataset=Linear: it is a model; compare.model, dataset, loss. is the order; swap",
        comparing((X, Y), net(), LOSS),
    ),
    ("loss=str: it cannot be called", comparing(net, (X, Y), "mse")),
    (
        "optimizer=list: it cannot be called; .* a loop of several with ninefold.time_steps",
        comparing(net, (X, Y), LOSS, optimizer=[torch.optim.SGD(net().parameters(), 0.1)] * 2),
    ),
    ("forward=forward: it is a method of .*; pass lambda model, batch: model.forward.batch",
     comparing(NET, (X, Y), None, forward=NET.forward)),
    ("model=Headless: it has no forward", comparing(Headless, (X, Y), LOSS)),
    ("loss=cross_entropy: there is a forward=", comparing(net, (X, Y), LOSS, forward=LOSS)),
    (
        "loss=None: there is no forward= .*model.training_step",
        comparing(net, (X, Y), None),
    ),
    (
        "loss=CrossEntropyLoss: it is a class; .*; pass CrossEntropyLoss..$",
        comparing(net, (X, Y), nn.CrossEntropyLoss),
    ),
    (
        "optimizer=adam: .*; adamw, sgd, or a function .*torch.optim.Adam.parameters",
        comparing(net, (X, Y), LOSS, optimizer="adam"),
    ),
    (
        "optimizer=SGD: it holds the parameters of another model; .*lambda parameters",
        comparing(net, (X, Y), LOSS, optimizer=torch.optim.SGD(net().parameters(), 0.1)),
    ),
    ("ask=score: there is no test set", comparing(net, (X, Y), LOSS, ask=("time", "score"))),
    ("ask=score: there is no test set", comparing(net, (X, Y), LOSS, ask="time, score")),
]  # fmt: skip


@pytest.mark.parametrize(("line", "call"), REFUSED, ids=[line[:30] for line, _ in REFUSED])
def test_it_is_refused_before_anything_is_written(
    line: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failure, match=f"^error: {line}") as refused:
        call()
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_comparisons_that_start_together_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "now")
    assert [new_folder(None).name for _ in range(3)] == ["now", "now_", "now__"]
    Path("gone").symlink_to("nowhere")
    with pytest.raises(ResourceError, match="folder=gone/mine: it cannot be written to"):
        new_folder("gone/mine")
    new_folder("mine")
    with pytest.raises(ConfigError, match="folder=mine: it holds a comparison already; "):
        new_folder("mine")


def test_a_comparison_whose_objects_cannot_be_written_leaves_no_folder(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"model=function: it cannot be copied.*lock"):
        ninefold.compare(lambda: lock, (X, Y), LOSS, folder=tmp_path / "made")
    assert not list(tmp_path.iterdir())


def test_of_a_loader_what_a_key_can_say_is_taken_and_what_differs_is_a_note() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, num_workers=2)
    test = DataLoader(TensorDataset(X, Y), batch_size=3)
    found = gather(net, loader, LOSS, test, None, None, "adamw", ("time",))
    keys = {"batch_size": 5, "loader.workers": 2, "loader.pinned": "false", "optimizer": "adamw"}
    assert found.keys == {**keys, "dataset.resident": "false"}  # so that its loading is measured
    assert len(found.parts["dataset"]["train"]) == len(found.parts["dataset"]["test"]) == 20
    assert re.search("shuffled by the seed.* incomplete batch is dropped", found.notes[0])
    assert re.search("two arrays are slices, which threads read", found.notes[1])
    assert found.notes[2] == (
        "Of the DataLoader given as test, all of the dataset is used, and its collate_fn."
    )
    pinned = DataLoader(TensorDataset(X, Y), pin_memory=True)
    kept = gather(net, pinned, LOSS, None, None, None, torch.optim.SGD, ("time",)).keys
    assert kept == {"batch_size": 1, "loader.workers": 0, "dataset.resident": "false"}


def test_a_sampler_that_gives_each_item_once_is_taken_in_whatever_order() -> None:
    """The seed shuffles anew, in each configuration alike."""
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, sampler=[*reversed(range(20))])
    assert gather(net, loader, LOSS, None, None, None, "sgd", ["time"]).keys["batch_size"] == 4


@pytest.mark.parametrize(
    "items",
    [
        [(torch.rand(30), torch.zeros(30))] * 20,
        [torch.rand(30)] * 20,
        [*np.zeros((20, 30))],
    ],
)
def test_a_list_of_things_of_one_kind_is_a_list_of_items(items: list[Any]) -> None:
    assert gather(net, items, LOSS, None, None, None, "sgd", ["time"]).parts["dataset"]


def test_options_are_named_after_the_objects_and_never_like_ours() -> None:
    class Digits(TensorDataset):
        pass

    def convnet() -> nn.Module:
        return net()

    one = gather(convnet, Digits(X, Y, Y), lambda o, t: o, None, None, None, "sgd", ())
    assert one.names == {"model": "convnet_own", "dataset": "Digits", "task": "function"}
    pair = gather(net, (X.numpy(), Y.numpy()), nn.MSELoss(), None, None, None, "sgd", ())
    assert pair.names == {"model": "net", "dataset": "arrays", "task": "MSELoss"}
    assert pair.parts["dataset"]["train"].inputs.dtype == np.float32


@pytest.mark.parametrize("pair", [(X, Y.tolist()), (X[:, 0].tolist(), Y)])
def test_of_a_pair_of_arrays_one_may_be_a_list_of_numbers(pair: Any) -> None:
    found = gather(net, pair, LOSS, None, None, None, "adamw", ["time"]).parts["dataset"]["train"]
    assert np.array_equal(found.inputs, pair[0])
    assert np.array_equal(found.targets, pair[1])


def test_a_stored_job_may_not_name_objects() -> None:
    stored = {"model": {"net": {"_target_": f"{parts.__name__}.network"}}}
    assert dict(unknown(stored)) == {"model.net._target_": "ninefold.api.parts.network"}


def test_float64_arrays_are_said_to_become_float32() -> None:
    found = gather(net, (X.double(), Y), LOSS, None, None, None, "adamw", ("time",))
    assert "The float64 numbers of dataset are taken as float32." in found.notes
    assert found.parts["dataset"]["train"].inputs.dtype == np.float32


def written(folder: Path, model: Any, optimizer: Any = "adamw") -> tuple[str, str]:
    """The file of objects, and its sha256."""
    gather(model, (X, Y), LOSS, None, None, None, optimizer, ("time",)).write(folder)
    return str(folder / FILE), sha256_of(folder / FILE)


def test_buffers_of_a_given_network_can_be_resized(tmp_path: Path) -> None:
    """As observers of quantization resize theirs."""
    given = net()
    given.register_buffer("seen", torch.ones(1))
    found = parts.network(*written(tmp_path, given), "net")
    assert found.get_buffer("seen").resize_(8).tolist()[0] == 1


def failing(*parameters: Any) -> Any:
    raise TypeError("no betas")


def test_functions_that_fail_in_a_run_are_named_as_arguments(tmp_path: Path) -> None:
    file = written(tmp_path, failing, failing)
    with pytest.raises(ConfigError, match=r"model=failing: the function .*TypeError: no betas"):
        parts.network(*file, "failing")
    with pytest.raises(ConfigError, match=r"optimizer=failing: the function .*TypeError: no betas"):
        parts.optimizer([], *file, "failing")


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (lambda: net().bfloat16(), r"its weights are bfloat16; .*\.float\(\)"),
        (nn.Sequential(net(), nn.Linear(3, 3).half()), "its weights are float16; "),
        (lambda: nn.Sequential(net(), nn.LazyLinear(3)), "its LazyLinear has no weights yet; "),
        (nn.LazyBatchNorm1d(), "its LazyBatchNorm1d has no weights yet; .*; call it once with a b"),
    ],
    ids=["bfloat16", "float16 in part", "made lazy", "lazy"],
)
def test_weights_that_are_not_of_float32_or_not_there_are_refused(
    model: Any, line: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^error: model=Net: {line}"):
        parts.network(*written(tmp_path, model), "Net")
