"""Loss and scores of a network over a whole set, exact on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ninefold.engine.batches import Preparation, Source, shard
from ninefold.engine.generators import fork_rng
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
    def score(self) -> float:
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
    gradients: bool = False,
) -> Evaluation:
    """Measure `forward`, a wrapped objective, on all examples of `source`, for all processes.

    gradients: whether the objective differentiates, so that gradients are enabled.

    Raises Unfinished on all processes if one was `interrupted`, which is asked before each batch,
    AssertionError unless each example was counted once, ConfigError or NumericsError if the task
    gives a score that it cannot have.
    """
    was_training = forward.training
    forward.eval()
    loss = torch.zeros((), dtype=torch.float64, device=context.device)
    sums: Tensor | None = None
    count = passes = 0
    stopped = False
    with fork_rng(context), torch.set_grad_enabled(gradients):
        for inputs, targets in shard(source, batch_size, prepare, context):
            if interrupted():
                stopped = True
                break
            loss_of_batch, more = forward(inputs, targets, measure=True)
            loss += loss_of_batch.detach()
            more = summable(more)
            with user_errors_as_config(task, "measure"):  # stack takes tensors of one shape only
                sums = more if sums is None else torch.stack((sums, more)).sum(0)
            count += rows(inputs)
            passes += 1
        # With a sharded network a pass takes all processes: each takes as many as the longest shard
        # needs. Else a process takes one if it has no example, for the shape of its sums.
        least = most_passes(len(source), batch_size, context) if parallel.shards else 1
        if passes < least:
            inputs, targets = next(shard(source, 1, prepare, RankContext(0, 1, context.device)))
            for _ in range(passes, least):
                _, sums_of_batch = forward(inputs, targets, measure=True)
            sums = torch.zeros_like(summable(sums_of_batch)) if sums is None else sums
    forward.train(was_training)
    here = torch.tensor([count, stopped], device=context.device)
    total, anywhere = parallel.all_reduce_sum(here).tolist()
    if anywhere:
        raise Unfinished
    assert sums is not None
    sums = parallel.all_reduce_sum(sums)
    assert total == len(source), f"{total} of {len(source)} examples counted"
    mean = parallel.all_reduce_sum(loss).item() / total
    with user_errors_as_config(task, "scores"):
        scores = task.scores(sums, names)
        require_possible(scoring(task), scores)
    return Evaluation(mean, total, scores)


def summable(sums: Tensor) -> Tensor:
    """Return sums of a batch in a dtype that holds those of all."""
    return sums.detach().double() if sums.is_floating_point() else sums.detach().long()


def most_passes(count: int, batch_size: int, context: RankContext) -> int:
    """Forward passes of the process with most of `count` examples, see `shard`."""
    each, size = -(-count // context.world_size), max(1, batch_size // context.world_size)
    return -(-each // size)
