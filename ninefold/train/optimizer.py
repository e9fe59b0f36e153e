"""Parameter groups of an optimizer, and momentum that starts at zero."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ninefold.errors import ConfigError, suggestion

UNFUSED = (
    "optimizer.fused is false here: PyTorch's fused optimizers take floating point parameters, and "
    "this network has complex ones."
)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of `model` that are trained, as torch's optimizers take them."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def fits_fused(model: nn.Module) -> bool:
    """Return whether torch's fused optimizers take the trained parameters: no complex ones."""
    return all(parameter.is_floating_point() for parameter in trained_parameters(model))


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step takes a function that computes the loss again, as LBFGS's does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def parameter_groups(model: nn.Module, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return trained parameters of `model` as torch's optimizers take them, in groups with options.

    groups: each with `match`, a glob of parameter names, and options such as lr and weight_decay.
    A parameter belongs to the first group it matches, or to the default one, which comes first.
    Raises ConfigError if a glob matches no parameter that an earlier one has not taken.
    """
    names = [name for name, _ in model.named_parameters()]
    left = {name: value for name, value in model.named_parameters() if value.requires_grad}
    found = []
    for number, group in enumerate(groups):
        glob = str(group["match"])
        matching = [name for name in left if fnmatchcase(name, glob)]
        if not matching:
            wrong = "it matches no parameter that is trained and that no earlier group has taken"
            allowed = suggestion(glob, names)
            do = "correct the glob or remove the group"
            raise ConfigError(f"optimizer.groups.{number}.match", glob, wrong, allowed, do)
        options = {key: value for key, value in group.items() if key != "match"}
        found.append({**options, "params": [left.pop(name) for name in matching]})
    if left:
        found.insert(0, {"params": list(left.values())})
    return found


def name_parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Sort the parameters of each group as `model` has them, and put their names beside them.

    A state_dict of torch's knows parameters by their position, and a user's optimizer that collects
    them in a set has them by their addresses: in another order in each process. The names, under
    torch's own key, are saved with the state.
    Raises ConfigError for a parameter that is none of the model's.
    """
    known = {id(value): (n, name) for n, (name, value) in enumerate(model.named_parameters())}
    for group in optimizer.param_groups:
        if any(id(value) not in known for value in group["params"]):
            wrong = (
                "it has a parameter that is none of the network's, which no checkpoint would hold"
            )
            allowed = "those that it is built with are allowed"
            do = "take them from its first argument"
            raise ConfigError("optimizer", type(optimizer).__name__, wrong, allowed, do)
        group["params"] = sorted(group["params"], key=lambda value: known[id(value)][0])
        group["param_names"] = [known[id(value)][1] for value in group["params"]]


def names_in(groups: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The names of the parameters in each group of an optimizer or of its state_dict."""
    return [list(group.get("param_names", ())) for group in groups]


def require_shapes(
    states: Mapping[int, Mapping[str, Any]], optimizer: torch.optim.Optimizer
) -> None:
    """Raise ValueError unless the saved `states` of torch's fused optimizers, whose kernels do not
    look, are shaped as their parameters.
    """
    fused = any(group.get("fused") for group in optimizer.param_groups)
    if not (fused and type(optimizer).__module__.startswith("torch.optim.")):
        return
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    for number, state in states.items():
        own = parameters[number].shape
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and name != "step" and value.shape != own:
                wrong = f"{list(value.shape)}, and that parameter {list(own)}"
                raise ValueError(f"{name} of parameter {number} in its optimizer is {wrong}")


def require_options(
    groups: Sequence[Mapping[str, Any]] | None, optimizer: torch.optim.Optimizer
) -> None:
    """Raise ConfigError for an option in `groups` that the optimizer lacks, or that is no number.

    torch keeps any option of a group, and looks at none. An infinite learning rate it takes
    anywhere, as from a class of the user's.
    """
    known = optimizer.defaults
    for number, group in enumerate(groups or ()):
        for option in sorted({*group} - {"match"}):
            field, value = f"optimizer.groups.{number}.{option}", group[option]
            if option not in known:
                wrong = f"{type(optimizer).__name__} has no such option"
                raise ConfigError(field, value, wrong, suggestion(option, known), "correct it")
            usable = type(value) in (int, float) and 0 <= value < math.inf
            if type(known[option]) in (int, float) and not usable:
                allowed = "a number of at least 0 is allowed"
                do = "correct it or leave it out"
                raise ConfigError(field, value, "it cannot be used", allowed, do)
    for group in optimizer.param_groups:
        if group["lr"] is not None and not 0 <= (rate := float(group["lr"])) < math.inf:
            wrong, do = f"{type(optimizer).__name__} is built with it", "correct it"
            allowed = "a number of at least 0 is allowed"
            raise ConfigError("optimizer.lr", f"{rate:g}", wrong, allowed, do)


def start_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Start the momentum of a fused SGD at zero; its first step is the same as without.

    It would be allocated without being set, and stay so if a GradScaler skips the first step.
    """
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else []:
        # With dampening the first step differs from the following ones.
        if group["fused"] and group["momentum"] and not group["dampening"]:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
