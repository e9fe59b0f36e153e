"""Model parallelism in one process: parts of the network, in order, on several devices."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.engine.parallel import Parallel, RankContext, resolve_device
from ninefold.errors import ConfigError
from ninefold.machine import gpu_number
from ninefold.progress import say

AT = "parallel.at"
MIXED = "Expected all tensors to be on the same device"  # PyTorch's words
Part = tuple[str, nn.Module]


@dataclass(frozen=True)
class Split(Parallel):
    """Parts of the network on `devices`, in order: a batch goes through one after the other.

    devices: None or auto: all GPUs, or as many of them as `at` makes parts.
    chunks: loss and gradients are those of the whole batch, except for batch normalization, whose
        statistics are of a chunk.
    """

    device: str = "auto"
    processes: int = 1
    max_processes: int = 1
    devices: Sequence[int | str] | str | None = None
    at: Sequence[int | str] | str = "auto"
    chunks: int = 1

    @property
    def cuts(self) -> list[str] | None:
        """The names in `at`; None for auto."""
        return None if isinstance(self.at, str) else [str(name) for name in self.at]

    @contextmanager
    def join(self) -> Iterator[RankContext]:
        devices = self._devices(torch.cuda.device_count())
        for device in devices[::-1]:  # so that the first GPU is the current one
            resolve_device(device, 0)
        found = tuple(map(torch.device, devices))
        yield RankContext(0, 1, found[0], devices=found)

    def wrap(self, model: nn.Module, context: RankContext) -> nn.Module:
        network, count = model.get_submodule("network"), len(context.devices)
        parts = [] if self.cuts is None and count == 1 else cut(network, self.cuts, count)
        if count == 1:
            model.to(context.device)
            return model if self.chunks == 1 else Chunks(model, self.chunks)
        for line in put(network, parts, context.devices):
            say(f"parallel=split: {line}")
        return Chunks(model, self.chunks, context.devices, self.cuts)

    def no_op(self, context: RankContext) -> bool:
        return len(context.devices) == 1 and self.chunks == 1

    def notes(self, context: RankContext) -> list[str]:
        if len(context.devices) > 1:
            return []
        effect = "a batch is computed in chunks" if self.chunks > 1 else "it trains what none does"
        return [f"parallel=split is a no-op on one device: {effect}, and the network is not split."]

    def _devices(self, gpus: int) -> list[str]:
        """The names of the devices, of which there are so many GPUs. Raises ConfigError."""
        if isinstance(self.devices, Sequence) and not isinstance(self.devices, str):
            numbers = [gpu_number(device) for device in self.devices]
            return ["cpu" if number is None else f"cuda:{number}" for number in numbers]
        if self.device == "cpu" or not gpus:
            return [self.device if self.device == "cuda" else "cpu"]
        if self.cuts is not None and 1 < gpus < len(self.cuts) + 1:
            wrong = f"it cuts the network into {len(self.cuts) + 1} parts"
            do = f"name {gpus - 1} modules, or the devices in parallel.devices"
            raise ConfigError(AT, listed(self.cuts), wrong, f"{gpus} GPUs found", do)
        most = gpus if self.cuts is None else len(self.cuts) + 1
        return [f"cuda:{number}" for number in range(min(most, gpus))]


class Chunks(nn.Module):
    """An objective that computes a batch in parts, on whichever devices its network is.

    Each part is weighted by its examples, so that the loss and its gradients are those of the whole
    batch. Where the devices are GPUs, one works on a part while the next has the part before. An
    evaluation computes a batch at once.
    """

    def __init__(
        self,
        objective: nn.Module,
        chunks: int,
        devices: Sequence[torch.device] = (),
        cuts: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.objective = objective
        self.chunks = chunks
        self._devices = devices
        self._cuts = "auto" if cuts is None else listed(cuts)
        self._task_at: torch.device | None = None

    def forward(self, inputs: Tensor, targets: Tensor, measure: bool = False) -> Any:
        if measure:
            loss, sums = self._judged(inputs, targets, measure=True)
            return loss.to(inputs.device), sums.to(inputs.device)
        count = min(self.chunks, len(inputs))
        if count <= 1:
            return self._judged(inputs, targets).to(inputs.device)
        parts = zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True)
        losses = [self._judged(some, their) * (len(some) / len(inputs)) for some, their in parts]
        return torch.stack(losses).sum().to(inputs.device)

    def _judged(self, inputs: Tensor, targets: Tensor, measure: bool = False) -> Any:
        objective: Any = self.objective
        try:
            output = objective.network(inputs)
        except RuntimeError as error:
            if not self._devices or MIXED not in str(error):
                raise
            raise ConfigError(
                AT,
                self._cuts,
                f"the network computes with values of two devices ({error})",
                "what a module gets "
                "is moved to its device, what is computed outside of the modules that are cut is "
                "not",
                "cut elsewhere (parallel.at), or choose another strategy",
            ) from error
        if self._task_at != output.device and isinstance(objective.task, nn.Module):
            objective.task.to(output.device)
        self._task_at = output.device
        return objective.loss(output, moved(targets, output.device), measure)


def moved(value: Any, device: torch.device) -> Any:
    """`value` with the tensors in it, in tuples, lists and dictionaries too, on `device`."""
    if isinstance(value, Tensor):
        # To a GPU only: what a GPU copies to the CPU without a wait could be read too early.
        return value.to(device, non_blocking=device.type == "cuda")
    if isinstance(value, list):
        return [moved(each, device) for each in value]
    if isinstance(value, tuple):
        found = [moved(each, device) for each in value]
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    if isinstance(value, dict):
        kept = copy.copy(value)
        kept.update({key: moved(each, device) for key, each in value.items()})
        return kept
    return value


def put(
    network: nn.Module, parts: Sequence[Sequence[Part]], devices: Sequence[torch.device]
) -> list[str]:
    """Move each device's `parts` there, and have each be given its inputs there.

    Returns a line for each device. What other modules hold themselves goes to the device of the
    first part below them. Raises ConfigError if two devices would share a parameter.
    """
    places: dict[int, torch.device] = {}  # by the id of a part
    lines = []
    require_none_shared(parts)
    for device, own in zip(devices, parts, strict=True):
        for _, module in own:
            places[id(module)] = device
            module.to(device)
            module.register_forward_pre_hook(mover(device), with_kwargs=True)
        ends = own[0][0] if len(own) == 1 else f"{own[0][0]} to {own[-1][0]}"
        lines.append(f"{ends} on {device}, {sum(size(m) for _, m in own):,} parameters")
    inside = {id(below) for own in parts for _, part in own for below in part.modules()}
    for module in network.modules():
        if id(module) in inside:
            continue
        below = (places[id(each)] for each in module.modules() if id(each) in places)
        device = next(below, devices[0])
        move_own(module, device)
        if called(module):
            module.register_forward_pre_hook(mover(device), with_kwargs=True)
    return lines


def require_none_shared(parts: Sequence[Sequence[Part]]) -> None:
    """Raise ConfigError if a parameter is in the parts of two devices."""
    before: set[int] = set()
    for own in parts:
        here: set[int] = set()
        for name, module in own:
            if before & identities(module):
                wrong = "it has a parameter that another part has as well"
                allowed = "a parameter is on one device"
                raise ConfigError(AT, name, wrong, allowed, "cut elsewhere (parallel.at)")
            here |= identities(module)
        before |= here


def identities(module: nn.Module) -> set[int]:
    """The ids of its parameters."""
    return {id(parameter) for parameter in module.parameters()}


def size(module: nn.Module) -> int:
    """How many numbers its parameters are."""
    return sum(parameter.numel() for parameter in module.parameters())


def mover(device: torch.device) -> Any:
    """A forward pre-hook that moves what a module gets to `device`."""

    def move(module: nn.Module, inputs: Any, options: Any) -> Any:
        return moved(inputs, device), moved(options, device)

    return move


def move_own(module: nn.Module, device: torch.device) -> None:
    """Move the parameters and buffers of `module` itself, without those of modules below it."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(device)
    for name, buffer in list(module.named_buffers(recurse=False)):
        setattr(module, name, buffer.to(device))


