"""The job of a command in its phases: Asked as composed, Checked for mistakes, Settled to be run.

What its workers read is the last, spec.RunSpec. Nothing here imports torch, except that `settle`
does to count GPUs.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ninefold import machine
from ninefold.checkpoint import manifest
from ninefold.config import (
    combinations,
    data,
    environment,
    needs,
    options,
    processes,
    resume,
    rules,
    schema,
    untrusted,
)
from ninefold.config import overrides as messages
from ninefold.config.parse import key_of
from ninefold.config.resume import Stored
from ninefold.config.spelling import spelled
from ninefold.config.yaml_text import yaml_text
from ninefold.errors import CheckpointError, ConfigError, Failure, Refused
from ninefold.files import flat
from ninefold.places import see
from ninefold.ranks import started_by
from ninefold.types import MAY_CHANGE, NO_EFFECT

GROUPS = ("parallel", "amp", "dataset", "model", "optimizer", "scheduler", "logger", "task")
# Keys and groups that result.json has as fields.
SAID = ("classes", "shape")  # keys of a dataset that the data may say where they are null
FIELDS = ("seed", "parallel", "amp", "dataset", "model", "batch_size", "epochs", "experiments")
# Keys that result.json omits: runs that differ in these only would be taken for one cell's.
UNSAID = ("resume", "logger", "profile", "dataset.root", "dataset.download")


Tree = dict[str, Any]
FillCache = Callable[[int], dict[str, str] | None]  # with so many threads; returns its files


@dataclass(frozen=True)
class Asked:
    """The job that a command asks for, as composed: nothing of it is checked.

    command: `train` or `evaluate`.
    composed: the configuration, without Hydra's own settings and without `of_command`.
    resolved: the same as plain data, environment included, for checks.
    stored: the same to be written, with references to the environment as they are, so that no
        secret reaches a file.
    unresolved: why it cannot be resolved, if so; both trees are then as composed.
    of_command: the keys that no run has, such as `study` and `trust`.
    choices: the option of each group.
    overrides: as typed.
    in_sweep: whether it is a run of a sweep.
    resume: folder of the run to resume; None for a new run, AUTO for the newest unfinished one.
    """

    command: str
    composed: DictConfig
    resolved: Tree
    stored: Tree
    unresolved: list[Failure]
    of_command: Tree
    choices: Tree
    overrides: list[str]
    in_sweep: bool
    resume: str | None

    @property
    def evaluates(self) -> bool:
        return self.command == "evaluate"

    def as_attempt(self) -> Asked:
        """This job as an attempt of a search for the largest batch, which is no run of a study.

        It has only the loggers that log attempts as well: no tracker shows it.
        """
        kept = {
            name: node
            for name, node in self.stored["logger"].items()
            if options.declares(str(node["_target_"]), "of_attempts")
        }
        composed = self.composed.copy()
        with open_dict(composed.logger):
            for name in set(composed.logger) - kept.keys():
                composed.logger.pop(name)
        own = {"logger": kept}
        resolved, stored = {**self.resolved, **own}, {**self.stored, **own}
        return replace(self, composed=composed, resolved=resolved, stored=stored)

    def differences(self, folder: Path) -> list[str]:
        """How this job differs from the run in `folder`, as `key=now (was before)`.

        Keys that affect no result are left out. Raises CheckpointError.
        """
        run = resume.read(folder, schema.top_level(evaluates=False))
        now = copy.deepcopy(self.stored)
        open_keys = [key for key in SAID if (now.get("dataset") or {}).get(key, 0) is None]
        if open_keys:  # the data says them
            config = self.composed.copy()
            with open_dict(config):
                for key in open_keys:
                    config.dataset[key] = resume.select(run.frozen, f"dataset.{key}")
            with environment.kept():
                now |= {**_container(_resolvable(config)), "resume": now["resume"]}
        _complete(now)
        ours = flat({**now, "choices": self.choices})
        theirs = flat({**run.frozen, "choices": run.choices})
        # The machine determines their values.
        automatic = [
            key
            for key in ("threads", "parallel.processes")
            if resume.select(self.stored, key) == "auto"
        ]
        return [
            f"{key}={spelled(ours.get(key, resume.MISSING))} "
            f"(was {spelled(theirs.get(key, resume.MISSING))})"
            for key in {**ours, **theirs}
            if ours.get(key, resume.MISSING) != theirs.get(key, resume.MISSING)
            and key not in automatic
            and not schema.is_any_of(key, (*options.marked(NO_EFFECT), "choices.logger"))
        ]


@dataclass(frozen=True)
class Checked:
    """A job in which nothing wrong is found without reading data or asking for devices.

    resolved, stored, choices, overrides: as of Asked. If a run is resumed, they are its own, but
        for the keys that may change.
    before: strategy and processes of that run.
    """

    asked: Asked
    resolved: Tree
    stored: Tree
    choices: Tree
    overrides: list[str]
    resume: str | None
    before: tuple[str, int] | None = None

    def continuing(self, run: Stored, keys: list[str]) -> Checked:
        """The job of `run`, with this command's values of those `keys` that may change."""
        stored, choices = resume.carried_over(run, keys, self.stored, self.choices)
        with environment.noted():
            resolved = _container(OmegaConf.create(stored))
        return Checked(
            self.asked,
            resolved,
            stored,
            choices,
            resume.all_overrides(run.folder, self.overrides),
            str(run.folder),
            before=(run.choices["parallel"], run.frozen["parallel"]["processes"]),
        )

    def settle(self) -> Settled:
        """Check that the data is there (download it if asked to) and resolve the values `auto`.

        Last, the examples are decoded into dataset.cache. Raises Failure.
        """
        if not self.asked.evaluates:
            needs.require_packages(self.resolved)
            if (mode := self.resolved["compile"]["mode"]) is not None:
                on_gpu = self.resolved["device"] != "cpu" and machine.gpu_driver()
                machine.require_compiler(mode, on_gpu)
        composed, resolved, stored, fill_cache = self._with_data()
        _complete(stored)  # after the number of classes, which other keys may refer to
        parallel = stored["parallel"]
        parallel["processes"] = processes.number(
            parallel["processes"],
            parallel["max_processes"],
            resolved,
            self.choices["parallel"],
        )
        now = str(self.choices["parallel"]), int(parallel["processes"])
        resolved["parallel"]["processes"] = now[1]  # a failure is recorded with what is resolved
        return Settled(
            self.asked,
            composed,
            resolved,
            stored,
            self.choices,
            self.overrides,
            self.resume,
            now[1],
            fill_cache(stored["threads"]),
            resume.moved(self.before, now),
            as_yaml(stored, self.choices),
            sorted(set(map(str, untrusted.targets_in(resolved).values()))),
        )

    def _with_data(self) -> tuple[DictConfig, Tree, Tree, FillCache]:
        """Check the data, or find the cache that this command has of it already.

        Returns composed, resolved and stored with the number of classes in the data in place of
        null, and what fills the cache, once `threads` is known. Raises Failure.
        """
        composed = self.asked.composed
        resolved, stored = copy.deepcopy(self.resolved), copy.deepcopy(self.stored)
        node, evaluates = resolved.get("dataset"), self.asked.evaluates
        if node is None or (evaluates and data.refers_elsewhere(node)):
            # It takes that of its checkpoint, or refers to something that only the checkpoint has.
            return composed, resolved, stored, lambda threads: None
        began = evaluates or self.before is not None  # what a run that is resumed asks, it has
        asking = None if began else _refers_to_classes(composed)
        dataset, cache, found = data.prepare(node, self.choices["dataset"], asking)
        if found:
            composed = composed.copy()
            with open_dict(composed):
                composed.dataset.update(found)
            with environment.noted():
                resolved = _container(composed, resolve=not evaluates)
            with environment.kept():
                before = {key: stored[key] for key in ("resume",) if key in stored}
                stored |= {**_container(composed, resolve=not evaluates), **before}
            if "shape" in found and not evaluates and (wrong := combinations.problems(resolved)):
                raise Refused(wrong)  # which could not be seen without it

        def fill_cache(threads: int) -> dict[str, str] | None:
            if cache is not None:
                return cache
            return data.fill_cache(dataset, resolved["dataset"], threads, asked=node)

        return composed, resolved, stored, fill_cache


