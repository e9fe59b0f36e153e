"""A text as windows of characters, for next-character prediction: ours, or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninefold.dataset import Dataset, Examples, Split
from ninefold.errors import DataError

OURS = Path(__file__).with_name("text.txt")  # 10 kB about training networks
TEST = 0.1  # of the text, its end


@dataclass(frozen=True)
class Text(Dataset):
    """Tokens int64 [context], and as targets the tokens that follow each: int64 [context].

    A token is the number of a character among those of the whole text, by their code points. The
    last tenth of the text is the test set. root: a text file, UTF-8; None: ours.
    """

    context: int = 64
    stride: int = 4

    counts = "rows"

    def prepare(self) -> None:
        for split in self.splits:
            self.load(split)

    def load(self, split: Split) -> Examples:
        tokens, _ = self._tokens()
        first = round((1 - TEST) * len(tokens))
        part = tokens[first:] if split == "test" else tokens[:first]
        if len(part) <= self.context:
            wrong = f"the {split} split of {self._path} has {len(part):,} characters"
            allowed = "fewer than that are allowed"
            do = "lower dataset.context, or name a longer text (dataset.root)"
            raise DataError("dataset.context", self.context, wrong, allowed, do)
        windows = np.lib.stride_tricks.sliding_window_view(part, self.context + 1)
        windows = windows[:: self.context if split == "test" else self.stride]
        examples = Examples(windows[:, :-1], windows[:, 1:])
        return examples.first(self.limit_of(split))

    def count_classes(self) -> int:
        """The number of different characters."""
        return len(self._tokens()[1])

    def item_shape(self) -> list[int]:
        return [self.context]

    def _tokens(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """The text as tokens, and the code point of each token. Raises DataError."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            wrong = f"it cannot be read ({getattr(error, 'strerror', None) or error})"
            allowed = "a text file in UTF-8 is allowed"
            do = "correct it, or leave it out for the built-in text"
            raise DataError("dataset.root", self._path, wrong, allowed, do) from error
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        found, tokens = np.unique(points, return_inverse=True)
        return tokens.astype(np.int64), found

    @property
    def _path(self) -> Path:
        return OURS if self.root is None else Path(self.root)
