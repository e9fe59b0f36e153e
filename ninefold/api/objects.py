"""What a caller of `ninefold.compare` gives: checked, named, and put into files for a command."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from ninefold.api import FILE, NOTES, OPTIONS, capsule
from ninefold.api.data import Collating, Pair
from ninefold.api.parts import ACCURACY
from ninefold.dataset.items import in_network_dtype, is_by_number
from ninefold.errors import ConfigError, ResourceError
from ninefold.files import write_json, write_text
from ninefold.numbers import counted, plural
from ninefold.places import option_files

DIGITS = 12  # of a sha256, where a person sees it
AS_IT_IS = "compare your script as it is: ninefold bench --precisions fp32,bf16"
PARTS = "ninefold.api.parts."
DATASET = {
    "_target_": "ninefold.api.data.CallersDataset",
    "_recursive_": False,
    "flip": False,
    "resident": "auto",
    **dict.fromkeys(("crop", "val"), 0),
    **dict.fromkeys(("root", "limit", "classes", "shape", "mean", "std", "keys")),
}


@dataclass(frozen=True)
class Objects:
    """The objects of a comparison.

    parts: the objects, by their names in the file. names: of the options that are made of them, by
        group.
    keys: those that the training DataLoader has, and an optimizer that was named.
    measured: what the task scores by, None for the loss.
    notes: sentences on how the objects are used, for the answer.
    """

    parts: dict[str, Any]
    names: dict[str, str]
    keys: dict[str, Any]
    measured: str | None
    notes: list[str]

    def write(self, folder: Path) -> dict[str, str]:
        """Write them and the options that name them; return the option of each group.

        Raises ConfigError, ResourceError.
        """
        path = folder.absolute() / FILE
        titles = {part: self.names.get(part, part) for part in self.parts}
        titles |= {"loss": self.names["task"]}
        with needing_room(folder):
            sha256 = capsule.write(path, self.parts, titles)
            write_json(folder / NOTES, self.notes)
            # So that runs of other objects with the same names are not taken for runs of these.
            chosen = {**self.names, "task": f"{self.names['task'][:40]}-{sha256[:DIGITS]}"}
            for group, option in chosen.items():
                target = folder / OPTIONS / group / f"{option}.yaml"
                target.parent.mkdir(parents=True, exist_ok=True)
                content = self._option(group, {"file": str(path), "sha256": sha256})
                write_text(target, yaml.safe_dump(content, sort_keys=False))
        return chosen

    def _option(self, group: str, file: dict[str, Any]) -> dict[str, Any]:
        """The option of a group. file: its keys that name the file of objects."""
        named = {**file, "name": self.names[group]}
        if group == "model":
            net = {"_target_": f"{PARTS}network", **named}
            layout = "contiguous_format"
            return {"net": net, "input_size": None, "output": None, "memory_format": layout}
        if group == "dataset":
            tested = self.parts["dataset"]["test"] is not None
            whole = self.parts["forward"] is not None
            return {**DATASET, **file, "whole": whole, "tested": tested}
        if group == "task":
            return {"_target_": f"{PARTS}CallersTask", **file, "measured": self.measured}
        return {"_target_": f"{PARTS}optimizer", "_partial_": True, **named}


@contextmanager
def needing_room(folder: Path) -> Iterator[None]:
    """A context in which files are written to a folder. Raises ResourceError."""
    try:
        yield
    except OSError as error:
        wrong = f"it cannot be written to ({error.strerror or error})"
        allowed = "a folder with room for the data is needed"
        do = "set folder=, or TMPDIR"
        raise ResourceError("folder", folder, wrong, allowed, do) from error


def gather(
    model: Any,
    dataset: Any,
    loss: Any,
    test: Any,
    metric: Any,
    forward: Any,
    optimizer: Any,
    ask: Sequence[str],
) -> Objects:
    """Check what the caller gives. Raises ConfigError for what no comparison can use."""
    notes: list[str] = []
    train, keys = _dataset("dataset", dataset, notes)
    tested = None if test is None else _dataset("test", test, notes)[0]
    if isinstance(train, Collating) and not isinstance(tested, Collating | None):
        tested = _collated_too(test, train)
    _require_model(model)
    if forward is None:
        _require_forward(model)
    if isinstance(model, nn.Module):
        notes.append("The weights of the network that was given are the first ones of every run.")
    if test is None:
        notes.append("No test set was given: the training examples stand for it.")
    _require_functions(loss, metric, forward)
    measured = _measured(ask, test, metric, forward)
    data = {"train": train, "test": tested}
    parts = {"model": model, "dataset": data, "loss": loss, "metric": metric, "forward": forward}
    names = {"model": name_of(model), "dataset": _name_of_data(dataset)}
    names["task"] = name_of(loss if forward is None else forward)
    _require_optimizer(optimizer)
    if isinstance(optimizer, str):
        keys["optimizer"] = optimizer
    else:
        parts["optimizer"], names["optimizer"] = optimizer, name_of(optimizer)
    options = {group: _option_name(group, name) for group, name in names.items()}
    return Objects(parts, options, keys, measured, notes)


def held_on_gpus() -> list[str]:
    """A sentence on the GPU memory that this process holds, if it has used any."""
    if not torch.cuda.is_initialized():
        return []
    held = sum(map(torch.cuda.memory_reserved, range(torch.cuda.device_count()))) / 2**20
    return [
        f"The calling process held {held:.0f} MiB of GPU memory, and CUDA's own, which no "
        "configuration could use."
    ]


def _require_functions(loss: Any, metric: Any, forward: Any) -> None:
    if forward is None and loss is None:
        wrong = "there is no forward= that returns it"
        do = (
            "pass "
            "forward=lambda model, batch: model(**batch).loss, or of a LightningModule "
            "model.training_step(batch, 0)"
        )
        raise ConfigError("loss", "None", wrong, "one of the two is needed", do)
    if forward is None and isinstance(loss, type):
        allowed = "loss(output, target) is allowed"
        do = f"pass {loss.__name__}()"
        raise ConfigError("loss", loss.__name__, "it is a class", allowed, do)
    if forward is None:
        _require_callable("loss", loss, "loss(output, target)")
    elif loss is not None:
        wrong = "there is a forward=, which returns the loss"
        raise ConfigError("loss", name_of(loss), wrong, "one of the two is allowed", "pass None")
    for name, given in (("forward", forward), ("metric", metric)):
        if given is not None:
            _require_callable(name, given, f"{name}(...)")
    if isinstance(getattr(forward, "__self__", None), nn.Module):
        name = name_of(forward)
        wrong = "it is a method of a model, of which copies are trained"
        do = f"pass lambda model, batch: model.{name}(batch), for Lightning model.{name}(batch, 0)"
        raise ConfigError("forward", name, wrong, "forward(model, batch) is allowed", do)
    if forward is not None and metric is not None:
        wrong = "with forward= there is no output to measure"
        allowed = "the loss is the score there"
        raise ConfigError("metric", name_of(metric), wrong, allowed, "leave it out")


def _measured(ask: Sequence[str], test: Any, metric: Any, forward: Any) -> str | None:
    """What evaluations score by: the metric's name, ACCURACY, or None for the loss."""
    if "score" in ask and test is None:
        wrong = "there is no test set to measure it on"
        do = "pass one, or ask for time alone"
        raise ConfigError("ask", "score", wrong, "test=DATASET is needed", do)
    if metric is not None:
        return _option_name("metric", name_of(metric))
    return ACCURACY if "score" in ask and forward is None else None


