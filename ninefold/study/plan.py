"""What a study is to run: rounds of all its cells, one round for each seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ninefold.config import rules
from ninefold.config.job import UNSAID, Job
from ninefold.errors import ConfigError, Failure

LOOKS = (3, 5, 8, 12, 20)  # rounds after which repeats=auto looks whether the answer is settled
SWEEPER = "study"  # the option of hydra/sweeper that runs in rounds
Compose = Callable[[Sequence[str]], DictConfig]


@dataclass(frozen=True)
class Cell:
    """A job of each round. overrides: all that a command gives it but its seed."""

    name: str
    overrides: tuple[str, ...]


class Plan:
    """The cells and seeds of a sweep's jobs, and in which order they are to be run.

    cells: in the order given. seeds: of the rounds, by their number, as many as there may come to
    be. stages: how many rounds there are to be before drifted ones are repeated and, with
    repeats=auto, the answer is looked at: looks is how often. swept: the keys with several values,
    and those.
    """

    def __init__(
        self, jobs: Sequence[Sequence[str]], compose: Compose, study: Mapping[str, Any]
    ) -> None:
        """`jobs` are the overrides of each. Raises what is wrong with one, or ConfigError."""
        self._compose = compose
        self._seed = study["seed"]
        given: dict[str, list[str]] = {}
        for text in chain.from_iterable(jobs):
            value, values = text.partition("=")[2], given.setdefault(key_of(text), [])
            values += [value] * (value not in values)
        self.swept = {key: texts for key, texts in given.items()
                      if len(texts) > 1 and key != "seed"}  # fmt: skip
        for key, texts in self.swept.items():
            if key.partition(".")[0] in rules.OF_A_SWEEP:
                raise ConfigError(
                    key, ",".join(texts), "it has several values", "it is one for the whole sweep",
                    "choose one",
                )  # fmt: skip
            if key in UNSAID:
                raise in_one_cell(key, ",".join(texts))
        seeds: list[Any] = []
        cells: dict[tuple[str, ...], Cell] = {}
        for job in jobs:
            config = compose(job)
            overrides = tuple(text for text in job if key_of(text) != "seed")
            seeds += [config.seed] * (config.seed not in seeds)
            if overrides not in cells:
                cells[overrides] = Cell(self._name(config, overrides), overrides)
        self.cells = list(cells.values())
        self.seeds, self.stages = _repeated(seeds, study["repeats"])
        self.looks = len(self.stages)
        self._require_folders(bool(study["mixed"] or (self.compares and study["retries"])))

    @property
    def compares(self) -> bool:
        """Whether cells are repeated, to be compared.

        Then each round has an order of its own, there is a burn-in, and drift matters. Any other
        sweep is run as it was given.
        """
        return len(self.cells) > 1 and self.stages[-1] > 1

    def order(self, number: int, shuffled: bool) -> list[Cell]:
        """The cells of a round, in the order in which they are run.

        Of two shuffled rounds the second is the first turned round, so that what changes steadily
        in a round adds nothing to either cell of a pair: few rounds' orders alone leave it much.
        """
        cells = list(self.cells)
        if shuffled:
            random.Random(f"{self._seed}/{number // 2}").shuffle(cells)
            if number % 2:
                cells.reverse()
        return cells

    def overrides(self, cell: Cell, number: int, *instead: str) -> list[str]:
        """Those of the run of `cell` in a round, with `instead` for its own of the same keys."""
        own = [*cell.overrides, f"seed={rules.spelled(self.seeds[number])}"]
        keys = set(map(key_of, instead))
        return [*(text for text in own if key_of(text) not in keys), *instead]

    def job(self, cell: Cell, number: int, *instead: str) -> Job:
        """The run of `cell` in a round, not settled: see `overrides`."""
        config = self._compose(self.overrides(cell, number, *instead))
        return Job(config, config.hydra)

    def folder_name(self, cell: Cell, number: int, run: int) -> str:
        """What the folder of the run of `cell` in a round is named if it is the study's `run`th."""
        config = self._compose(self.overrides(cell, number))
        config.hydra.job.num = run
        return str(OmegaConf.select(config, "hydra.sweep.subdir"))

    def _require_folders(self, again: bool) -> None:
        """Raise ConfigError if two runs would be in one folder. again: one may be made anew."""
        runs = [(cell, 0) for cell in self.cells]
        runs += [(self.cells[0], 1)] * (len(self.seeds) > 1) + [(self.cells[0], 0)] * again
        names = [self.folder_name(*run, number) for number, run in enumerate(runs)]
        if len(set(names)) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise ConfigError(
                "hydra.sweep.subdir", name, "it names the folder of two runs",
                "each has a folder of its own", "put ${hydra.job.num} into it",
            )  # fmt: skip

    def _name(self, config: DictConfig, overrides: Sequence[str]) -> str:
        choices = config.hydra.runtime.choices
        others = [
            text.lstrip("+") for text in overrides
            if (key := key_of(text)) in self.swept and key not in ("parallel", "amp")
        ]  # fmt: skip
        return " ".join([f"{choices.get('parallel')}-{choices.get('amp')}", *others])


def key_of(override: str) -> str:
    """The key that an override gives a value; + and ++ may stand before it."""
    return override.lstrip("+").partition("=")[0]


def in_one_cell(key: str, values: str) -> ConfigError:
    """What a sweep over a key is told that no result says."""
    return ConfigError(
        key, values, "it has several values", "its runs would stand in one cell",
        "sweep it in commands of its own",
    )  # fmt: skip


def _repeated(seeds: list[Any], repeats: int | str | None) -> tuple[list[Any], Sequence[int]]:
    """The seeds of the rounds, and the stages: see Plan."""
    if repeats is None:
        return seeds, [len(seeds)]
    most = LOOKS[-1] if repeats == "auto" else int(repeats)
    if len(seeds) > most:
        raise ConfigError(
            "study.repeats", repeats, f"the sweep names {len(seeds)} seeds",
            f"there is a round for each, and at most {most}",
            f"set study.repeats={len(seeds)} or more, or name fewer",
        )  # fmt: skip
    numbers = [seed for seed in seeds if isinstance(seed, int)]
    further = range(max(numbers, default=0) + 1, 2**32)
    return [*seeds, *further[: max(most - len(seeds), 0)]][:most], (
        LOOKS if repeats == "auto" else [most]
    )


def not_honored(config: DictConfig, stored: Path) -> list[Failure]:
    """What `config` says of a study although none is run.

    `stored` is the configuration file, whose values say nothing.
    """
    if "study" not in config:
        return []
    wrong, do = "a single run has no rounds", "add -m, or leave it out"
    if config.hydra.mode == RunMode.MULTIRUN:
        sweeper = config.hydra.runtime.choices.get("hydra/sweeper")
        if sweeper == SWEEPER:
            return []
        wrong, do = f"hydra/sweeper={sweeper} has no rounds", "leave one of them out"
    before = OmegaConf.load(stored).study
    return [
        ConfigError(
            f"study.{key}", rules.spelled(value), wrong,
            f"a sweep with hydra/sweeper={SWEEPER}, the default, has", do,
        )
        for key, value in config.study.items()
        if value != before.get(key)
    ]  # fmt: skip


def problems(config: DictConfig) -> list[Failure]:
    """What is wrong with the values in the sections of a sweep."""
    return [
        failure
        for section in rules.OF_A_SWEEP
        for key, value in config[section].items()
        for failure in rules.breach(f"{section}.{key}", value)
    ]