@dataclass(frozen=True)
class Settled:
    """A job that can be run: its data is there, and no value is left open.

    composed: as of Asked, with the number of classes in the data.
    resolved, stored, choices, overrides, resume: as of Checked.
    processes: how many it has.
    cache: where its decoded examples are: the path of each file by name.
    notes: sentences for result.json.
    text: what is written to config.yaml, and read by the workers.
    targets: the `_target_`s that it names.
    """

    asked: Asked
    composed: DictConfig
    resolved: Tree
    stored: Tree
    choices: Tree
    overrides: list[str]
    resume: str | None
    processes: int
    cache: dict[str, str] | None
    notes: list[str]
    text: str
    targets: list[str]

    @property
    def evaluates(self) -> bool:
        return self.asked.evaluates

    @property
    def variant(self) -> list[str]:
        """The overrides to list in result.json: it has fields of their own for cell and seed."""
        return variant(self.overrides)

    def training_examples(self) -> int:
        """The number of training examples. Raises DataError."""
        return data.training_examples(self.resolved["dataset"])


def asked(config: DictConfig, hydra: HydraConf) -> Asked:
    """The job that a composed configuration describes."""
    composed: DictConfig = pickle.loads(pickle.dumps(config))  # as copy(), in a third of it
    with open_dict(composed):
        composed.pop("hydra", None)
        if isinstance(given := composed.get("compile"), bool):
            composed["compile"] = {"mode": "default" if given else None}
        _make_root_absolute(composed)
    evaluates = "ckpt" in composed.keys()  # noqa: SIM118  (`in` denies a `???`)
    in_sweep = hydra.mode == RunMode.MULTIRUN
    known = hydra.runtime.choices
    choices = {key: known.get(key) for key in (*GROUPS, "experiments") if key in known}
    if in_sweep:
        _leave_out_keys_of_other_strategies(composed, choices.get("parallel"))
    # as written: `key=${other}` reads like a reference to OmegaConf
    overrides: list[str] = OmegaConf.to_container(hydra.overrides.task)  # type: ignore[assignment]
    unresolved: list[Failure] = []
    # An evaluation's groups refer to each other through the checkpoint's configuration, so only its
    # worker can resolve them.
    resolves = not evaluates
    with environment.noted():
        try:
            resolved = _container(_resolvable(composed), resolve=resolves)
        except OmegaConfBaseException:
            unresolved = messages.unresolved(composed)
            if not unresolved:
                raise
            resolves = False
            resolved = _container(composed, resolve=False)
    keys = () if evaluates else rules.OF_A_COMMAND
    of_command = {k: resolved.pop(k) for k in keys if k in resolved}
    with open_dict(composed):
        for key in of_command:
            composed.pop(key)
    with environment.kept():
        stored = _container(_resolvable(composed), resolve=resolves)
    resumed = None if evaluates or composed.resume is None else str(composed.resume)
    if resumed == resume.AUTO:
        stored["resume"] = None  # the same run, however it was started
    return Asked(
        "evaluate" if evaluates else "train",
        composed,
        resolved,
        stored,
        unresolved,
        of_command,
        choices,
        overrides,
        in_sweep,
        resumed,
    )


