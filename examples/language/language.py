"""Language modeling: the next token at each place, by cross entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ninefold.errors import ConfigError
from ninefold.task import Figure, Score, Scores
from ninefold.task.counts import unlabeled
from ninefold.task.loss import mean_over_examples

UNUSED = -100  # torch's own ignore_index


class Language(nn.Module):
    """Logits float32 [n, t, vocabulary] against the tokens that follow, int64 [n, t].

    Scored by the cross entropy in nats per token, less is better; further the perplexity, which is
    its exponential, and the share of the tokens that are guessed right.
    """

    # 0.02 nats are 2 % of the perplexity, whatever that is.
    score = Score("cross entropy", unit="nats", better="less", margin=0.02)
    counts = "tokens"

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.padding = padding

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over each example's tokens that count, then over the examples; 0 for none."""
        if self.padding is None:  # all examples have as many tokens
            return self._of_tokens(output, target, "mean")
        values = self._of_tokens(output, target, "none").view_as(target)
        return mean_over_examples(values, len(target), target != self.padding)

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        """The summed cross entropy in nats, tokens that count and right ones: float64 [3]."""
        values = self._of_tokens(output, target, "none").to(torch.float64)
        counts = target != (UNUSED if self.padding is None else self.padding)
        right = (output.argmax(dim=-1) == target) & counts
        return torch.stack([values.sum(), counts.sum().double(), right.sum().double()])

    def choices(self, output: Tensor) -> Tensor:
        return output

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        """Of all tokens of a set. Raises DataError if none counts."""
        nats, tokens, right = sums.tolist()
        if not tokens:
            raise unlabeled("a token that counts", f"all are {self.padding} (task.padding)")
        mean = nats / tokens
        return Scores(
            score=mean,
            others=[
                Figure("perplexity", math.exp(min(mean, 700.0)), unit="", better="less"),
                Figure("token accuracy", right / tokens),
            ],
            counted="tokens",
        )

    def _of_tokens(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        if output.ndim != 3 or target.ndim != 2 or output.shape[:2] != target.shape:
            raise ConfigError(
                "task",
                "language",
                f"the model's output is {list(output.shape)}, the targets are {list(target.shape)}",
                "logits [n, t, vocabulary] and tokens [n, t] are allowed",
                "choose model=gpt and dataset=text, or another task",
            )
        ignored = UNUSED if self.padding is None else self.padding
        return F.cross_entropy(
            output.flatten(0, 1), target.flatten(), ignore_index=ignored, reduction=reduction
        )
