"""Finds a learning rate: trains some steps with growing rates and looks where the loss falls.

The range test of Smith (2017, "Cyclical learning rates for training neural networks"), with the
loss smoothed as in fastai's finder, and nothing read from the first steps, which are mostly noise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np

from ninefold.config import untrusted
from ninefold.config.spec import RunSpec
from ninefold.engine.divergence import losses
from ninefold.engine.loop import stepper
from ninefold.errors import ConfigError, NumericsError
from ninefold.files import opener, write_json
from ninefold.launch.worker import stopping
from ninefold.signals import failure
from ninefold.train.training_run import TrainingRun
from ninefold.train.turns import without_files
from ninefold.tree import Tree

SMOOTHING = 0.98  # of the moving average of the losses
DIVERGED = 4.0  # times the best moving average
FIRST = 10  # steps at the start that say nothing: their average is of a few losses
LAST_FEW = 5  # losses whose mean diverges; one of them may be large by chance
# Instead of the job's scheduler, which may set other rates than optimizer.lr, as OneCycleLR does.
CONSTANT = {
    "_target_": "torch.optim.lr_scheduler.ConstantLR",
    "_partial_": True,
    "factor": 1.0,
    "total_iters": 0,
    "per": "epoch",
    "warmup": 0,
}


@dataclass(frozen=True)
class Rates:
    """The result of a learning-rate range test.

    smoothed: the moving average of the losses, without the bias of its start.
    steepest: the rate at which it falls fastest, by the logarithm of the rate, after the first
        steps.
    diverges: the rate at which the loss diverges, see DivergenceDetector; None: nowhere.
    suggestion: `steepest`, and a tenth of `diverges` where that is less.
    """

    smoothed: list[float]
    steepest: float
    diverges: float | None
    suggestion: float


def find_lr(spec: RunSpec, inline: bool) -> None:
    """Train with the rates of `spec`; rank 0 writes lr.json and lr.png. Raises Failure."""
    low, high, steps = spec.arguments
    instead = {"scheduler": CONSTANT, "on_nonfinite": "stop"}
    with stopping(spec, inline) as stop, without_files(spec, stop, instead) as run:
        run.forward.train()
        tried = [low * (high / low) ** (n / (steps - 1)) for n in range(steps)]
        found = losses_at(run, tried)
        require_finite_first(found)
        if run.context.rank != 0:
            return
        rates = read(tried, found)
        content = {"rates": tried[: len(found)], "losses": found, **vars(rates)}
        write_json(spec.folder / "lr.json", content)
        draw(spec.folder / "lr.png", tried, found, rates)


def losses_at(run: TrainingRun, rates: Sequence[float]) -> list[float]:
    """The mean loss over the processes at each of these rates, until it diverges; NaN: not finite.

    Parameters whose group in optimizer.groups has a rate of its own keep that. Every process must
    call it. Raises Interrupted or Preempted after a signal, and ConfigError if all groups have one.
    """
    step, batches = stepper(run), endless(run)
    run.before_training(step)
    groups = with_the_common_rate(run)
    found: list[float] = []
    watch = DivergenceDetector(len(rates))
    for rate in rates:
        for group in groups:
            group["lr"] = rate
        step(*next(batches))
        run.state.step += 1
        of_all = losses(run, run.stop.signal)
        if number := int(of_all.extra.max()):
            raise failure(number)("signal", Signals(number).name, "stopped", "", "")
        found.append(math.nan if of_all.bad.any() else float(of_all.last.mean()))
        if watch.diverged(found[-1]):
            break
    return found


def with_the_common_rate(run: TrainingRun) -> list[dict[str, Any]]:
    """The groups of parameters that optimizer.lr is for. Raises ConfigError if there is none."""
    groups = run.state.optimizer.param_groups
    options = untrusted.parse(run.job_yaml)["optimizer"]
    named = options.get("groups") or ()
    if isinstance(named, Mapping):  # a function of the user made them
        own = [group.get("initial_lr", group["lr"]) != float(options["lr"]) for group in groups]
    else:
        own = ["lr" in group for group in named]
        own = [False] * (len(groups) - len(own)) + own  # the group of all others comes first
    found = [group for group, its_own in zip(groups, own, strict=True) if not its_own]
    if not found:
        raise ConfigError(
            "what",
            "lr",
            "each group of optimizer.groups has an lr of its own",
            "the rate that is looked for is optimizer.lr",
            "leave lr out of one group",
        )
    return found


def require_finite_first(found: Sequence[float]) -> None:
    """Raise NumericsError if the very first loss, of the lowest rate, is not finite."""
    if not math.isfinite(found[0]):
        raise NumericsError(
            "what",
            "lr",
            f"the loss of the first step is {found[0]}",
            "it is not the learning rate that makes it so",
            "train, which says where it begins",
        )


def endless(run: TrainingRun) -> Iterator[tuple[Tree, Tree]]:
    """The batches of all epochs to come."""
    for epoch in count():
        yield from run.batches.epoch(epoch)


def first_steps(steps: int) -> int:
    """How many of so many steps say nothing: FIRST, at most a third."""
    return min(FIRST, steps // 3)


class DivergenceDetector:
    """Detects divergence, one loss at a time.

    steps: of the whole search.
    averages: after each finite loss, the weighted sum of all so far divided by the sum of their
        weights, so that the start has no bias.
    weights: these divisors.
    """

    def __init__(self, steps: int) -> None:
        self.averages: list[float] = []
        self.weights: list[float] = []
        self._sum = self._weight = 0.0
        self._first = first_steps(steps)
        self._recent: deque[float] = deque(maxlen=LAST_FEW)
        self._best = math.inf

    def diverged(self, loss: float) -> bool:
        """Add a loss; whether it is not finite, or the last ones' mean DIVERGED times the best.

        In the first steps only a loss that is not finite diverges.
        """
        if not math.isfinite(loss):
            return True
        self._recent.append(loss)
        self._sum = SMOOTHING * self._sum + loss
        self._weight = SMOOTHING * self._weight + 1
        self.averages.append(self._sum / self._weight)
        self.weights.append(self._weight)
        if len(self.averages) <= self._first:
            return False
        self._best = min(self._best, self.averages[-1])
        most = self._best + (DIVERGED - 1) * abs(self._best)  # a loss may be negative
        return sum(self._recent) / len(self._recent) > most


def read(rates: Sequence[float], found: Sequence[float]) -> Rates:
    """Evaluate a range test: `found` are the losses at the first of `rates`."""
    watch = DivergenceDetector(len(rates))
    bad = [rate for rate, loss in zip(rates, found, strict=False) if watch.diverged(loss)]
    first = first_steps(len(rates))
    slopes = slopes_of(watch, max(1, first // 2))
    first = min(first, len(slopes) - 1)
    steepest = rates[first + int(np.argmin(slopes[first:]))]
    diverges = bad[0] if bad else None
    tenth = math.inf if diverges is None else diverges / 10
    return Rates(watch.averages, steepest, diverges, min(steepest, tenth))


def slopes_of(watch: DivergenceDetector, span: int) -> np.ndarray[Any, Any]:
    """Mean change per step of the moving average, from `span` steps before each to `span` after.

    Times the sum of its weights, because the noise of a loss moves an average by 1 / that sum.
    """
    averages, here = np.array(watch.averages), np.arange(len(watch.averages))
    low, high = np.maximum(here - span, 0), np.minimum(here + span, len(averages) - 1)
    slopes: np.ndarray[Any, Any] = (averages[high] - averages[low]) / np.maximum(high - low, 1)
    slopes *= np.array(watch.weights)
    return slopes


def draw(path: Path, rates: Sequence[float], found: Sequence[float], said: Rates) -> None:
    """Draw the losses by the learning rate as a PNG."""
    # Importing matplotlib takes longer than anything that a training run needs.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(rates[: len(found)], found, color="0.75", lw=1, label="loss of a step")
    axes.plot(rates[: len(said.smoothed)], said.smoothed, color="C0", lw=2, label="smoothed")
    axes.axvline(said.steepest, color="C2", ls="--", label=f"falls fastest: {said.steepest:.2g}")
    if said.diverges is not None:
        axes.axvline(said.diverges, color="C3", ls="--", label=f"diverges: {said.diverges:.2g}")
    low, high = min(0.0, *said.smoothed), max(said.smoothed)  # a loss may be negative
    ends = low * 1.1, high + 0.3 * (high - low)
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss", ylim=ends)
    axes.legend(frameon=False)
    with open(path, "wb", opener=opener) as file:
        figure.savefig(file, dpi=110)