def _require_model(model: Any) -> None:
    name = name_of(model)
    if not isinstance(model, nn.Module):
        if hasattr(type(model), "__getitem__") and not isinstance(model, str):
            wrong = "it has items, as a dataset"
            allowed = "the model comes first, then the dataset, then the loss"
            raise ConfigError("model", name, wrong, allowed, "give them in this order")
        _require_callable(
            "model", model, "a function that returns one, first in compare(model, dataset, loss),"
        )
        return
    wrapped = {
        "DistributedDataParallel": "give the module in it (.module)",
        "DataParallel": "give the module in it (.module)",
        "FullyShardedDataParallel": "give the plain module",
        "OptimizedModule": "give the plain module, and overrides=['compile=true']",
    }
    for module in model.modules():
        kind = type(module).__name__
        if kind in wrapped and type(module).__module__.startswith("torch."):
            allowed = "what is compared wraps the plain module by itself"
            raise ConfigError("model", name, f"it has a {kind} in it", allowed, wrapped[kind])
        if getattr(module, "_compiled_call_impl", None) is not None:  # which no copy of it has
            allowed = "what is compared compiles the plain module by itself"
            do = "give it before .compile(), and overrides=['compile=true']"
            raise ConfigError("model", name, f"its {kind} is compiled", allowed, do)
    places = {str(value.device) for value in (*model.parameters(), *model.buffers())} - {"cpu"}
    if places:
        allowed = "a module on the CPU is allowed, which each process moves by itself"
        do = "give a function that makes it, or model.cpu()"
        raise ConfigError("model", name, f"it is on {', '.join(sorted(places))}", allowed, do)


