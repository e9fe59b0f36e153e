"""The job of a command: a composed configuration that is checked, completed and frozen.

Nothing here imports torch, except that `Job.settle` does to count GPUs.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from hydra.conf import HydraConf
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ninefold import machine
from ninefold.checkpoint import manifest
from ninefold.config import (
    data,
    environment,
    needs,
    options,
    processes,
    resume,
    rules,
    schema,
    stored,
    untrusted,
)
from ninefold.config import overrides as messages
from ninefold.config.spelling import spelled
from ninefold.config.yaml_text import yaml_text
from ninefold.errors import CheckpointError, ConfigError, Failure
from ninefold.ranks import started_by
from ninefold.types import MAY_CHANGE, NO_EFFECT

ROOT = Path(__file__).parents[2]
GROUPS = ("parallel", "amp", "dataset", "model", "optimizer", "scheduler", "logger", "task")
# Keys and groups that result.json has as fields.
FIELDS = ("seed", "parallel", "amp", "dataset", "model", "batch_size", "epochs", "experiments")
# Keys that result.json omits: runs that differ in these only would be taken for one cell's.
UNSAID = ("resume", "logger", "profile", "dataset.root", "dataset.download")


class Job:
    """A composed configuration: checked, completed with automatic values, and frozen.

    values: the configuration as resolved, environment included, for checks.
    frozen: the configuration to write, with references to the environment as written, so that no
        secret reaches a file.
    resume: folder of the run to resume; None for a new run, AUTO until that run is found.
    command_keys: those that no run has, such as `study` and `find`; they are not frozen.
    notes: sentences for result.json.
    checked: whether launch.run.check found it ready to run.
    in_a_step: whether its processes are to be a step of a Slurm allocation, once settled.
    cache: of a settled job, where its decoded examples are: the path of each file by name.
    """

    command: ClassVar[str]
    evaluates: ClassVar[bool]

    def __init__(self, config: DictConfig, hydra: HydraConf) -> None:
        self.config: DictConfig = pickle.loads(pickle.dumps(config))  # as copy(), in a third of it
        with open_dict(self.config):
            self.config.pop("hydra", None)
            if isinstance(given := self.config.get("compile"), bool):
                self.config["compile"] = {"mode": "default" if given else None}
        self.checked = False
        self.in_a_step = False
        self.cache: dict[str, str] | None = None
        self.in_sweep = hydra.mode == RunMode.MULTIRUN
        self.resume: str | None = None
        self.notes: list[str] = []
        choices = hydra.runtime.choices
        self.choices = {key: choices.get(key) for key in (*GROUPS, "experiments") if key in choices}
        if self.in_sweep:
            self._leave_out_keys_of_other_strategies()
        # as written: `key=${other}` reads like a reference to OmegaConf
        self.overrides: list[str] = OmegaConf.to_container(hydra.overrides.task)  # type: ignore[assignment]
        with environment.noted():
            # An evaluation's groups refer to each other through the checkpoint's configuration,
            # so only its worker can resolve them.
            resolves = not self.evaluates
            self._unresolved: list[Failure] = []
            try:
                self.values: dict[str, Any] = _container(self.config, resolve=resolves)
            except OmegaConfBaseException:
                self._unresolved = messages.unresolved(self.config)
                if not self._unresolved:
                    raise
                resolves = False
                self.values = _container(self.config, resolve=False)
        self.command_keys = {k: self.values.pop(k) for k in rules.OF_A_COMMAND if k in self.values}
        with open_dict(self.config):
            for key in self.command_keys:
                self.config.pop(key)
        with environment.kept():
            self.frozen = _container(self.config, resolve=resolves)

    def problems(self) -> list[Failure]:
        """All problems that can be found without reading data or asking for devices."""
        if self._unresolved:
            return self._unresolved
        found = rules.problems(
            {**self.values, **self.command_keys},
            schema.top_level(self.evaluates) | self.command_keys.keys(),
            rules.inner_keys(ROOT / "conf", self.choices, self.evaluates),
            schema.required(self.evaluates),
        )
        # Options that are more than a name would lead out of conf/, or of the output folder.
        return found + [
            not_a_name(group, option)
            for group, option in self.choices.items()
            if option is not None and not rules.NAME.fullmatch(str(option))
        ]

    def _leave_out_keys_of_other_strategies(self) -> None:
        """In a sweep over strategies, a key that some of them have is set for these alone."""
        own = rules.keys_of_option(ROOT / "conf", "parallel", self.choices.get("parallel"))
        node = self.config.get("parallel")
        if own is None or not isinstance(node, DictConfig):
            return
        with open_dict(node):
            for key in list(node):
                if key not in own and options.find(f"parallel.{key}"):
                    node.pop(key)

    def settle(self) -> None:
        """Check that the data is there (download it if asked to) and resolve the values `auto`.

        Last, the examples are decoded into dataset.cache. Raises Failure.
        """
        fill_cache = self._prepare_data()
        _settle(self.frozen)  # after the number of classes, which other keys may refer to
        parallel = self.frozen["parallel"]
        self.in_a_step = processes.in_a_step(parallel["processes"], self.values["launch"])
        parallel["processes"] = processes.number(
            parallel["processes"],
            parallel["max_processes"],
            self.values,
            self.choices["parallel"],
        )
        fill_cache()

    def pack(self) -> dict[str, str] | None:
        """Check the data and decode it into dataset.cache; returns its files. Raises Failure."""
        fill_cache = self._prepare_data()
        _settle(self.frozen)
        fill_cache()
        return self.cache

    def find_unfinished(self, root: Path) -> None:
        """For resume=auto, once settled: resume the newest unfinished run of this job in `root`.

        Raises Failure.
        """

    @property
    def processes(self) -> int:
        return int(self.frozen["parallel"]["processes"])

    @property
    def variant(self) -> list[str]:
        """The overrides that a result has no fields for, as it has for cell and seed."""
        return [
            text
            for text in self.overrides
            if (key := text.lstrip("+~").split("=")[0]) not in UNSAID
            and (key not in FIELDS or "={" in text)  # a mapping is no name of an option
            and key.partition(".")[0] not in rules.OF_A_COMMAND
        ]

    def text(self) -> str:
        """The frozen job as YAML."""
        return yaml_text({**self.frozen, "choices": self.choices})

    def _prepare_data(self) -> Callable[[], None]:
        """Check the data, or find the cache that this command has of it already.

        Returns what fills the cache, once `threads` is resolved. Raises Failure.
        """
        node = self.values.get("dataset")
        if node is None:
            return lambda: None  # an evaluation takes it from its checkpoint
        workers = self.values["loader"]["workers"]
        dataset, self.cache, classes = data.prepare(node, self.choices["dataset"], workers)
        if classes is not None:
            self._set_classes(classes)

        def fill_cache() -> None:
            if self.cache is None:
                counted, threads = self.values["dataset"], self.frozen["threads"]
                self.cache = data.fill_cache(dataset, counted, threads, asked=node)

        return fill_cache

    def _set_classes(self, count: int) -> None:
        """Replace dataset.classes=null by the number in the data, in what refers to it too."""
        with open_dict(self.config):
            self.config.dataset.classes = count
        resolves = not self.evaluates
        resumed = self.frozen.get("resume")
        with environment.noted():
            self.values = _container(self.config, resolve=resolves)
        with environment.kept():
            self.frozen |= _container(self.config, resolve=resolves)
        if "resume" in self.frozen:
            self.frozen["resume"] = resumed


class TrainJob(Job):
    """The job of a training run, new or resumed."""

    command = "train"
    evaluates = False

    def __init__(self, config: DictConfig, hydra: HydraConf) -> None:
        super().__init__(config, hydra)
        self._before: tuple[str, int] | None = None  # strategy and processes of the resumed run
        if config.resume is not None:
            self.resume = str(config.resume)
        if self.resume == resume.AUTO:
            self.frozen["resume"] = None  # the same run, however it was started

    def problems(self) -> list[Failure]:
        found = super().problems()
        return found if found or self.resume is None else self._take_up()

    def settle(self) -> None:
        needs.require_packages(self.values)
        if (mode := self.values["compile"]["mode"]) is not None:
            machine.require_compiler(mode, self.values["device"] != "cpu" and machine.gpu_driver())
        super().settle()
        self.notes += resume.moved(self._before, (str(self.choices["parallel"]), self.processes))

    def training_examples(self) -> int:
        """The number of training examples of a settled job. Raises DataError."""
        return data.training_examples(self.values["dataset"])

    def only_jsonl(self) -> TrainJob:
        """This job with metrics.jsonl as its only logger: an attempt is no run of a tracker."""
        for tree in (self.frozen, self.values):
            tree["logger"] = {k: v for k, v in tree["logger"].items() if k == "jsonl"}
        return self

    def find_unfinished(self, root: Path) -> None:
        if self.resume != resume.AUTO:
            return
        run = resume.newest_unfinished(
            root, self.config, self.frozen, self.choices, schema.top_level(evaluates=False)
        )
        if run is None:
            print(f"resume=auto: no unfinished run of this job under {root}, starting one")
            self.resume = None
            return
        step = resume.saved_step(run.folder)
        print(f"resume=auto: resuming {run.folder} at step {step}", flush=True)
        self._continue(run, list(options.marked(MAY_CHANGE)))
        self.settle()

    def differences(self, folder: Path) -> list[str]:
        """How this job, not settled, differs from the run in `folder`, as `key=now (was before)`.

        Keys that affect no result are left out. Raises CheckpointError.
        """
        run = resume.read(folder, schema.top_level(evaluates=False))
        now = copy.deepcopy(self.frozen)
        if (now.get("dataset") or {}).get("classes", 0) is None:  # the data says how many
            config = self.config.copy()
            OmegaConf.update(
                config, "dataset.classes", resume.select(run.frozen, "dataset.classes")
            )
            with environment.kept():
                now |= {**_container(config), "resume": now["resume"]}
        _settle(now)
        ours = stored.comparable({**now, "choices": self.choices})
        theirs = stored.comparable({**run.frozen, "choices": run.choices})
        # The machine determines their values.
        automatic = [
            key
            for key in ("threads", "parallel.processes")
            if resume.select(self.frozen, key) == "auto"
        ]
        return [
            f"{key}={spelled(ours.get(key, resume.MISSING))} "
            f"(was {spelled(theirs.get(key, resume.MISSING))})"
            for key in {**ours, **theirs}
            if ours.get(key, resume.MISSING) != theirs.get(key, resume.MISSING)
            and key not in automatic
            and not schema.is_any_of(key, (*options.marked(NO_EFFECT), "choices.logger"))
        ]

    def _take_up(self) -> list[Failure]:
        """Replace this job by that of the run to resume, except for keys that may change."""
        assert self.resume is not None
        if self.resume == resume.AUTO:
            return []  # the run is found once the job is settled: see find_unfinished
        folder, known = Path(self.resume), schema.top_level(evaluates=False)
        try:
            with environment.noted():
                run = resume.read(folder, known)
            untrusted.require_known_targets(
                run.frozen,
                "resume",
                folder,
                "repeat it on the command line if you trust it",
                user=untrusted.targets_in(self.values),
            )
        except CheckpointError as failure:
            return [failure]
        keys = resume.named(self.overrides)
        now, values = copy.deepcopy(self.frozen), copy.deepcopy(self.values)
        for tree in (now, values, run.values):
            _settle(tree)
        wrong = resume.differences(run, keys, now, values, self.choices)
        if wrong:
            return [resume.refusal(folder, wrong)]
        if started_by() and "parallel.processes" not in keys:
            self.frozen["parallel"]["processes"] = "auto"  # their launcher determines it
            keys.append("parallel.processes")
        self._continue(run, keys)
        moved = self.choices["parallel"] != run.choices["parallel"]  # it may not fit the rest
        return [
            problem if moved or problem.field in keys else resume.unfit(folder, problem)
            for problem in rules.problems(self.values, known)[:1]
        ]

    def _continue(self, run: resume.Stored, keys: list[str]) -> None:
        """Become the job of `run`, with this command's values of those `keys` that may change."""
        self._before = run.choices["parallel"], run.frozen["parallel"]["processes"]
        self.frozen, self.choices = resume.carried_over(run, keys, self.frozen, self.choices)
        self.overrides = resume.all_overrides(run.folder, self.overrides)
        self.resume = str(run.folder)
        with environment.noted():
            self.values = _container(OmegaConf.create(self.frozen))