def cut(network: nn.Module, cuts: Sequence[str] | None, count: int) -> list[list[Part]]:
    """The parts of `network`, by name, for each of `count` devices.

    Parts are its direct children, or smaller where one is cut inside. cuts: the names of those
    with which the next device begins; None: chosen. With one device the names are checked all the
    same. Raises ConfigError if there are no such modules, or they are not in their order.
    """
    around = list(levels(network))
    if cuts is None:
        return balanced(list(pieces(around[-1])), count)
    inner = next((m for m in reversed(around) if all(name in names(m) for name in cuts)), None)
    if inner is None:
        lacking = next(name for name in cuts if name not in names(around[-1]))
        raise no_such_module(around[-1], lacking)
    found: list[list[Part]] = [[]]
    left = list(cuts)
    for name, module in pieces(inner, cuts):
        while left and (name == left[0] or name.startswith(f"{left[0]}.")):
            left.pop(0)
            found.append([])
        found[-1].append((name, module))
    if left or not all(found):
        order = [name for name in names(inner) if name in cuts]
        first = not found[0] and not left
        raise ConfigError(
            AT,
            listed(cuts),
            "no module would be on the first device" if first else "a device would have no module",
            f"the network has them in the order {', '.join(order)}",
            "name modules in this order, not the first one",
        )
    return found if count > 1 else [[part for own in found for part in own]]


