"""Loads what a run starts with: weights that its seed has not drawn, or its newest checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.checkpoint import manifest
from ninefold.checkpoint.store import Checkpoints, read
from ninefold.checkpoint.weights import LoadReport, aligned, chosen, load_weights, own_name
from ninefold.config import untrusted
from ninefold.dataset.images import unlike_classes
from ninefold.engine.parallel import Parallel, RankContext
from ninefold.engine.state import State
from ninefold.errors import CheckpointError, ConfigError, memory_failure, one_line, text_of
from ninefold.model import Pretrained
from ninefold.progress import say
from ninefold.secrets import redact
from ninefold.train.freeze import below
from ninefold.train.optimizer import names_in, require_shapes

LOADED = ("model", "optimizer", "average")  # what `Parallel.load` takes, in parts where it shards


def without_fetching(net: Mapping[str, Any]) -> dict[str, Any]:
    """`model.net` of a job so that building it fetches nothing: `load` loads what was fetched.

    A builder of the user's own gets the arguments that it is given.
    """
    target = str(net.get("_target_"))
    if untrusted.fetching(target) is None:
        return dict(net)
    # Also where they are left out: torchvision's default is to download some.
    return {**net, **dict.fromkeys(untrusted.PRETRAINED & {*net, *_parameters(target)})}


def _parameters(target: str) -> set[str]:
    """The names of what `target` takes; none if there is no such thing, which building it says."""
    module, _, name = target.rpartition(".")
    try:
        return set(inspect.signature(getattr(import_module(module), name)).parameters)
    except (ImportError, AttributeError, TypeError, ValueError):
        return set()


def load(
    model: nn.Module, job: Mapping[str, Any], parallel: Parallel, context: RankContext
) -> list[str]:
    """Load the weights that a new run starts with into `model`, as drawn; return notes about them.

    Rank 0 reads them, broadcasts them, and has the notes. Every process must call it.
    job: as plain containers; its keys that begin with init, and model.net count. Raises
    CheckpointError, ConfigError, DataError.
    """
    if job["init"] is None and untrusted.pretrained(job["model"]["net"]) is None:
        return []
    notes = _loaded(model, job) if context.rank == 0 else []
    mine = {key: v for key, v in model.state_dict().items() if isinstance(v, Tensor)}
    copy_into(mine, parallel.broadcast(mine))
    return notes


@torch.no_grad()
def copy_into(live: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy `values` into the tensors of the same names."""
    for name, tensor in live.items():
        tensor.copy_(values[name])


def _loaded(model: nn.Module, job: Mapping[str, Any]) -> list[str]:
    if (init := job["init"]) is not None:
        without = below(list(model.state_dict()), job["init_without"], "init_without")
        return _from_file(model, init, bool(job["init_partial"]), without)
    return _pretrained(model, job["model"]["net"])


def _pretrained(model: nn.Module, net: Mapping[str, Any]) -> list[str]:
    """Load the weights that `net` names, which the launcher has fetched."""
    asked = untrusted.pretrained(net)
    module = untrusted.fetching(str(net["_target_"]))
    if asked is None or module is None:
        return []
    options = {key: value for key, value in net.items() if key != "_target_"}
    found: Pretrained = import_module(module).pretrained(model, **options)
    report = load_weights(model, found.tensors)
    if set(report.missing) != set(found.drawn) or report.unexpected or report.mismatched:
        wrong = f"these weights do not fit {net.get('name')}"
        do = "name others, or give init=FILE init_partial=true"
        raise CheckpointError(f"model.net.{asked[0]}", asked[1], wrong, f"{report!s}", do)
    names = found.drawn if len(found.drawn) <= 4 else {n.partition(".")[0]: 0 for n in found.drawn}
    drawn = f"; randomly initialized: {', '.join(names)}" if names else ""
    return [f"The initial weights are {found.name}{drawn}."]