class EvaluateJob(Job):
    """The job of an evaluation: a checkpoint, and what replaces parts of its configuration."""

    command = "evaluate"
    evaluates = True

    def problems(self) -> list[Failure]:
        return super().problems() + self._find_checkpoint()

    def _find_checkpoint(self) -> list[Failure]:
        given = self.values["ckpt"]
        if given in (None, "???"):
            return [
                ConfigError(
                    "ckpt",
                    spelled(given),
                    "nothing is given to evaluate; a run folder or a file is allowed; set "
                    "ckpt=PATH",
                )
            ]
        try:
            self.frozen["checkpoint_file"] = str(manifest.required("ckpt", given))
        except CheckpointError as failure:
            return [failure]
        return []


def job_of(config: DictConfig, hydra: HydraConf) -> Job:
    """The job that a composed configuration describes."""
    evaluates = "ckpt" in config.keys()  # noqa: SIM118  (`in` denies a `???`)
    return (EvaluateJob if evaluates else TrainJob)(config, hydra)


def not_a_name(group: str, option: object) -> ConfigError:
    """The failure of a command that chooses `option`, which is no name, from `group`."""
    return ConfigError(
        group,
        option,
        "not the name of an option; letters, digits and . _ - are allowed; put a yaml into "
        f"conf/{group}/ and name it",
    )


def _container(config: Any, resolve: bool = True) -> dict[str, Any]:
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _settle(job: dict[str, Any]) -> None:
    """Resolve threads=auto and relative paths in a job."""
    if job["threads"] == "auto":
        job["threads"] = machine.cores()
    dataset = job.get("dataset") or {}
    for node, key in ((dataset, "root"), (dataset, "cache_dir"), (job, "init")):
        path = node.get(key)
        if isinstance(path, str) and "${" not in path:  # a run folder is used from anywhere
            node[key] = str(Path(path).expanduser().absolute())
