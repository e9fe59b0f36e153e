"""The job of a command in its phases: Asked as composed, Checked for mistakes, Settled to be run.

What its workers read is the last, spec.RunSpec. Nothing here imports torch, except that `settle`
does to count GPUs.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from ninefold.checkpoint import manifest
from ninefold.config import combinations, data, options, processes, resume, rules, schema
from ninefold.config.conf_files import GPUS, keys_in, names_gpus, other_gpus
from ninefold.config.configuration import Configuration, Tree
from ninefold.config.hydra_parts import parsed
from ninefold.config.resume import Resume
from ninefold.errors import ConfigError, Failure, Refused
from ninefold.files import flat
from ninefold.places import see
from ninefold.types import NO_EFFECT, spelled
from ninefold.words import key_and_value, key_of

# Keys of training that a loop of one's own does not need to train alike; `init` is a path.
OF_NO_LOOP = ("init", "numerics", "log_every", "checkpoint", "clock", "device")
OF_MACHINE = ("threads", "parallel.processes")  # it determines their values where they are auto
KEYS_FROM_DATA = ("classes", "shape")  # of a dataset: the data may say them where they are null
# Keys and groups that result.json has as fields.
FIELDS = ("seed", "parallel", "amp", "dataset", "model", "batch_size", "epochs", "experiments")
# Runs that differ in these only would be taken for one cell's, as result.json omits them.
KEYS_NOT_IN_RESULT = ("resume", "logger", "profile", "dataset.root", "dataset.download")

FillCache = Callable[[int], dict[str, str] | None]  # with so many threads; returns its files


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What a job has in each of its phases.

    config: its configuration, without Hydra's own settings and without keys of a command alone.
    choices: the option of each group.
    overrides: as typed.
    resume: folder of the run to resume; None for a new run. Of Asked also AUTO: the newest
        unfinished one.
    """

    config: Configuration
    choices: Tree
    overrides: list[str]
    resume: str | None

    @property
    def resolved(self) -> Tree:
        """The configuration with the values of the environment, for checks."""
        return self.config.resolved


@dataclass(frozen=True, kw_only=True)
class Asked(_Job):
    """The job that a command asks for, as composed: nothing of it is checked.

    of_command: the keys that no run has, such as `study` and `trust`.
    in_sweep: whether it is a run of a sweep. names_folder: whether it sets hydra.run.dir.
    """

    of_command: Tree
    evaluates: bool
    in_sweep: bool
    names_folder: bool

    @property
    def variant(self) -> list[str]:
        """As of Settled; empty where the file of an experiment sets some that are still open."""
        if self.choices.get("experiments"):
            return []
        if self.resume is None:
            return variant(self.overrides)
        return variant(resume.all_overrides(Path(self.resume), self.overrides))

    def differences(self, folder: Path, vary: tuple[str, ...] = ()) -> list[str]:
        """How this job differs from the run in `folder`, as `key=now (was before)`.

        Keys that affect no result are left out. vary: more keys to leave out; if there are any,
        also those that refer to others, as a cosine's T_max to epochs. Raises CheckpointError.
        """
        run = resume.read(folder)
        before = run.config.frozen
        now = self.config.completed(of_data(self.config, before)).frozen
        follows = self._follows(now, folder) if vary else []
        return schema.differences(
            {**before, "choices": run.choices},
            {**now, "choices": self.choices},
            (*options.marked(NO_EFFECT), "choices.logger", *self.automatic, *vary, *follows),
        )

    def _follows(self, now: Tree, folder: Path) -> list[str]:
        """The keys that refer to others, but for those that a command of the run in `folder` set.

        That is the command that began it, or one that resumed it.
        """
        told = {*map(key_of, resume.all_overrides(folder, []))}
        of_job = [key for key, value in flat(now).items() if "${" not in str(value)]
        return [key for key in of_job if key not in told and self.config.refers(key)]

    @property
    def automatic(self) -> list[str]:
        """The keys whose values are the machine's."""
        return [key for key in OF_MACHINE if resume.select(self.resolved, key) == "auto"]