def levels(network: nn.Module) -> Iterator[nn.Module]:
    """`network`, and what it is wrapped around: the child that has all of its parameters."""
    yield network
    own = identities(network)
    for child in network.children():
        if own and identities(child) == own and next(child.children(), None) is not None:
            yield from levels(child)
            return


def pieces(
    module: nn.Module, cuts: Sequence[str] | None = None, prefix: str = ""
) -> Iterator[Part]:
    """The modules below `module`, in order: the largest that are called and have no cut inside.

    cuts: names; None: a cut may be between any two modules of a container.
    """
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        inside = any(each.startswith(f"{path}.") for each in cuts or ())
        opened = inside or not called(child) or (cuts is None and in_order(child))
        if opened and next(child.children(), None) is not None:
            yield from pieces(child, cuts, f"{path}.")
        else:
            yield path, child


def called(module: nn.Module) -> bool:
    """Whether it has a forward pass of its own, other than a ModuleList."""
    return type(module).forward is not nn.Module.forward


def in_order(module: nn.Module) -> bool:
    """Whether it calls its children one after the other, and nothing else."""
    return type(module).forward is nn.Sequential.forward


def balanced(parts: Sequence[Part], count: int) -> list[list[Part]]:
    """`parts` for `count` devices, in order, each with about the same number of parameters.

    Raises ConfigError if there are fewer.
    """
    if len(parts) < count:
        raise ConfigError(
            AT,
            "auto",
            "more devices than parts",
            f"the network has {len(parts)} modules to put on {count} devices",
            "name fewer devices in parallel.devices",
        )
    sizes = list(accumulate(size(module) for _, module in parts))
    ends = [0]
    for number in range(1, count):
        allowed = range(ends[-1] + 1, len(parts) - (count - number) + 1)
        wanted = sizes[-1] * number / count
        ends.append(min(allowed, key=lambda end: abs(sizes[end - 1] - wanted)))
    return [
        list(parts[start:end]) for start, end in zip(ends, [*ends[1:], len(parts)], strict=True)
    ]


def names(module: nn.Module) -> list[str]:
    """The names of all modules below `module`, in order."""
    return [name for name, _ in module.named_modules() if name]


def no_such_module(network: nn.Module, name: str) -> ConfigError:
    """The failure of `parallel.at` with the name of no module."""
    children = [child for child, _ in network.named_children()]
    near = difflib.get_close_matches(name, names(network), n=1)
    wrong = f"the network ({type(network).__name__}) has no such module"
    allowed = f"{', '.join(children)} and modules in them are allowed"
    do = f"{f'did you mean {near[0]}?' if near else 'name one of them'}"
    return ConfigError(AT, name, wrong, allowed, do)


def listed(cuts: Sequence[str]) -> str:
    """The names as they are written on a command line."""
    return f"[{', '.join(cuts)}]"
