"""The plan of a study: its cells, and the seeds of its rounds."""

from __future__ import annotations

import pickle
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ninefold.config import rules
from ninefold.config.hydra_parts import get_overrides_dirname, parsed
from ninefold.config.job import Asked, asked
from ninefold.config.resolvers import run_name
from ninefold.config.untrusted import targets_in
from ninefold.errors import ConfigError
from ninefold.result import PROCESSES, are_digits, are_numbers, cell_name
from ninefold.secrets import redact
from ninefold.tournament.plan import drawn
from ninefold.types import spelled
from ninefold.words import key_and_value, key_of

AXES = ("parallel", "amp")
SEED = "0"  # of the orders of the cells: those of a resumed study are the same
BASELINE, CONTROL = "none", "control"  # options of `parallel`: the second repeats the first
Compose = Callable[[Sequence[str]], DictConfig]


@dataclass(frozen=True)
class PlannedCell:
    """A configuration that is run once in each round, with that round's seed.

    keys: parallel, amp and the keys with several values in the study, with this cell's values; of a
        strategy that has one process, no number of processes.
    overrides: of the command, without the seed.
    """

    keys: Mapping[str, str]
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """See `cell_name`."""
        return cell_name(self.keys)

    @property
    def folder(self) -> str:
        """Its name as a folder's: other cells have other folders."""
        plain = re.sub(r"[^\w.=-]+", "_", self.name)[:64]
        return plain if plain == self.name else f"{plain}-{zlib.crc32(self.name.encode()):08x}"


