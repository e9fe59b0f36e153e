"""The losses of all processes, and the error for a run whose numbers are no longer finite."""

from __future__ import annotations

import torch
from torch import Tensor

from ninefold.engine.parallel import gather, local_part
from ninefold.engine.training import Training
from ninefold.errors import NumericsError

TOTAL, BAD, LAST = range(3)  # columns of `losses`


def mean_loss(run: Training) -> float:
    """The mean training loss of the epoch so far, over its steps and the processes.

    Every process must call it. Raises NumericsError if it is not finite or the scale collapsed.
    """
    rows = losses(run)
    require_finite(run, rows)
    steps = (run.state.step - 1) % run.batches.steps_per_epoch + 1
    return float(rows[:, TOTAL].sum() / (steps * len(rows) - rows[:, BAD].sum()))


def losses(run: Training, *more: float) -> Tensor:
    """The loss tracker of each process, and `more` numbers of it: float64 [processes, 3 + more].

    Every process must call it. Waits for the device.
    """
    tracker = run.state.losses
    tracker.read()
    row = [tracker.total, tracker.bad, tracker.last, *more]
    row_here = torch.tensor(row, dtype=torch.float64, device=run.context.device)
    return gather(row_here, run.parallel, run.context)


def require_finite(run: Training, rows: Tensor) -> None:
    """Raise NumericsError if a loss was not finite or the scale collapsed; rows: see `losses`."""
    scaler = run.state.scaler
    if not run.state.losses.skip and rows[:, BAD].any():
        raise first_bad_loss(run, rows)
    if not scaler.collapsed():
        return
    if run.state.losses.skip:
        raise numerics_error(
            run,
            "gradients",
            "not finite",
            f"too many steps were skipped, {int(scaler.skipped)} by step {run.state.step}",
            "on_nonfinite=skip",
            "lower optimizer.lr, choose a wider amp.dtype or look for bad examples",
        )
    raise numerics_error(
        run,
        "scale",
        scaler.get_scale(),
        f"collapsed by step {run.state.step}",
        "gradients overflow at every scale",
    )


def first_bad_loss(run: Training, rows: Tensor) -> NumericsError:
    """The error for a loss that was not finite; rows: see `losses`.

    Every process must call it: the parameters of those that first saw a bad loss are named.
    """
    bad = rows[:, BAD]
    rank = int(bad.argmax())
    names = [name for name, _ in run.state.model.named_parameters()]
    wrong = [not bool(torch.isfinite(local_part(p)).all()) for p in run.state.model.parameters()]
    flags = torch.tensor(wrong, dtype=torch.float32, device=run.context.device)
    on_first = gather(flags, run.parallel, run.context)[bad == bad.max()].amax(dim=0).tolist()
    found = [name for name, is_bad in zip(names, on_first, strict=True) if is_bad]
    where = f"first in parameter {found[0]}" if found else "all parameters were finite before it"
    step = run.state.step - int(bad.max()) + 1
    return numerics_error(
        run, "loss", rows[rank, TOTAL].item(), f"not finite at step {step}", where
    )


def numerics_error(
    run: Training,
    name: str,
    value: object,
    wrong: str,
    where: str,
    do: str = "lower optimizer.lr, choose a wider amp.dtype or set on_nonfinite=skip",
) -> NumericsError:
    """The error for a number that is not finite, with the rates in force when it was found."""
    state = run.state
    epoch, lr = state.step / run.batches.steps_per_epoch, state.optimizer.param_groups[0]["lr"]
    scale = state.scaler.get_scale()
    return NumericsError(
        name,
        value,
        f"{wrong}; {where}; epoch {epoch:.4g}, learning rate {lr:g}, loss scale {scale:g}; {do}",
    )
