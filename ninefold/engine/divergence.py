"""The losses of all processes, and the error for a run whose numbers are no longer finite."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ninefold.engine.parallel import gather, local_part
from ninefold.engine.training import Training
from ninefold.errors import ConfigError, NumericsError

SKIP = "lower optimizer.lr, choose a wider amp.dtype or set on_nonfinite=skip"
LOOK = "lower optimizer.lr, choose a wider amp.dtype or look for bad examples"


class Losses(NamedTuple):
    """The values of the LossTracker of each process: float64 [processes].

    extra: a number that each process gave to `losses`.
    """

    total: Tensor
    bad: Tensor
    since_bad: Tensor
    last: Tensor
    extra: Tensor


def mean_loss(run: Training) -> float:
    """The mean training loss of the epoch so far, over its steps and the processes.

    Every process must call it. Raises NumericsError if it is not finite or the scale collapsed.
    """
    found = losses(run)
    require_finite(run, found)
    steps = (run.state.step - 1) % run.batches.steps_per_epoch + 1
    return float(found.total.sum() / (steps * len(found.total) - found.bad.sum()))


def losses(run: Training, extra: float = 0) -> Losses:
    """The losses of all processes. Every process must call it. Waits for the device."""
    tracker = run.state.losses
    tracker.read()
    row = [tracker.total, tracker.bad, tracker.since_bad, tracker.last, extra]
    here = torch.tensor(row, dtype=torch.float64, device=run.context.device)
    return Losses(*gather(here, run.parallel, run.context).unbind(dim=1))


def require_finite(run: Training, found: Losses) -> None:
    """Raise NumericsError for losses and scales that have diverged, ConfigError for a bad rate."""
    for group in run.state.optimizer.param_groups:
        if not 0 <= (rate := float(group["lr"])) < float("inf"):
            wrong = f"it was set so by step {run.state.step}"
            allowed = "a number of at least 0 is allowed"
            do = "correct the scheduler"
            raise ConfigError("learning rate", f"{rate:g}", wrong, allowed, do)
    scaler = run.state.scaler
    if not run.state.losses.skip and found.since_bad.any():
        raise first_bad_loss(run, found)
    if not scaler.collapsed():
        return
    by = f"by step {run.state.step}"
    if run.state.losses.skip:
        wrong = f"too many steps were skipped, {int(scaler.skipped)} {by}"
        raise numerics_error(run, "gradients", "not finite", wrong, "on_nonfinite=skip")
    where = "gradients overflow at every scale"
    raise numerics_error(run, "scale", scaler.get_scale(), f"collapsed {by}", where)


def first_bad_loss(run: Training, found: Losses) -> NumericsError:
    """The error for a loss that was not finite.

    Every process must call it: the parameters of those that first saw a bad loss are named.
    """
    first = found.since_bad == (most := found.since_bad.max())
    names = [name for name, _ in run.state.model.named_parameters()]
    wrong = [not bool(torch.isfinite(local_part(p)).all()) for p in run.state.model.parameters()]
    flags = torch.tensor(wrong, dtype=torch.float32, device=run.context.device)
    on_first = gather(flags, run.parallel, run.context)[first].amax(dim=0).tolist()
    named = [name for name, is_bad in zip(names, on_first, strict=True) if is_bad]
    where = f"first in parameter {named[0]}" if named else "all parameters were finite before it"
    step = run.state.step - int(most) + 1
    value = found.total[first][0].item()
    return numerics_error(run, "loss", value, f"not finite at step {step}", where)


def numerics_error(
    run: Training, name: str, value: object, wrong: str, where: str, do: str | None = None
) -> NumericsError:
    """The error for a number that is not finite, with the rates in force when it was found."""
    state = run.state
    do = do or (LOOK if state.losses.skip else SKIP)
    if any(parameter.dtype == torch.bfloat16 for parameter in state.model.parameters()):
        do = "lower optimizer.lr, or use amp=bf16"  # neither goes with amp.weights=bfloat16
    epoch, lr = state.step / run.batches.steps_per_epoch, state.optimizer.param_groups[0]["lr"]
    scale = state.scaler.get_scale()
    allowed = f"epoch {epoch:.4g}, learning rate {lr:g}, loss scale {scale:g}"
    return NumericsError(name, value, f"{wrong}; {where}", allowed, do)
