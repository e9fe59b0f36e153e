"""Resumes the state of a run from its newest checkpoint, of the same job and undamaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.checkpoint.store import Checkpoints, read
from ninefold.config import untrusted
from ninefold.engine.parallel import Parallel, Place
from ninefold.engine.state import State
from ninefold.errors import CheckpointError, ConfigError, memory_failure
from ninefold.train.hand_out import handed_out
from ninefold.train.optimizer import SAME_ORDER, names_in


def restore(
    state: State, checkpoints: Checkpoints, text: str, parallel: Parallel, place: Place
) -> None:
    """Load the newest checkpoint that verifies into `state`. Every process must call it.

    text: the frozen job. Raises CheckpointError if there is none, or it is of another model or
    optimizer or holds damaged values, and ConfigError if it is of another job.
    """
    path = checkpoints.folder.parent
    found = None
    if place.rank == 0:  # the folder may be on this host only
        path = checkpoints.newest()
        found = read(path, "resume")
        if wrong := untrusted.edited(found.get("config"), text):
            raise ConfigError(
                "resume",
                path.parents[1],
                f"its config.yaml was edited: {', '.join(wrong)}; the run of {path} cannot go on "
                "as another; put the old values back, or start a new run, with init= for its "
                "weights",
            )
        if damaged := state.misfit(found):
            do = "resume from another checkpoint of the run"
            raise CheckpointError(
                "resume", path, f"{damaged[0]} in it is damaged; {damaged[1]}; {do}"
            )
    try:
        saved = handed_out(found, parallel, place)
        groups = saved["optimizer"]["param_groups"]
        same = names_in(groups) == names_in(state.optimizer.param_groups)
        if not same and not _by_position(groups, text):
            said = "its optimizer has other groups of parameters, or in another order"
            raise CheckpointError("resume", path, said, SAME_ORDER)
        state.restore(saved, parallel, place)
    except (ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        if memory_failure(error, "a run was being resumed"):
            raise
        said = str(error).partition("\n")[0]
        raise CheckpointError(
            "resume",
            path,
            "it does not fit this run",
            said
            if isinstance(error, ValueError | RuntimeError)
            else f"{type(error).__name__}: {said}",
            "resume with the configuration that wrote it",
        ) from error


def _by_position(groups: Sequence[Mapping[str, Any]], text: str) -> bool:
    """Whether groups without names, which an earlier version saved, are in the model's order.

    It kept the order in which a function of the user's returned them.
    """
    of_a_function = isinstance(untrusted.parse(text)["optimizer"].get("groups"), Mapping)
    return not of_a_function and not any("param_names" in group for group in groups)