def _from_file(model: nn.Module, init: str, partial: bool, without: Sequence[str]) -> list[str]:
    path = manifest.named(Path(init))
    tensors, which = chosen(read(path, "init"), None)
    names = model.state_dict().keys()
    fitting = aligned(tensors, names)
    kept = {k: v for k, v in fitting.items() if own_name(k, names) not in without}
    report = load_weights(model, kept)
    report = replace(report, missing=[name for name in report.missing if name not in without])
    say(redact(one_line(f"init={path}: {report}")))
    if not report.loaded or not (report.complete or partial):
        keep = ", or init_partial=true to keep what does not fit randomly initialized"
        wrong = "it does not fit the model" if report.loaded else "no tensor in it fits the model"
        do = f"choose the right file or model{keep if report.loaded else ''}"
        raise CheckpointError("init", path, wrong, str(report), do)
    notes = [f"The initial weights are those of {path} ({which}).", *left_out(report, without)]
    return [redact(one_line(note)) for note in notes]


def left_out(report: LoadReport, without: Sequence[str]) -> list[str]:
    """Sentences that name every tensor that was not loaded. without: those not meant to be."""
    kept = [*without, *report.missing, *report.mismatched]
    return [
        f"{what}: {', '.join(names)}."
        for what, names in (
            ("Randomly initialized", kept),
            ("In the file and not in the model", report.unexpected),
        )
        if names
    ]


def moved(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A note on each of strategy, processes, device, dtype and torch that is another one now than
    when the checkpoint was written; empty if none is.
    """
    changed = [
        f"{key}={value} instead of {one_line(str(then[key]))}"
        for key, value in now.items()
        if then[key] != value
    ]
    said = "the order of its examples is unchanged, its weights are not bitwise those of a run"
    text = f"The run was resumed with {', '.join(changed)}: {said} without the change."
    return [text] if changed else []


def restore(
    state: State, checkpoints: Checkpoints, text: str, parallel: Parallel, context: RankContext
) -> None:
    """Load the newest checkpoint that verifies into `state`. Every process must call it.

    text: the frozen job. Raises CheckpointError if there is none, or it is of another model or
    optimizer or holds damaged values, and ConfigError if it is of another job.
    """
    path = checkpoints.folder.parent
    found = None
    if context.rank == 0:  # the folder may be on this host only
        path = checkpoints.newest()
        found = read(path, "resume")
        if wrong := untrusted.edited(found.get("config"), text):
            said = f"its config.yaml was edited: {', '.join(wrong)}"
            known = f"the run of {path} cannot continue as another"
            do = "put the old values back, or start a new run, with init= for its weights"
            raise ConfigError("resume", path.parents[1], said, known, do)
    try:
        saved = parallel.broadcast(found, LOADED if parallel.shards else ())
        groups = saved["optimizer"]["param_groups"]
        if names_in(groups) != names_in(state.optimizer.param_groups):
            said = "its optimizer has other groups of parameters, or in another order"
            do = "build it so"
            raise CheckpointError("resume", path, said, "the same in the same order are needed", do)
        require_shapes(saved["optimizer"]["state"], state.optimizer)
        do = "put the data back, or start a new run, with init= for its weights"
        if (then := saved.get("examples", state.examples)) != state.examples:
            sizes = " and ".join(f"{numbers}" for numbers in (then, state.examples))
            said = "its dataset has other numbers of examples by now"
            known = f"for training, validation and test {sizes} are those then and now"
            raise CheckpointError("resume", path, said, known, do)
        names = {"checkpoint": saved.get("names"), "dataset": state.names}
        if all(names.values()) and (unlike := unlike_classes(names)):
            raise CheckpointError("resume", path, *unlike, do)
        then = {**state.where, **saved.get("where", {})}  # an earlier version wrote none
        if (device := then.get("device")) != (here := state.where.get("device")):
            said = f"its run was on {device}, and this one would go on on {here}"
            known = "its precision and its random numbers would be others"
            do = f"resume it on {device}, or start a new run, with init= for its weights"
            raise CheckpointError("resume", path, said, known, do)
        state.restore(saved, parallel, context)
        state.origin += moved(then, state.where)
    except (ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        if memory_failure(error, "a run was being resumed"):
            raise
        known = text_of(error).partition("\n")[0]
        if not isinstance(error, ValueError | RuntimeError):
            known = f"{type(error).__name__}: {known}"
        said, do = "it does not fit this run", "resume with the configuration that wrote it"
        raise CheckpointError("resume", path, said, known, do) from error
