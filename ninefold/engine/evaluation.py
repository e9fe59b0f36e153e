"""Loss and scores of a network over a whole set, exact on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ninefold.engine.batches import Preparation, Source, shard
from ninefold.engine.generators import seeded_apart
from ninefold.engine.parallel import Parallel, RankContext
from ninefold.engine.task import Scores, Task, require_possible, scoring, user_errors_as_config
from ninefold.tree import rows


@dataclass(frozen=True)
class Evaluation:
    """loss: mean over the examples. count: number of examples. scores: from the task."""

    loss: float
    count: int
    scores: Scores

    @property
    def accuracy(self) -> float:
        """The task's score."""
        return self.scores.score


@dataclass(frozen=True)
class Evaluations:
    """test: of the test split. val: of the validation split, None if there is none."""

    test: Evaluation
    val: Evaluation | None = None

    @property
    def selecting(self) -> Evaluation:
        """The one that decides which weights are the best."""
        return self.test if self.val is None else self.val

    def by_split(self) -> dict[str, Evaluation]:
        """The evaluations by the names of their splits."""
        return {"test": self.test} | ({} if self.val is None else {"val": self.val})


class Unfinished(Exception):
    """An evaluation was interrupted on one of the processes."""


@torch.no_grad()
def evaluate(
    forward: nn.Module,
    source: Source,
    *,
    task: Task,
    batch_size: int,
    prepare: Preparation,
    parallel: Parallel,
    context: RankContext,
    interrupted: Callable[[], bool] = lambda: False,
    names: Sequence[str] = (),
) -> Evaluation:
    """Measure `forward`, a wrapped objective, on all examples of `source`, for all processes.

    Raises Unfinished on all processes if one was `interrupted`, which is asked before each batch,
    AssertionError unless each example was counted once, ConfigError or NumericsError if the task
    gives a score that it cannot have.
    """
    was_training = forward.training
    forward.eval()
    loss = torch.zeros((), dtype=torch.float64, device=context.device)
    sums: Tensor | None = None
    count = broken = passes = 0
    with seeded_apart(context):
        for inputs, targets in shard(source, batch_size, prepare, context):
            if interrupted() and not context.one_batch:  # of which all have to take each batch
                broken = 1
                break
            more, measured = forward(inputs, targets, measure=True)
            loss += more
            sums = measured if sums is None else sums + measured
            count += rows(inputs)
            passes += 1
        # Where processes take each pass together, as many as the one with most examples; and where
        # there are more processes than examples one, for zeros of the right shape.
        wanted = most_passes(len(source), batch_size, context) if parallel.shards else 1
        for _ in range(wanted - passes):
            inputs, targets = next(shard(source, 1, prepare, RankContext(0, 1, context.device)))
            _, measured = forward(inputs, targets, measure=True)
            sums = torch.zeros_like(measured) if sums is None else sums
    if context.rank >= context.data_size:  # what it counted is another's too
        count, loss = 0, torch.zeros_like(loss)
        sums = None if sums is None else torch.zeros_like(sums)
    counts = parallel.all_reduce_sum(torch.tensor([count, broken], device=context.device)).tolist()
    if counts[1]:
        forward.train(was_training)
        raise Unfinished
    assert sums is not None
    sums = parallel.all_reduce_sum(sums)
    forward.train(was_training)
    assert counts[0] == len(source), f"{counts[0]} of {len(source)} examples counted"
    mean = parallel.all_reduce_sum(loss).item() / counts[0]
    with user_errors_as_config(task, "scores"):
        scores = task.scores(sums, names)
    require_possible(scoring(task), scores.score)
    return Evaluation(mean, counts[0], scores)


def most_passes(count: int, batch_size: int, context: RankContext) -> int:
    """Forward passes of the process with most of `count` examples, see `shard`."""
    each, size = -(-count // context.data_size), max(1, batch_size // context.data_size)
    return -(-each // size)
