"""A job on its way from a composed configuration to a frozen file: checked, settled, resolved.

Nothing here imports torch but `Job.settle`, and that only to count GPUs.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from ninefold.config import environment, resume, rules, schema, untrusted
from ninefold.config import overrides as messages
from ninefold.errors import CheckpointError, ConfigError, Failure, memory_failure
from ninefold.machine import gpu_driver, require_compiler
from ninefold.ranks import found, under_torchrun

ROOT = Path(__file__).parents[2]
GROUPS = ("parallel", "amp", "dataset", "model", "optimizer", "scheduler", "logger", "task")
# What a result says in fields of its own.
FIELDS = ("seed", "parallel", "amp", "dataset", "model", "batch_size", "epochs", "experiments")
# What no result says: runs that differ in one of these only would be taken for one cell's.
UNSAID = ("resume", "logger", "profile", "dataset.root", "dataset.download")


class Job:
    """A composed configuration on its way to being frozen.

    values: as resolved, environment included, for checking. frozen: to be written, with
    environment references left as references, so that no secret reaches a file.
    """

    def __init__(self, config: DictConfig, hydra: HydraConf) -> None:
        self.config = config.copy()
        with open_dict(self.config):
            self.config.pop("hydra", None)
            if isinstance(said := self.config.get("compile"), bool):
                self.config["compile"] = {"mode": "default" if said else None}
        self.checked = False  # by launch.run.check
        self.in_sweep = hydra.mode == RunMode.MULTIRUN
        self.evaluates = "ckpt" in self.config.keys()  # noqa: SIM118  (`in` denies a `???`)
        # The folder of the run to go on with, None for a new one, AUTO until that is found out.
        self.resume = None if self.evaluates or config.resume is None else str(config.resume)
        self.notes: list[str] = []
        self._processes_before: int | None = None
        choices = hydra.runtime.choices
        self.choices = {key: choices.get(key) for key in (*GROUPS, "experiments") if key in choices}
        # as written: `key=${other}` reads like a reference to OmegaConf
        self.overrides: list[str] = OmegaConf.to_container(hydra.overrides.task)  # type: ignore[assignment]
        with environment.noted():
            self._unresolved = [] if self.evaluates else messages.unresolved(self.config)
            # An evaluation's groups refer to each other through the checkpoint's configuration,
            # so only its worker can resolve them.
            resolves = not self.evaluates and not self._unresolved
            self.values: dict[str, Any] = _container(self.config, resolve=resolves)
        # What its sweep was told, which is no part of it.
        self.sweep = {key: self.values.pop(key) for key in rules.OF_A_SWEEP if key in self.values}
        with open_dict(self.config):
            for key in self.sweep:
                self.config.pop(key)
        with environment.kept():
            self.frozen = _container(self.config, resolve=resolves)
        if self.resume == resume.AUTO:
            self.frozen["resume"] = None  # a run is the same whichever way it was begun

    def problems(self) -> list[Failure]:
        """Everything wrong with it that shows without a look at data or devices."""
        if self._unresolved:
            return self._unresolved
        found = rules.problems(
            {**self.values, **self.sweep},
            schema.top_level(self.evaluates) | self.sweep.keys(),
            rules.inner_keys(ROOT / "conf", self.choices, self.evaluates),
            schema.required(self.evaluates),
        )
        found += self._names()
        if self.evaluates:
            found += self._find_checkpoint()
        if self.resumes and not found:
            found += self._take_up()
        return found

    def settle(self) -> None:
        """See that the data is there (fetching it if asked) and what `auto` stands for here.

        Raises Failure.
        """
        if not self.evaluates and (mode := self.values["compile"]["mode"]) is not None:
            require_compiler(mode, self.values["device"] != "cpu" and gpu_driver())
        self._prepare_data()
        _settle(self.frozen)
        parallel = self.frozen["parallel"]
        parallel["processes"] = self._processes(parallel["processes"], parallel["max_processes"])
        before = self._processes_before
        if before is not None and before != self.processes:
            self.notes.append(
                f"The run goes on with {self.processes} process(es) instead of {before}: its "
                "examples keep their order, its weights are not bitwise those of a run without "
                "the change."
            )

    def training_examples(self) -> int:
        """How many a settled job trains on. Raises DataError."""
        with environment.noted(), _one_blas_thread():
            return len(instantiate({**self.values["dataset"]}, _convert_="all").load("train"))

    def find_unfinished(self, root: Path) -> None:
        """For resume=auto, once settled: take up the newest unfinished run of this job in `root`.

        Raises Failure.
        """
        run = resume.newest_unfinished(
            root, self.config, self.frozen, self.choices, schema.top_level(evaluates=False)
        )
        if run is None:
            print(f"resume=auto: no unfinished run of this job under {root}, starting one")
            self.resume = None
            return
        step = resume.saved_step(run.folder)
        print(f"resume=auto: going on with {run.folder}, step {step}", flush=True)
        self._go_on(run, list(schema.MAY_CHANGE))
        self.settle()

    @property
    def resumes(self) -> bool:
        return self.resume is not None

    @property
    def processes(self) -> int:
        return int(self.frozen["parallel"]["processes"])

    @property
    def variant(self) -> list[str]:
        """The overrides in which runs of one cell and seed may differ."""
        return [
            text for text in self.overrides
            if (key := text.lstrip("+~").split("=")[0]) not in UNSAID
            and (key not in FIELDS or "={" in text)  # a mapping is no name of an option
            and key.partition(".")[0] not in rules.OF_A_SWEEP
        ]  # fmt: skip

    def text(self) -> str:
        """The frozen job, YAML."""
        return OmegaConf.to_yaml(OmegaConf.create({**self.frozen, "choices": self.choices}))

    def differences(self, folder: Path) -> list[str]:
        """What the run in `folder` was that this one, not settled, is not: `key=now (was before)`.

        How a run is kept and logged bears on no figure. Raises CheckpointError.
        """
        run = resume.read(folder, schema.top_level(evaluates=False))
        now = copy.deepcopy(self.frozen)
        _settle(now)
        ours = resume.settings({**now, "choices": self.choices})
        theirs = resume.settings({**run.frozen, "choices": run.choices})
        # What these come to is the machine's.
        automatic = [key for key in ("threads", "parallel.processes")
                     if resume.select(self.frozen, key) == "auto"]  # fmt: skip
        return [
            f"{key}={rules.spelled(ours.get(key, resume.MISSING))} "
            f"(was {rules.spelled(theirs.get(key, resume.MISSING))})"
            for key in {**ours, **theirs}
            if ours.get(key, resume.MISSING) != theirs.get(key, resume.MISSING)
            and key not in automatic and not schema.is_any_of(key, resume.WITHOUT_EFFECT)
        ]  # fmt: skip

    def _find_checkpoint(self) -> list[Failure]:
        given = self.values["ckpt"]
        if given in (None, "???"):
            return [ConfigError(
                "ckpt", rules.spelled(given), "nothing is given to evaluate",
                "a run folder or a file is allowed", "set ckpt=PATH",
            )]  # fmt: skip
        path = Path(str(given)).expanduser().absolute()
        file = path / "checkpoints" / "last.pt" if path.is_dir() else path
        if not file.is_file():
            return [CheckpointError(
                "ckpt", given, "no such checkpoint", f"looked for {file}",
                "name a run folder or a file",
            )]  # fmt: skip
        self.frozen["checkpoint_file"] = str(file)
        return []

    def _names(self) -> list[Failure]:
        """Options that are more than a name: they would lead out of conf/, or of the outputs."""
        return [
            not_a_name(group, option)
            for group, option in self.choices.items()
            if option is not None and not rules.NAME.fullmatch(str(option))
        ]

    def _take_up(self) -> list[Failure]:
        """Take the job of the run to go on with, and what may change of it."""
        assert self.resume is not None
        if self.resume == resume.AUTO:
            return []  # which run it is shows once the job is settled
        folder, known = Path(self.resume), schema.top_level(evaluates=False)
        try:
            with environment.noted():
                run = resume.read(folder, known)
            untrusted.require_known_targets(
                run.frozen, "resume", folder, "repeat it on the command line if you trust it",
                user=resume.flat(self.values),
            )  # fmt: skip
        except CheckpointError as failure:
            return [failure]
        keys = resume.named(self.overrides)
        now, values = copy.deepcopy(self.frozen), copy.deepcopy(self.values)
        for tree in (now, values, run.values):
            _settle(tree)
        wrong = resume.differences(run, keys, now, values, self.choices)
        if wrong:
            return [resume.refusal(folder, wrong)]
        if under_torchrun() and "parallel.processes" not in keys:
            self.frozen["parallel"]["processes"] = "auto"  # torchrun has said how many
            keys.append("parallel.processes")
        self._go_on(run, keys)
        return [
            CheckpointError(
                "resume", folder, "its config.yaml is of another version, or was changed",
                problem.cause,
                "put back the one that was written, or start a new run",
            )
            for problem in rules.problems(self.values, known)[:1]
        ]  # fmt: skip

    def _go_on(self, run: resume.Stored, keys: list[str]) -> None:
        """Be the job of `run`, with what this command says of `keys` that may change."""
        self._processes_before = run.frozen["parallel"]["processes"]
        self.frozen, self.choices = resume.carried_over(run, keys, self.frozen, self.choices)
        self.overrides = resume.all_overrides(run.folder, self.overrides)
        self.resume = str(run.folder)
        with environment.noted():
            self.values = _container(OmegaConf.create(self.frozen))

    def _prepare_data(self) -> None:
        node = self.values.get("dataset")
        if node is None:
            return  # an evaluation's, in its checkpoint
        try:
            with environment.noted(), _one_blas_thread():  # an evaluation's is resolved only here
                instantiate({**node}, _convert_="all").prepare()
        except HydraException as error:
            if exhausted := memory_failure(error, "the dataset was being imported"):
                raise exhausted from error
            raise ConfigError(
                "dataset", self.choices["dataset"], "it cannot be built so",
                str(error.__cause__ or error), "see the keys in conf/dataset/",
            ) from error  # fmt: skip

    def _processes(self, wanted: Any, most: int | None) -> int:
        """How many processes `wanted` comes to. Raises ConfigError if they cannot be had."""
        if wanted != "auto":  # most mistakes show before torch is imported to look for GPUs
            self._require_fitting(wanted, most)
        device = self.values["device"]
        gpus = 0 if device == "cpu" or (device == "auto" and most == 1) else _count_gpus()
        if device == "cuda" and not gpus:
            raise ConfigError(
                "device", "cuda", "no usable GPU", "this machine has a CPU",
                "use device=cpu or device=auto",
            )  # fmt: skip
        started = found(os.environ).world_size if under_torchrun() else None
        if wanted == "auto":
            here = started or gpus or self.values["launch"]["cpu_processes"]
            wanted = int(min(here, most or math.inf))
        self._require_fitting(wanted, most)
        if started is not None and wanted != started:
            raise ConfigError(
                "parallel.processes", wanted, f"torchrun started {started}",
                f"parallel={self.choices['parallel']} wants {wanted}",
                f"use --nproc-per-node {wanted}",
            )  # fmt: skip
        if started is None and gpus and wanted > gpus:
            raise ConfigError(
                "parallel.processes", wanted, "more processes than GPUs", f"{gpus} found",
                f"use parallel.processes={gpus} or device=cpu",
            )  # fmt: skip
        return int(wanted)

    def _require_fitting(self, processes: int, most: int | None) -> None:
        """Raise ConfigError unless strategy, launcher and batch take so many processes."""
        if most is not None and processes > most:
            raise ConfigError(
                "parallel.processes", processes,
                f"parallel={self.choices['parallel']} runs in {most} process",
                "ddp takes any number", "use parallel=ddp",
            )  # fmt: skip
        if self.values["launch"]["inline"] and processes != 1:
            raise ConfigError(
                "launch.inline", "true", f"the job has {processes} processes",
                "one process can run inline", "set parallel.processes=1",
            )  # fmt: skip
        if not self.evaluates:
            values = self.values
            rules.require_division(values["batch_size"], processes, values["accumulate"])


def not_a_name(group: str, option: object) -> ConfigError:
    """What a command is told that chooses `option` from `group`."""
    return ConfigError(
        group, option, "not the name of an option", "letters, digits and . _ - are allowed",
        f"put a yaml into conf/{group}/ and name it",
    )  # fmt: skip


def _container(config: Any, resolve: bool = True) -> dict[str, Any]:
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Import NumPy with one thread in its BLAS, which is not used here.

    OpenBLAS takes memory for each, and ends the process where there is none.
    """
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]
        if before is not None:
            os.environ["OPENBLAS_NUM_THREADS"] = before


def _settle(job: dict[str, Any]) -> None:
    """Put what they come to here for threads=auto and a relative dataset.root."""
    if job["threads"] == "auto":
        linux = sys.platform == "linux"
        job["threads"] = len(os.sched_getaffinity(0)) if linux else os.cpu_count()
    root = (job.get("dataset") or {}).get("root")
    if isinstance(root, str) and "${" not in root:  # a run folder is used from anywhere
        job["dataset"]["root"] = str(Path(root).expanduser().absolute())


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
