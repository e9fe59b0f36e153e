"""A map-style dataset of a user's whose constructor does what U_DATA says."""

import os
import time
from pathlib import Path

import numpy as np


class Images:
    """Noise of shape [1, 8, 8], and classes."""

    def __init__(self, count: int) -> None:
        what = os.environ.get("U_DATA")
        if what == "pool":
            from user_model import scan

            scan()
        if what == "sleep":
            Path(os.environ["U_SAID"]).write_text('"data"')
            time.sleep(20)
        self.images = np.random.default_rng(0).random((count, 1, 8, 8), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return self.images[number], number % 10
