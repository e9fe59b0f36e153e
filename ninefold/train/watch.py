"""The losses of an epoch, summed and watched without the host ever waiting for one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ninefold.amp import CountingScaler


class Watch:
    """Keeps the losses of the running epoch until the host looks, at a log point, and sums them.

    From the first loss on that is not finite a fused optimizer is told, as a GradScaler would tell
    it, to leave the weights alone. So when the host looks the weights are still those that gave
    this loss, and the first bad one among them can be named. (An optimizer that is not fused goes
    on; the step is then still known, the parameter is not.) With `skip` a loss that is not finite
    is left out of the sum and nothing else happens here.

    As of the last `read`: total, the sum of the losses; held, the steps since the first bad one,
    or with `skip` the number of bad ones; last, the latest loss.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, scaler: CountingScaler, device: torch.device,
        skip: bool,
    ) -> None:  # fmt: skip
        self.total, self.held, self.last = 0.0, 0, math.nan
        self.skip = skip
        self._unread: list[Tensor] = []
        self._bad = torch.zeros((), device=device)
        self._one = torch.ones((), device=device)
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)  # as GradScaler asks
        self._holds = fused and not scaler.is_enabled()
        if self._holds:
            optimizer.found_inf = self._bad  # type: ignore[attr-defined]

    def see(self, loss: Tensor) -> None:
        """Take in the loss of a step, a scalar, before the optimizer's step."""
        self._unread.append(loss)
        if self._holds:
            # GradScaler's own: one kernel that sets `bad` if the loss, times one, is not finite.
            torch._amp_foreach_non_finite_check_and_unscale_([loss], self._bad, self._one)

    def read(self) -> None:
        """Sum the losses seen since the last time, one after the other. Waits for the device."""
        if not self._unread:
            return
        for loss in torch.stack(self._unread).tolist():
            self.last = loss
            finite = math.isfinite(loss)
            if self.skip:
                self.held += not finite
                self.total += loss if finite else 0.0
            else:
                self.held += self.held > 0 or not finite
                self.total += loss
        self._unread.clear()

    def start_epoch(self, total: float = 0.0, held: float = 0) -> None:
        """Forget all, or stand where another watch of this epoch did."""
        self._unread.clear()
        self._bad.zero_()
        self.total, self.held = total, int(held)