@dataclass(frozen=True, kw_only=True)
class Checked(_Job):
    """A job in which nothing wrong is found without reading data or asking for devices.

    If a run is resumed, it is that run's, but for the keys that may change.
    """

    asked: Asked

    def settle(self) -> Settled:
        """Check that the data is there (download it if asked to) and resolve the values `auto`.

        Last, the examples are decoded into dataset.cache. Raises Failure.
        """
        if not self.asked.evaluates:
            options.require_packages(self.resolved)
        config, fill_cache = self._with_data()
        strategy, parallel = str(self.choices["parallel"]), config.resolved["parallel"]
        count = processes.number(
            parallel["processes"], parallel["max_processes"], config.resolved, strategy
        )
        config = config.completed({"parallel.processes": count})
        return Settled(
            asked=self.asked,
            config=config,
            choices=self.choices,
            overrides=self.overrides,
            resume=self.resume,
            cache=fill_cache(config.resolved["threads"]),
        )

    def _with_data(self) -> tuple[Configuration, FillCache]:
        """Check the data, or find the cache that this command has of it already.

        Returns the configuration with what the data says of keys that are null, and what fills the
        cache, once `threads` is known. Raises Failure.
        """
        config, evaluates = self.config, self.asked.evaluates
        node = config.resolved.get("dataset")
        if node is None or (evaluates and data.refers_elsewhere(node)):
            # It takes that of its checkpoint, or refers to something that only the checkpoint has.
            return config, lambda threads: None
        began = evaluates or self.resume is not None  # what a run that is resumed asks, it has
        asking = None if began else _refers_to_classes(config.tree)
        option = self.choices["dataset"]
        dataset, cache, found = data.prepare(node, option, asking, counts=evaluates)
        config = config.with_values({f"dataset.{key}": value for key, value in found.items()})
        if "shape" in found and not evaluates and (wrong := combinations.problems(config.resolved)):
            raise Refused(wrong)  # which could not be seen without it

        def fill_cache(threads: int) -> dict[str, str] | None:
            if cache is not None:
                return cache
            return data.fill_cache(dataset, config.resolved["dataset"], threads, asked=node)

        return config, fill_cache


@dataclass(frozen=True, kw_only=True)
class Settled(_Job):
    """A job that can be run: its data is there, and no value is left open.

    cache: where its decoded examples are: the path of each file by name.
    """

    asked: Asked
    cache: dict[str, str] | None

    @property
    def evaluates(self) -> bool:
        return self.asked.evaluates

    @property
    def processes(self) -> int:
        """How many processes it has."""
        return int(self.resolved["parallel"]["processes"])

    @cached_property
    def text(self) -> str:
        """What is written to config.yaml, and read by the workers."""
        return as_yaml(self.config.frozen, self.choices)

    @property
    def overrides_yaml(self) -> str:
        """What a run writes to .hydra/overrides.yaml."""
        return OmegaConf.to_yaml(self.overrides)

    @property
    def variant(self) -> list[str]:
        """The overrides to list in result.json: it has fields of their own for cell and seed.

        First is what the file of an experiment sets of training and of the strategy.
        """
        if self.choices.get("experiments") is None:
            return variant(self.overrides)
        typed = {*map(key_of, self.overrides)} - {*schema.GROUPS}
        left_out = (*typed, *OF_MACHINE, *OF_NO_LOOP, *options.marked(NO_EFFECT))
        found = [
            f"{key}={spelled(value)}"
            for key, value in flat(self.resolved).items()
            if (key in schema.TRAIN or key == "dataset.limit" or key.startswith("parallel."))
            and not schema.is_any_of(key, left_out)
            and (known := options.find(key))
            and known.default not in (schema.BY_OPTION, value)
        ]
        return variant([*found, *self.overrides])

    def training_examples(self) -> int:
        """The number of training examples. Raises DataError."""
        return data.training_examples(self.resolved["dataset"])