def problems(asked: Asked) -> list[Failure]:
    """The problems of a new job that can be found without reading data or asking for devices."""
    if asked.unresolved:
        return asked.unresolved
    found = rules.problems(
        {**asked.resolved, **asked.of_command},
        schema.top_level(asked.evaluates) | asked.of_command.keys(),
        rules.inner_keys(asked.choices, asked.evaluates),
        schema.required(asked.evaluates),
    )
    # Options that are more than a name would lead out of conf/, or of the output folder.
    return found + [
        not_a_name(group, option)
        for group, option in asked.choices.items()
        if option is not None and not rules.NAME.fullmatch(str(option))
    ]


def check(asked: Asked) -> Checked:
    """The job, with no problem that can be found without reading data. Raises Refused."""
    found, job = problems(asked), unchecked(asked)
    if asked.evaluates:
        try:
            job.stored["checkpoint_file"] = str(_checkpoint(asked.resolved["ckpt"]))
        except Failure as failure:
            found.append(failure)
    if found:
        raise Refused(found)
    return job if job.resume in (None, resume.AUTO) else _taken_up(job, job.resume)


def unchecked(asked: Asked) -> Checked:
    """The job as it was asked for, for a command that looks at some of its problems only."""
    stored, overrides = copy.deepcopy(asked.stored), list(asked.overrides)
    return Checked(asked, asked.resolved, stored, asked.choices, overrides, asked.resume)


def settle(job: Checked, root: Path) -> Settled:
    """Settle `job`: with resume=auto that of the newest unfinished run of it in `root`, if any.

    Raises Failure.
    """
    settled = job.settle()
    if job.resume != resume.AUTO:
        return settled
    known = schema.top_level(evaluates=False)
    run = resume.newest_unfinished(root, settled.composed, settled.stored, job.choices, known)
    if run is None:
        print(f"resume=auto: no unfinished run of this job under {root}, starting one")
        return replace(settled, resume=None)
    step = resume.saved_step(run.folder)
    print(f"resume=auto: resuming {run.folder} at step {step}", flush=True)
    return job.continuing(run, list(options.marked(MAY_CHANGE))).settle()


