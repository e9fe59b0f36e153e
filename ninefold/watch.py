"""The losses of an epoch, summed and watched on the device: the host never waits for them."""

from __future__ import annotations

import torch
from torch import Tensor

from ninefold.amp import CountingScaler


class Watch:
    """Sums the losses of the running epoch and counts those that are not finite.

    From the first such loss on a fused optimizer is told, as a GradScaler would tell it, to leave
    the weights alone. So when the host looks, at the next log point, the weights are still those
    that gave this loss, and the first bad one among them can be named. (An optimizer that is not
    fused goes on; the step is then still known, the parameter is not.) With `skip` a loss that is
    not finite is left out of the sum and nothing else happens here.

    total, held: float64 scalars, the sum of losses and the steps since the first bad one.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, scaler: CountingScaler, device: torch.device,
        skip: bool,
    ) -> None:  # fmt: skip
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.held = torch.zeros((), dtype=torch.float64, device=device)
        self.skip = skip
        self._bad = torch.zeros((), device=device)
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)  # as GradScaler asks
        if fused and not scaler.is_enabled():
            optimizer.found_inf = self._bad  # type: ignore[attr-defined]

    def see(self, loss: Tensor) -> None:
        """Take in the loss of a step, a scalar, before the optimizer's step."""
        if self.skip:
            torch.ne(loss - loss, 0, out=self._bad)
            self.total += torch.where(self._bad > 0, 0, loss)
        else:
            self.total += loss
            # x - x is zero, or NaN where x is not finite; and the sum stays so once it is
            torch.ne(self.total - self.total, 0, out=self._bad)
        self.held += self._bad

    def start_epoch(self) -> None:
        self.total.zero_()
        self.held.zero_()
