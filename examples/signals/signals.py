"""dataset=signals: train.npz and test.npz with float32 `signals` [n, 1, 1, length] and `labels`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ninefold.dataset import Dataset, Examples, Split

if TYPE_CHECKING:
    from gains import Gains


@dataclass(frozen=True)
class Signals(Dataset):
    """In training each signal is multiplied by a factor of its own, from 1 - gain to 1 + gain."""

    gain: float = 0.1

    def load(self, split: Split) -> Examples:
        with np.load(Path(self.root or ".", f"{split}.npz")) as file:
            return Examples(file["signals"], file["labels"]).first(self.limit_of(split))

    def preparation(self, **options: Any) -> Gains:
        from gains import Gains  # imports torch, which the checks before the start do not need

        return Gains(self.gain if options["flip"] else 0)