class Plan:
    """The cells and seeds of a sweep's jobs, and the order in which they are run.

    cells: in the command's order.
    control: a copy of the first of them that is timed and not trained; None: not asked for.
    seeds: of the rounds, by number; as many as there may be.
    swept: the keys with several values besides the seed, and those values as written.
    """

    def __init__(
        self, jobs: Sequence[Sequence[str]], compose: Compose, study: Mapping[str, Any]
    ) -> None:
        """jobs: overrides of each run. study: that section. Raises ConfigError, or Hydra's."""
        self._compose = compose
        self.swept = _swept(jobs)
        overrides = dict.fromkeys(tuple(t for t in job if key_of(t) != "seed") for job in jobs)
        composed = {each: compose(each) for each in overrides}
        self._scales = are_numbers(self.swept.get(PROCESSES))
        if self._scales and "parallel" in self.swept:
            composed = _possible(composed)
        self.cells = [self._cell(each, config, study) for each, config in composed.items()]
        self.control = _copied(self.cells[0]) if study["control"] and self.compares_cells else None
        self.seeds = _of_rounds(_seeds(jobs, list(composed.values())), study["rounds"])
        self._require_folders()

    @property
    def timed(self) -> list[PlannedCell]:
        """Its cells, and their control."""
        return [*self.cells, *filter(None, [self.control])]

    @property
    def compares(self) -> bool:
        """Whether several cells are run several times, to be compared.

        Only then are the rounds shuffled. Any other sweep is run in the command's order.
        """
        return len(self.cells) > 1 and len(self.seeds) > 1

    @property
    def compares_cells(self) -> bool:
        """Whether its cells differ in strategy, precision or processes, and in nothing else."""
        return len(self.cells) > 1 and self.swept.keys() <= {"parallel", "amp", PROCESSES}

    def order(self, number: int, shuffled: bool) -> list[PlannedCell]:
        """The cells of round `number`, in the order in which they are run.

        Every second shuffled round reverses the order of the one before. A steady change of the
        machine within rounds then cancels out in each pair of rounds.
        """
        if not shuffled:
            return list(self.cells)
        cells = {cell.name: cell for cell in self.cells}
        return [cells[name] for name in drawn(cells, SEED, number)]

    def overrides(self, cell: PlannedCell, number: int) -> list[str]:
        """Overrides of the run of `cell` in round `number`."""
        return [*cell.overrides, f"seed={spelled(self.seeds[number])}"]

    def job(self, cell: PlannedCell, number: int) -> Asked:
        """The job of the run of `cell` in round `number`, not settled: see `overrides`."""
        config = self._compose(self.overrides(cell, number))
        return asked(config, config.hydra)

    def config(self, overrides: Sequence[str], run: int) -> DictConfig:
        """The configuration of the study's `run`th run, with Hydra's section. It may be changed."""
        config = self._compose(overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = run
        return config

    def folder_name(self, cell: PlannedCell, number: int, run: int) -> str:
        """The folder of the run of `cell` in round `number` if it is the study's `run`th.

        It has the values that the study swept, unless the user names folders.
        """
        config = self.config(self.overrides(cell, number), run)
        name = str(OmegaConf.select(config, "hydra.sweep.subdir"))
        parts = (run, cell.keys["parallel"], cell.keys["amp"], f"seed{config.seed}")
        if name != run_name(*parts):
            return name
        values = [f"{key}={value}" for key, value in cell.keys.items() if key not in AXES]
        return run_name(*parts, values=redact(",".join(values)))

    def targets(self) -> set[str]:
        """The classes and functions that the cells' configurations name as _target_."""
        trees = [OmegaConf.to_container(self._compose(cell.overrides)) for cell in self.cells]
        return {target for tree in trees for target in targets_in(tree)}

    def _require_folders(self) -> None:
        """Raise ConfigError if two runs would share a folder."""
        runs = [(cell, 0) for cell in self.cells]
        runs += [(self.cells[0], 1)] * (len(self.seeds) > 1)
        names = [self.folder_name(*run, number) for number, run in enumerate(runs)]
        if len(set(names)) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            wrong, allowed = "it names the folder of two runs", "each has a folder of its own"
            do = "put ${hydra.job.num} into it"
            raise ConfigError("hydra.sweep.subdir", name, wrong, allowed, do)

    def _cell(
        self, overrides: tuple[str, ...], config: DictConfig, study: Mapping[str, Any]
    ) -> PlannedCell:
        """The cell of these overrides; with weak scaling its batch grows with its processes."""
        keys = self._keys(config, overrides)
        batch, processes = config.batch_size, config.parallel.get("processes")
        numbers = isinstance(batch, int) and isinstance(processes, int)
        if not (self._scales and study["scaling"] == "weak" and numbers):
            return PlannedCell(keys, overrides)
        others = tuple(text for text in overrides if key_of(text) != "batch_size")
        return PlannedCell(keys, (*others, f"batch_size={batch * processes}"))

    def _keys(self, config: DictConfig, overrides: Sequence[str]) -> dict[str, str]:
        own = dict(key_and_value(text) for text in overrides)
        choices = config.hydra.runtime.choices
        axes = {axis: str(choices.get(axis)) for axis in AXES}
        if config.parallel.get("max_processes") == 1 and are_digits(own.get(PROCESSES)):
            del own[PROCESSES]
        return {**axes, **{key: own[key] for key in own if key in self.swept and key not in axes}}


def _copied(cell: PlannedCell) -> PlannedCell | None:
    """The A/A control of `cell`; None of a cell that is no single process."""
    if cell.keys["parallel"] != BASELINE:
        return None
    others = tuple(text for text in cell.overrides if key_of(text) != "parallel")
    return PlannedCell({**cell.keys, "parallel": CONTROL}, (*others, f"parallel={CONTROL}"))


def _swept(jobs: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """The keys with several values besides the seed. Raises ConfigError if one cannot have them."""
    given: dict[str, list[str]] = {}
    for key, value in map(key_and_value, chain.from_iterable(jobs)):
        values = given.setdefault(key, [])
        values += [value] * (value not in values)
    swept = {key: texts for key, texts in given.items() if len(texts) > 1 and key != "seed"}
    for key, texts in swept.items():
        if key.partition(".")[0] in rules.SWEEP_SECTIONS:
            wrong, allowed = "it has several values", "it is one for the whole sweep"
            raise ConfigError(key, ",".join(texts), wrong, allowed, "choose one")
    return swept


def _possible(composed: dict[tuple[str, ...], DictConfig]) -> dict[tuple[str, ...], DictConfig]:
    """The cells without those of more processes than their strategy can have.

    So `parallel=none,ddp parallel.processes=1,2` has one cell of none. Raises ConfigError if it
    leaves none.
    """
    found = {
        overrides: config
        for overrides, config in composed.items()
        if not isinstance(most := config.parallel.get("max_processes"), int)
        or config.parallel.processes <= most
    }
    if found:
        return found
    config = next(iter(composed.values()))
    wrong = "none of these strategies takes so many processes"
    most = f"parallel.max_processes={config.parallel.max_processes} is the most"
    do = "sweep parallel=ddp too"
    raise ConfigError(PROCESSES, config.parallel.processes, wrong, most, do)


def _seeds(jobs: Sequence[Sequence[str]], cells: Sequence[DictConfig]) -> list[Any]:
    """The seeds that `jobs` name, each once, or else those of `cells`; the first is changed."""
    seeds: list[Any] = []
    config = cells[0]
    for text in dict.fromkeys(text for job in jobs for text in job if key_of(text) == "seed"):
        OmegaConf.update(config, "seed", parsed([text])[0].value())
        seeds += [config.seed] * (config.seed not in seeds)
    return seeds or list(dict.fromkeys(cell.seed for cell in cells))


def _of_rounds(seeds: list[Any], rounds: int | None) -> list[Any]:
    """The seeds of so many rounds, the named ones first."""
    if rounds is None:
        return seeds
    if len(seeds) > rounds:
        wrong = f"the sweep names {len(seeds)} seeds"
        allowed = f"there is a round for each, and at most {rounds}"
        do = f"set study.rounds={len(seeds)} or more, or name fewer"
        raise ConfigError("study.rounds", rounds, wrong, allowed, do)
    numbers = [seed for seed in seeds if isinstance(seed, int)]
    further = range(max(numbers, default=0) + 1, 2**32)
    return [*seeds, *further[: rounds - len(seeds)]]


class Composer:
    """Composes runs as Hydra does, and reuses a composition for those that differ in values only.

    Hydra reads and merges some twenty files in each composition and sets plain values (as of
    `seed=1`) last. Here those are set on a copy. Hydra does the rest, and reports errors.
    """

    def __init__(self, loader: ConfigLoader, sweep: DictConfig) -> None:
        """`sweep`: the configuration of the whole sweep, as Hydra gives it to its sweeper."""
        self._loader, self._sweep = loader, sweep
        self._composed: dict[tuple[str, ...], bytes] = {}

    def __call__(self, texts: Sequence[str]) -> DictConfig:
        """The configuration of the run with these overrides. Raises what Hydra raises."""
        overrides = parsed(texts)
        groups = self._sweep.hydra.runtime.choices
        # The order of other overrides matters to values in the same section, but a group's option
        # is chosen before all values are set.
        plain = [override for override in overrides if _is_value(override, self._sweep)]
        ordered = {
            _section(override)
            for override in overrides
            if override not in plain and not _is_choice(override, groups)
        }
        values = [override for override in plain if _section(override) not in ordered]
        others = tuple(o.input_line or "" for o in overrides if o not in values)
        if others not in self._composed:
            composed = self._loader.load_sweep_config(self._sweep, list(others))
            self._composed[others] = pickle.dumps(composed)
        config: DictConfig = pickle.loads(self._composed[others])  # 5 times as fast as deepcopy
        OmegaConf.copy_cache(self._sweep, config)  # so that ${now:} is that of the sweep
        try:
            for override in values:
                OmegaConf.update(config, override.key_or_group, override.value())
        except OmegaConfBaseException:  # Hydra says it better
            return self._loader.load_sweep_config(self._sweep, list(texts))
        own = [override for override in overrides if not override.is_hydra_override()]
        config.hydra.overrides.task = [override.input_line for override in own]
        job = config.hydra.job
        job.override_dirname = get_overrides_dirname(own, **job.config.override_dirname)
        return config


def _section(override: Override) -> str:
    return override.key_or_group.partition(".")[0]


def _is_choice(override: Override, groups: DictConfig) -> bool:
    """Whether `override` chooses an option of a group."""
    return override.key_or_group in groups and not isinstance(override.value(), dict)


def _is_value(override: Override, sweep: DictConfig) -> bool:
    """Whether `override` only sets an existing key to another plain value or list."""
    groups = sweep.hydra.runtime.choices  # without those of which several options are chosen
    return (
        override.type == OverrideType.CHANGE
        and override.package is None
        and override.key_or_group not in groups
        and not override.is_hydra_override()
        and not isinstance(override.value(), dict)
        and not OmegaConf.is_dict(OmegaConf.select(sweep, override.key_or_group))
    )