def _taken_up(job: Checked, place: str) -> Checked:
    """The job of the run in folder `place`, except for keys that may change. Raises Refused."""
    folder, known = Path(place), schema.top_level(evaluates=False)
    try:
        with environment.noted():
            run = resume.read(folder, known)
        untrusted.require_known_targets(
            run.frozen,
            "resume",
            folder,
            user=untrusted.targets_in(job.resolved),
            trusted=job.asked.of_command.get("trust") is True,
        )
    except CheckpointError as failure:
        raise Refused([failure]) from failure
    keys = resume.named(job.overrides)
    now, values = copy.deepcopy(job.stored), copy.deepcopy(job.resolved)
    for tree in (now, values, run.values):
        _complete(tree)
    if wrong := resume.differences(run, keys, now, values, job.choices):
        raise Refused([resume.refusal(folder, wrong)])
    if started_by() and "parallel.processes" not in keys:
        job.stored["parallel"]["processes"] = "auto"  # their launcher determines it
        keys.append("parallel.processes")
    continued = job.continuing(run, keys)
    moved = job.choices["parallel"] != run.choices["parallel"]  # it may not fit the rest
    for problem in rules.problems(continued.resolved, known):
        fits = moved or problem.field in keys
        raise Refused([problem if fits else resume.unfit(folder, problem)])
    return continued


def _checkpoint(given: Any) -> Path:
    """The file of the checkpoint that is to be evaluated. Raises Failure."""
    if given in (None, "???"):
        raise ConfigError(
            "ckpt",
            spelled(given),
            "nothing is given to evaluate; a run folder or a file is allowed; set ckpt=PATH",
        )
    return manifest.required("ckpt", given)


def _leave_out_keys_of_other_strategies(composed: DictConfig, strategy: Any) -> None:
    """In a sweep over strategies, a key that some of them have is set for these alone."""
    own = rules.keys_of_option("parallel", strategy)
    node = composed.get("parallel")
    if own is None or not isinstance(node, DictConfig):
        return
    with open_dict(node):
        for key in list(node):
            if key not in own and options.find(f"parallel.{key}"):
                node.pop(key)


def variant(overrides: Sequence[str]) -> list[str]:
    """The overrides that a result has no fields for, as it has for cell and seed."""
    return [
        text
        for text in overrides
        if (key := key_of(text)) not in UNSAID
        and (key not in FIELDS or "={" in text)  # a mapping is no name of an option
        and key.partition(".")[0] not in rules.OF_A_COMMAND
    ]


def as_yaml(stored: Tree, choices: Tree) -> str:
    """A job as config.yaml holds it."""
    return yaml_text({**stored, "choices": choices})


def not_a_name(group: str, option: object) -> ConfigError:
    """The failure of a command that chooses `option`, which is no name, from `group`."""
    return ConfigError(
        group,
        option,
        f"not the name of an option; letters, digits and . _ - are allowed; {see(group)}",
    )


def _container(config: Any, resolve: bool = True) -> Tree:
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _resolvable(config: DictConfig) -> DictConfig:
    """`config`, in which references into dataset.shape stay as they are while that is null."""
    if OmegaConf.select(config, "dataset") is None or config.dataset.get("shape", 0) is not None:
        return config
    found = OmegaConf.create(_kept(OmegaConf.to_container(config)))
    assert isinstance(found, DictConfig)
    return found


def _kept(tree: Any) -> Any:
    """`tree` with such references as text that nothing resolves."""
    if isinstance(tree, dict):
        return {key: _kept(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return list(map(_kept, tree))
    inner = isinstance(tree, str) and re.search(r"(?<!\\)\${dataset\.shape[.\[]", tree)
    return tree.replace("${dataset.shape", r"\${dataset.shape") if inner else tree


def _refers_to_classes(config: DictConfig) -> str | None:
    """The key, such as task.classes, whose value is the number of the dataset's classes."""
    groups = {name: config.get(name) for name in ("task", "model")}
    for key, value in flat(OmegaConf.to_container(OmegaConf.create(groups))).items():
        if "${dataset.classes}" in str(value):
            return key
    return None


def _make_root_absolute(config: DictConfig) -> None:
    """Where keys of the dataset refer to its root: a run folder is used from anywhere."""
    dataset = OmegaConf.to_container(config.dataset) if config.get("dataset") else None
    root = dataset.get("root") if isinstance(dataset, dict) else None
    if isinstance(root, str) and "${" not in root and "${dataset.root}" in str(dataset):
        config.dataset.root = str(Path(root).expanduser().absolute())


def _complete(job: Tree) -> None:
    """Resolve threads=auto and relative paths in a job."""
    if job["threads"] == "auto":
        job["threads"] = machine.cores()
    dataset = job.get("dataset") or {}
    for node, key in ((dataset, "root"), (dataset, "cache_dir"), (job, "init")):
        path = node.get(key)
        if isinstance(path, str) and "${" not in path:  # a run folder is used from anywhere
            node[key] = str(Path(path).expanduser().absolute())