def _require_forward(model: Any) -> None:
    """Raise ConfigError for a network that cannot be called, as a LightningModule without forward.

    That of a function is known when it is made.
    """
    own = getattr(model, "forward", None)
    own = getattr(own, "__func__", own)  # of an instance it is a method
    if own is nn.Module.forward or getattr(own, "__qualname__", "") == "LightningModule.forward":
        wrong = "it has no forward, whose output loss(output, target) would take"
        allowed = "a forward=, which returns the loss, is allowed"
        do = "pass loss=None and forward=lambda model, batch: ..., such as of a LightningModule "
        do += "model.training_step(batch, 0)"
        raise ConfigError("model", name_of(model), wrong, allowed, do)


def _require_callable(name: str, given: Any, wanted: str, do: str = "pass that") -> None:
    if not callable(given):
        allowed = f"{wanted} is allowed"
        raise ConfigError(name, type(given).__name__, "it cannot be called", allowed, do)


def _require_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, str):
        if option_files("optimizer", optimizer):
            return
        names = [n for n in dir(torch.optim) if n.lower() == optimizer.lower() and n != "LBFGS"]
        allowed = "adamw, sgd, or a function of parameters is allowed"
        do = f"pass lambda parameters: torch.optim.{(*names, 'SGD')[0]}(parameters, lr=...)"
        raise ConfigError("optimizer", optimizer, "there is no such option", allowed, do)
    if isinstance(optimizer, torch.optim.Optimizer):
        wrong = "it holds the parameters of another model"
        allowed = "a function of parameters is allowed"
        do = f"pass lambda parameters: torch.optim.{type(optimizer).__name__}(parameters, ...)"
        raise ConfigError("optimizer", type(optimizer).__name__, wrong, allowed, do)
    wanted = "adamw, sgd, or a function of parameters"
    do = "pass that, or time a loop of several with ninefold.time_steps"
    _require_callable("optimizer", optimizer, wanted, do)


def _dataset(
    name: str, data: Any, notes: list[str], collated: bool = False
) -> tuple[Any, dict[str, Any]]:
    """The data as it will be pickled, and a DataLoader's values of keys; adds to `notes`.

    collated: whether a collate_fn gets its items as they are.
    """
    if isinstance(data, nn.Module) or (isinstance(data, type) and issubclass(data, nn.Module)):
        allowed = "compare(model, dataset, loss) is the order"
        raise ConfigError(name, name_of(data), "it is a model", allowed, "swap the two")
    if isinstance(data, DataLoader):
        own = data.collate_fn is not default_collate
        found = _dataset(name, data.dataset, notes, own)[0]
        _require_plain(name, data)
        if own:
            found = Collating(data.dataset, data.collate_fn)
        if name == "test":
            notes.append(
                "Of the DataLoader given as test, all of the dataset is used, and its collate_fn."
            )
            return found, {}
        notes.append(
            "Of the DataLoader given as dataset, dataset, batch_size, collate_fn, num_workers and "
            "pin_memory are used: each epoch is shuffled by the seed, the same in all "
            "configurations, and its last incomplete batch is dropped."
        )
        if isinstance(found, Pair):
            notes.append(
                "Without forward= batches of its two arrays are slices, which threads read in "
                "place of worker processes."
            )
        pinned = {} if data.pin_memory else {"loader.pinned": "false"}  # true is refused on a CPU
        keys = {"batch_size": data.batch_size, "loader.workers": data.num_workers, **pinned}
        return found, {**keys, "dataset.resident": "false"}  # which would leave out the loading
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if _is_pair(data):
        data = tuple(each if isinstance(each, Tensor) else np.asanyarray(each) for each in data)
        if any(str(array.dtype).endswith("float64") for array in data) and not collated:
            notes.append(f"The float64 numbers of {name} are taken as float32.")
        return _pair(name, *data), {}
    if isinstance(data, tuple | list) and _are_columns(data):
        wrong = f"it has {len(data)} arrays, which are no examples"
        allowed = "a pair of arrays is a tuple: (inputs, targets)"
        do = "of several inputs give TensorDataset(a, b, targets), and "
        do += "overrides=['dataset.keys=[[0,1],2]']"
        raise ConfigError(name, type(data).__name__, wrong, allowed, do)
    if not (is_by_number(data) or callable(data)) or isinstance(data, dict | str | bytes):
        splits = [*data] if isinstance(data, dict) and all(map(_has_items, data.values())) else []
        if splits:
            allowed = f"there: {', '.join(map(str, splits))}"
            do = f"give one of them, such as {name}[{splits[0]!r}]"
            raise ConfigError(name, type(data).__name__, "it holds datasets by name", allowed, do)
        allowed = "a dataset with __len__ and __getitem__, a pair of arrays, or a function that "
        allowed += "returns a dataset is allowed"
        do = f"give its items as a list, if they fit into memory, or {AS_IT_IS}"
        wrong = "it cannot be shuffled by a seed"
        raise ConfigError(name, type(data).__name__, wrong, allowed, do)
    return data, {}