def asked(composed: DictConfig, hydra: HydraConf) -> Asked:
    """The job that a composed configuration describes.

    Raises OmegaConf's error of a reference that cannot be resolved.
    """
    tree: DictConfig = pickle.loads(pickle.dumps(composed))  # as copy(), in a third of it
    with open_dict(tree):
        tree.pop("hydra", None)
        if isinstance(given := tree.get("compile"), bool):
            tree["compile"] = {"mode": "default" if given else None}
    evaluates = "ckpt" in tree.keys()  # noqa: SIM118  (`in` denies a `???`)
    in_sweep = hydra.mode == RunMode.MULTIRUN
    known = hydra.runtime.choices
    choices = {key: known.get(key) for key in (*schema.GROUPS, "experiments") if key in known}
    if in_sweep or choices.get("experiments"):
        _leave_out_keys_of_other_strategies(tree, choices.get("parallel"))
    # as written: `key=${other}` reads like a reference to OmegaConf
    overrides: list[str] = OmegaConf.to_container(hydra.overrides.task)  # type: ignore[assignment]
    config = Configuration(tree=tree, resolves=not evaluates)
    keys = () if evaluates else rules.COMMAND_SECTIONS
    of_command = {key: config.resolved[key] for key in keys if key in config.resolved}
    with open_dict(tree):
        for key in of_command:
            tree.pop(key)
    config = replace(config, tree=tree)
    place = config.resolved.get("resume")
    if place == resume.AUTO:
        config = config.with_values({"resume": None})  # the same run, however it was started
    return Asked(
        config=config,
        choices=choices,
        overrides=overrides,
        resume=None if place is None else str(place),
        of_command=of_command,
        evaluates=evaluates,
        in_sweep=in_sweep,
        names_folder="hydra.run.dir" in map(key_of, hydra.overrides.hydra),
    )


def problems(asked: Asked) -> list[Failure]:
    """The problems of a new job that can be found without reading data or asking for devices."""
    found = rules.problems(
        {**asked.resolved, **asked.of_command},
        schema.top_level(asked.evaluates) | asked.of_command.keys(),
        rules.inner_keys(asked.choices, asked.evaluates),
        schema.required(asked.evaluates),
    )
    refers = asked.config.refers  # a wrong value is told once, where it was given
    values = {failure.value for failure in found if not refers(failure.field)}
    found = [f for f in found if f.value not in values or not refers(f.field)]
    given = dict(map(key_and_value, asked.overrides))
    found += [
        a_list(group, given.get(group, "?"))
        for group in schema.GROUPS
        if group != "logger" and group in asked.resolved and group not in asked.choices
    ]
    # Options that are more than a name would lead out of conf/, or of the output folder.
    return found + [
        not_a_name(group, option)
        for group, option in asked.choices.items()
        if option is not None and not rules.NAME.fullmatch(str(option))
    ]


def check(asked: Asked) -> Checked:
    """The job, with no problem that can be found without reading data. Raises Refused."""
    found = problems(asked)
    job = Checked(
        asked=asked,
        config=asked.config,
        choices=asked.choices,
        overrides=asked.overrides,
        resume=asked.resume,
    )
    if asked.evaluates:
        try:
            file = str(_checkpoint(asked.resolved["ckpt"]))
            job = replace(job, config=job.config.with_values({"checkpoint_file": file}))
        except Failure as failure:
            found.append(failure)
    if found:
        raise Refused(found)
    return job if job.resume is None else _resumed(job, Path(job.resume))


