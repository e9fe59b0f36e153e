"""Our contestants: what `python train.py OVERRIDES` would train, in this process."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from torch import Tensor

from ninefold.config import resolvers
from ninefold.config.job import Settled, asked, check
from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.dataset.resident import Resident
from ninefold.engine.batches import Source
from ninefold.engine.loop import stepper, train
from ninefold.engine.task import Score, Scores, Task
from ninefold.errors import Refused
from ninefold.places import ROOT
from ninefold.signals import Stop
from ninefold.study.plan import Composer
from ninefold.train import build
from ninefold.train.training_run import TrainingRun, closing
from ninefold.train.turns import endless

STEPPING = ("checkpoint.every=null", "epochs=1000000", "logger=quiet", "clock.sample=0")


def job(*overrides: str) -> Settled:
    """The default configuration with `overrides`, checked and settled."""
    folders = [text for text in overrides if text.startswith("hydra.searchpath=")]
    others = [text for text in overrides if text not in folders]
    config = composer(*folders)(list(others))
    try:
        return check(asked(config, config.hydra)).settle()
    except Refused as refused:
        raise refused.failures[0] from None


@functools.cache
def composer(*folders: str) -> Composer:
    """What composes configurations as a study does: once for those that differ only in values.

    folders: where options are looked for besides conf/, as `hydra.searchpath=[...]`.
    """
    resolvers.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return Composer(loader, loader.load_configuration("train", [*folders], RunMode.MULTIRUN))


@contextmanager
def training(*overrides: str, test: int = 64) -> Iterator[TrainingRun]:
    """A TrainingRun with a temporary run folder; evaluated on `test` examples, untimed."""
    with tempfile.TemporaryDirectory() as folder:
        text = job(*overrides).text
        with build.running(text, Path(folder), Stop()) as run:
            run.test = first(run.test, test)
            with closing(run):
                yield run


@contextmanager
def stepping(overrides: Sequence[str]) -> Iterator[tuple[TrainingRun, Callable[[int], None]]]:
    """The run of `overrides`, warmed up, and a call that takes so many of its steps.

    It does all that training does from step to step, log points and ends of epochs included; only
    evaluations are left out.
    """
    with training(*STEPPING, *overrides) as run:
        run.forward.train()
        step = stepper(run)
        run.before_training(step)
        batches = endless(run)
        run.clock.start()

        def take(count: int) -> None:
            for inputs, targets in islice(batches, count):
                step(inputs, targets)
                run.clock.end_step()
                run.state.step += 1
                run.after_step()

        yield run, take


def first(source: Source, count: int) -> Source:
    """The first `count` examples of `source`."""
    if isinstance(source, Resident):
        return Resident(source.inputs[:count], source.targets[:count])
    return HostSource(examples_of(source).first(count))


def examples_of(source: Source) -> Examples:
    """The examples of `source`; on a GPU they are on the host with dataset.resident=false."""
    assert isinstance(source, HostSource)
    return source.examples


def seconds_a_step(
    run: TrainingRun, steps: int, train: Callable[[TrainingRun], object] = train
) -> float:
    """Seconds per step of `steps` more; what happens between steps counts, evaluations do not."""
    run.last_step = run.state.step + steps
    evaluated = run.state.evaluate_seconds
    began = time.perf_counter()
    train(run)
    seconds = time.perf_counter() - began - (run.state.evaluate_seconds - evaluated)
    run.warmup.steps = 0  # they ran in the first turn, which does not count
    return seconds / steps


def slow_down(run: TrainingRun, seconds: float) -> None:
    """Make each loss of `run` take `seconds` longer."""
    task = run.objective.task
    del run.objective.task  # which may be a submodule, and is to be none
    run.objective.task = Slowed(task, seconds)


@dataclass(frozen=True)
class Slowed:
    """A handicap: a task whose loss takes `seconds` longer."""

    task: Task
    seconds: float

    @property
    def score(self) -> str | Score:
        return self.task.score

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        return self.task.loss(output, target)

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return self.task.measure(output, target)

    def scores(self, sums: Tensor, names: Sequence[str]) -> Scores:
        return self.task.scores(sums, names)
