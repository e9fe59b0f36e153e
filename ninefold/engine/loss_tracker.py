"""The loss tracker: sums an epoch's losses, finds the first that is not finite, then stops updates.

The host never waits for the device between log points.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ninefold.engine.amp import CountingScaler


class LossTracker:
    """Collects the losses of the current epoch, on the device until `read` sums them.

    If no GradScaler is enabled, a fused optimizer leaves the weights unchanged from the first loss
    on that is not finite, as it would at an overflow. At the next log point the weights are then
    still those that gave this loss, and the first bad parameter can be named. (An optimizer that
    is not fused keeps updating: then the step is still known, the parameter is not.) With `skip`
    losses that are not finite are left out of the sum, and nothing else happens here.

    Values as of the last `read`:
    total: sum of the losses.
    bad: number of losses that were not finite. since_bad: steps since the first of them, that one
        included.
    last: the latest loss.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scaler: CountingScaler,
        device: torch.device,
        skip: bool,
    ) -> None:
        self.total, self.bad, self.since_bad, self.last = 0.0, 0.0, 0, math.nan
        self.skip = skip
        self._unread: list[Tensor] = []
        self._found_bad = torch.zeros((), device=device)
        self._one = torch.ones((), device=device)
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)  # as GradScaler asks
        self._freezes = fused and not scaler.is_enabled()
        self._optimizer = optimizer
        # A CPU's loss is in the host's memory: to read it takes 1 µs and waits for nothing. The
        # kernel in `watch` and found_inf in the optimizer, which both are then not needed before
        # the first bad loss, take 13 µs of a step.
        self.reads_at_once = device.type == "cpu"
        self._thaw()

    def watch(self, loss: Tensor) -> None:
        """Look at the loss of a step, a scalar, before the optimizer's step."""
        if not self._freezes:
            return
        if not self.reads_at_once:
            # GradScaler's own kernel: it sets _found_bad if the loss, times one, is not finite.
            torch._amp_foreach_non_finite_check_and_unscale_([loss], self._found_bad, self._one)
        elif not math.isfinite(loss.item()):
            self._optimizer.found_inf = self._found_bad.fill_(1)  # type: ignore[attr-defined]

    def add(self, loss: Tensor) -> None:
        """Add the loss of a step."""
        self._unread.append(loss)

    def read(self) -> None:
        """Sum the losses added since the last call, in their order. Waits for the device."""
        if not self._unread:
            return
        for loss in torch.stack(self._unread).tolist():
            self.last = loss
            finite = math.isfinite(loss)
            self.bad += not finite
            self.since_bad += self.since_bad > 0 or not finite
            if finite or not self.skip:
                self.total += loss
        self._unread.clear()

    def start_epoch(self, total: float = 0.0, bad: float = 0) -> None:
        """Start from zero, or from what a checkpoint within the epoch holds."""
        self._unread.clear()
        self._thaw()
        self.total, self.bad, self.since_bad = total, bad, 0

    def _thaw(self) -> None:
        """Let the optimizer update the weights until the next bad loss."""
        self._found_bad.zero_()
        if self._freezes:
            found = None if self.reads_at_once else self._found_bad
            self._optimizer.found_inf = found  # type: ignore[attr-defined]