def _resumed(job: Checked, folder: Path) -> Checked:
    """The job of the run in `folder`, except for keys that may change. Raises Refused."""
    keys = _named(job.overrides)
    if job.resolved["resume"] is None:  # its own command goes on with it, on any machine
        keys += job.asked.automatic
    try:
        run = resume.read(folder)
        if run.config.frozen["dataset"].get("download") and "dataset.download" not in keys:
            # Nothing is fetched because a file says so.
            run = replace(run, config=run.config.with_values({"dataset.download": False}))
        now = job.config.with_values(of_data(job.config, run.config.frozen))
        resuming = Resume(run, keys, now, job.choices)
        if job.asked.of_command.get("trust") is not True:
            resuming.check_trust()
        resuming.check_same()
        resuming.check_root()
        resuming.check_values()
    except Failure as failure:
        raise Refused([failure]) from failure
    config, choices, replaced = resuming.merged
    overrides = resume.all_overrides(folder, job.overrides, replaced)
    return replace(job, config=config, choices=choices, overrides=overrides)


def of_data(config: Configuration, run: Tree) -> Tree:
    """The values that a run has from its data of keys that are null in `config`."""
    dataset = config.resolved.get("dataset") or {}
    open_keys = [f"dataset.{key}" for key in KEYS_FROM_DATA if dataset.get(key, 0) is None]
    return {key: resume.select(run, key) for key in open_keys}


def _named(overrides: list[str]) -> list[str]:
    """The keys that the overrides of a command set, and the groups that they choose from."""
    found: list[str] = []
    for override in parsed(overrides):
        key, value = override.key_or_group, override.value()
        if isinstance(value, dict) and value and not override.is_delete():
            found += flat(value, key)
        else:
            found.append(key)
    of_command = ("resume", *rules.COMMAND_SECTIONS)
    return [key for key in found if not schema.is_any_of(key, of_command)]


def _checkpoint(given: Any) -> Path:
    """The file of the checkpoint that is to be evaluated. Raises Failure."""
    if given in (None, "", "???"):
        wrong = "nothing is given to evaluate"
        allowed = "a run folder or a file is allowed"
        raise ConfigError("ckpt", spelled(given), wrong, allowed, "set ckpt=PATH")
    return manifest.required("ckpt", given)


def _leave_out_keys_of_other_strategies(tree: DictConfig, strategy: Any) -> None:
    """In a sweep, or the file of a study, a key of some strategies is set for these alone."""
    own = keys_in("parallel", str(strategy))
    node = tree.get("parallel")
    if own is None or not isinstance(node, DictConfig):
        return
    with open_dict(node):
        for key in list(node):
            if key not in own and options.find(name := f"parallel.{key}"):
                value = node.pop(key)
                if name == GPUS and names_gpus(f"{GPUS}={spelled(value)}"):
                    raise other_gpus(str(value))


def variant(overrides: Sequence[str]) -> list[str]:
    """The overrides that a result has no fields for, as it has for cell and seed."""
    return [
        text
        for text in overrides
        if (key := key_of(text)) not in KEYS_NOT_IN_RESULT
        and (key not in FIELDS or "={" in text)  # a mapping is no name of an option
        and key.partition(".")[0] not in rules.COMMAND_SECTIONS
    ]


def as_yaml(frozen: Tree, choices: Tree) -> str:
    """A job as config.yaml holds it."""
    return OmegaConf.to_yaml(OmegaConf.create({**frozen, "choices": choices}))


def not_a_name(group: str, option: object) -> ConfigError:
    """The failure of a command that chooses `option`, which is no name, from `group`."""
    allowed = "letters, digits and . _ - are allowed"
    return ConfigError(group, option, "not the name of an option", allowed, see(group))


def a_list(group: str, given: str) -> ConfigError:
    """The failure of a job with a list of options of `group`, of which Hydra makes one section."""
    do = f"name one, or compare several with -m {group}=ONE,OTHER"
    return ConfigError(group, given, "a list of options", "one option is allowed", do)


def _refers_to_classes(tree: DictConfig) -> str | None:
    """The key, such as task.classes, whose value is the number of the dataset's classes."""
    values = flat(OmegaConf.to_container(tree))
    asks = (key for key, value in values.items() if "${" in str(value))
    return next((key for key in asks if "dataset.classes" in str(values[key])), None)