def _collated_too(test: Any, train: Collating) -> Collating:
    """A test set beside a training set with a collate_fn, which is its own too without a loader."""
    if isinstance(test, DataLoader):
        return Collating(test.dataset, test.collate_fn)
    if _is_pair(test):
        test = TensorDataset(*map(_as_tensor, test))
    return Collating(test, train.collate)


def _require_plain(name: str, loader: Any) -> None:
    """Raise ConfigError if a DataLoader has a part of its own, which no cell would use."""
    for part, plain, allowed, do in (
        (
            "batch_sampler",
            loader.batch_size is not None,
            "each epoch is shuffled by the seed",
            f"give the dataset, and batch_size, or {AS_IT_IS}",
        ),
        (
            "sampler",
            _permutes(loader.sampler, len(loader.dataset)),
            "each epoch has every item once, shuffled by the seed",
            f"give the dataset, or {AS_IT_IS}",
        ),
        (
            "worker_init_fn",
            loader.worker_init_fn is None,
            "workers call none, and each item is seeded",
            "leave it out, or do what is no seeding where the dataset reads its first item",
        ),
    ):
        if not plain:
            given = getattr(loader, part)  # None of batch_size=None, where items are batches
            own = "None, as is its batch_size" if given is None else f"its own ({name_of(given)})"
            raise ConfigError(name, "DataLoader", f"its {part} is {own}", allowed, do)


def _permutes(sampler: Any, count: int) -> bool:
    """Whether an epoch of a sampler has each of `count` items once, in whatever order."""
    if type(sampler) is SequentialSampler or type(sampler) is RandomSampler:
        return not getattr(sampler, "replacement", False) and len(sampler) == count
    try:
        return sorted(itertools.islice(iter(sampler), count + 1)) == [*range(count)]
    except Exception:  # it is the user's, and gives other things than numbers
        return False


def _pair(name: str, inputs: Any, targets: Any) -> Pair:
    for array in (inputs, targets):
        if isinstance(array, Tensor) and array.device.type != "cpu":
            wrong = "other processes cannot read them there"
            allowed = "tensors on the CPU are allowed, which are stored once for all processes"
            do = "pass tensor.cpu()"
            raise ConfigError(name, f"tensors on {array.device}", wrong, allowed, do)
    if len(inputs) != len(targets) or not len(inputs):
        wrong = f"there {plural(targets, 'is', 'are')} {counted(targets, 'target')}"
        allowed = "as many of both, at least one, are needed"
        raise ConfigError(name, counted(inputs, "input"), wrong, allowed, "correct them")
    try:
        plain = [in_network_dtype(_as_tensor(array)).numpy() for array in (inputs, targets)]
    except (TypeError, ValueError) as error:  # text, sparse, another byte order
        wrong = f"plain tensors do not hold them ({error})"
        allowed = "integers, booleans and floats are allowed"
        do = "convert them, such as classes to their numbers"
        raise ConfigError(name, "arrays", wrong, allowed, do) from error
    return Pair(*plain)


def _as_tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.as_tensor(np.ascontiguousarray(array))


def _has_items(value: Any) -> bool:
    """Whether it is a dataset, and no column of one."""
    plain = isinstance(value, list | tuple | str) or _is_array(value)
    return not plain and is_by_number(value)


def _are_columns(data: Sequence[Any]) -> bool:
    """Whether they are arrays with a row for each example; four in a list are items."""
    few = isinstance(data, tuple) or len(data) < 4
    return few and 1 < len(data) < min(map(_rows, data))


def _rows(value: Any) -> int:
    """Rows of an array, or of arrays in a tuple or a list; 0: it is none of these."""
    if isinstance(value, tuple | list):
        return min(map(_rows, value), default=0)
    return len(value) if _is_array(value) else 0


def _is_pair(value: Any) -> bool:
    """Whether it is a tuple of two arrays, of which one may be a list of numbers or text."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return any(map(_is_array, value)) and all(map(_is_column, value))


def _is_column(value: Any) -> bool:
    plain = isinstance(value, list) and all(isinstance(each, Number | str) for each in value)
    return plain or _is_array(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0


def name_of(given: Any) -> str:
    """What an object is called: a function's name, or that of its class."""
    inner = getattr(given, "func", given)  # of functools.partial
    name = getattr(inner, "__name__", type(inner).__name__)
    return "function" if name == "<lambda>" else str(name)


def _name_of_data(data: Any) -> str:
    if isinstance(data, DataLoader):
        return _name_of_data(data.dataset)
    return "arrays" if isinstance(data, tuple) else name_of(data)


def _option_name(group: str, name: str) -> str:
    """`name` as that of an option, which none of ours has."""
    plain = re.sub(r"[^A-Za-z0-9_]", "", name)[:48].lstrip("_") or group
    while option_files(group, plain):
        plain += "_own"
    return plain
