"""A job on its way from a composed configuration to a frozen file: checked, settled, resolved.

Nothing here imports torch before the checks that can do without it have passed.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.resolvers import oc

from ninefold import check, messages
from ninefold.errors import CheckpointError, ConfigError, Failure

ROOT = Path(__file__).parents[1]
GROUPS = ("parallel", "amp", "dataset", "model", "optimizer", "scheduler", "logger", "task")
MAY_CHANGE = ("epochs", "max_steps", "log_every", "checkpoint.every", "checkpoint.keep",
              "launch.inline", "launch.timeout")  # fmt: skip


class Job:
    """A composed configuration on its way to being frozen.

    values: as resolved, environment included, for checking. frozen: to be written, with
    environment references left as references, so that no secret reaches a file.
    """

    def __init__(self, config: DictConfig, hydra: HydraConf) -> None:
        self.config = config.copy()
        with open_dict(self.config):
            self.config.pop("hydra", None)
        self.evaluates = "ckpt" in self.config.keys()  # noqa: SIM118  (`in` denies a `???`)
        self.resumes = not self.evaluates and config.resume is not None
        choices = hydra.runtime.choices
        self.choices = {key: choices.get(key) for key in (*GROUPS, "experiments") if key in choices}
        # as written: `key=${other}` reads like a reference to OmegaConf
        self.overrides: list[str] = OmegaConf.to_container(hydra.overrides.task)  # type: ignore[assignment]
        self._unresolved = [] if self.evaluates else messages.unresolved(self.config)
        # An evaluation's groups refer to each other through the checkpoint's configuration,
        # so only its worker can resolve them.
        resolves = not self.evaluates and not self._unresolved
        self.values: dict[str, Any] = _container(self.config, resolve=resolves)
        self.frozen = _keep_environment(self.config) if resolves else self.values

    def problems(self) -> list[Failure]:
        """Everything wrong with it, the cheap checks first; settles what `auto` stands for."""
        if self._unresolved:
            return self._unresolved
        found = check.problems(self.values, _known_keys(self.evaluates))
        found += self._checkpoint_problems() if self.evaluates else self._resume_problems()
        if not found:
            found += self._data_problems()
        if not found:
            found += self._settle()
        return found

    @property
    def processes(self) -> int:
        return int(self.frozen["parallel"]["processes"])

    def text(self) -> str:
        """The frozen job, YAML."""
        return OmegaConf.to_yaml(OmegaConf.create({**self.frozen, "choices": self.choices}))

    def _checkpoint_problems(self) -> list[Failure]:
        given = self.values["ckpt"]
        path = Path(str(given)).expanduser().absolute()
        file = path / "checkpoints" / "last.pt" if path.is_dir() else path
        if not file.is_file():
            return [CheckpointError(
                "ckpt", given, "no such checkpoint", f"looked for {file}",
                "name a run folder or a file",
            )]  # fmt: skip
        self.frozen["checkpoint_file"] = str(file)
        return []

    def _resume_problems(self) -> list[Failure]:
        """Take the job of the run to go on with, and what may change of it."""
        if not self.resumes:
            return []
        folder = Path(str(self.values["resume"]))
        given = {override.lstrip("+~").partition("=")[0] for override in self.overrides}
        wrong = sorted(given - {"resume", *MAY_CHANGE})
        if wrong:
            return [ConfigError(
                "resume", folder, f"{', '.join(wrong)} cannot change in a resumed run",
                f"{', '.join(MAY_CHANGE)} may", "leave the others out or start a new run",
            )]  # fmt: skip
        if not (folder / "config.yaml").is_file():
            return []  # said already
        stored = OmegaConf.load(folder / "config.yaml")
        for key in given - {"resume"}:
            OmegaConf.update(stored, key, OmegaConf.select(self.config, key))
        self.choices = _container(stored.choices)
        self.values = _container(stored)
        self.frozen = _container(stored, resolve=False)
        for tree in (self.values, self.frozen):
            del tree["choices"]
        return []

    def _data_problems(self) -> list[Failure]:
        node = self.values.get("dataset")
        if node is None:
            return []
        try:
            instantiate({**node}, _convert_="all").prepare()
        except Failure as failure:
            return [failure]
        except HydraException as error:
            cause = error.__cause__ or error
            return [ConfigError(
                "dataset", self.choices["dataset"], "it cannot be built so", str(cause),
                "see the keys in conf/dataset/",
            )]  # fmt: skip
        root = self.frozen["dataset"].get("root")
        if isinstance(root, str) and "${" not in root:  # a run folder is used from anywhere
            self.frozen["dataset"]["root"] = str(Path(root).expanduser().absolute())
        return []

    def _settle(self) -> list[Failure]:
        """Replace `auto` in processes and threads by what it is here."""
        parallel, device = self.values["parallel"], self.values["device"]
        wanted, most = parallel["processes"], parallel["max_processes"]
        batch_size = None if self.evaluates else self.values["batch_size"]
        name = self.choices["parallel"]
        if wanted != "auto":
            if most is not None and wanted > most:
                return [ConfigError(
                    "parallel.processes", wanted, f"parallel={name} runs in {most} process",
                    "ddp takes any number", "use parallel=ddp",
                )]  # fmt: skip
            wrong = batch_size and check.divides(batch_size, wanted)
            if wrong:
                return [wrong]
        preload(_target_modules(self.values))
        gpus = 0
        if device != "cpu" and not (device == "auto" and most == 1):
            gpus = _count_gpus()
            if device == "cuda" and not gpus:
                return [ConfigError(
                    "device", "cuda", "no usable GPU", "this machine has a CPU",
                    "use device=cpu or device=auto",
                )]  # fmt: skip
        if under_torchrun():
            world_size = int(os.environ["WORLD_SIZE"])
            if wanted == "auto" and most is None:
                wanted = world_size
            if wanted == "auto" or wanted != world_size:
                return [ConfigError(
                    "parallel.processes", wanted, f"torchrun started {world_size}",
                    f"parallel={name} takes {most or wanted}",
                    "let --nproc-per-node agree with it",
                )]  # fmt: skip
        elif wanted == "auto":
            wanted = min(gpus or self.values["launch"]["cpu_processes"], most or math.inf)
        elif gpus and wanted > gpus:
            return [ConfigError(
                "parallel.processes", wanted, "more processes than GPUs", f"{gpus} found",
                f"use parallel.processes={gpus} or device=cpu",
            )]  # fmt: skip
        if self.values["launch"]["inline"] and wanted != 1:
            return [ConfigError(
                "launch.inline", "true", f"the job has {wanted} processes",
                "one process can run inline", "set parallel.processes=1",
            )]  # fmt: skip
        wrong = batch_size and check.divides(batch_size, int(wanted))
        if wrong:
            return [wrong]
        self.frozen["parallel"]["processes"] = int(wanted)
        if self.values["threads"] == "auto":
            self.frozen["threads"] = (
                len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
            )
        return []


def under_torchrun() -> bool:
    """Whether torchrun (or whatever sets its variables) started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def preload(modules: Sequence[str]) -> None:
    """Start the forkserver that workers come from, with `modules` imported; the first call decides.

    It imports torch in a process of its own while this one goes on.
    """
    if under_torchrun():
        return  # torchrun started the workers
    modules = ["ninefold.leash", "ninefold.worker", *modules]
    if not Path("/dev/nvidiactl").exists():
        # The first optimizer of a process imports it, which takes 0.8 s. Beside a GPU that is left
        # to each worker: if it asked the driver anything here, no worker could use CUDA.
        modules.append("torch._dynamo")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(modules)
    # A forkserver is not told its parent's sys.path (CPython up to 3.12), and silently preloads
    # nothing that it does not find: without ninefold.leash it would outlive a killed launcher.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [before])])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _container(config: Any, resolve: bool = True) -> dict[str, Any]:
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _keep_environment(config: DictConfig) -> dict[str, Any]:
    """`config` resolved, but for `${oc.env:...}`, which stays as it is written."""

    def keep(*arguments: Any) -> str:
        return "${oc.env:" + ",".join("null" if a is None else str(a) for a in arguments) + "}"

    OmegaConf.register_new_resolver("oc.env", keep, replace=True)
    try:
        return _container(config)
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _known_keys(evaluates: bool) -> set[str]:
    """The top-level keys of the configuration file and its groups."""
    stored = OmegaConf.load(ROOT / "conf" / ("evaluate.yaml" if evaluates else "train.yaml"))
    return {str(key) for key in stored if key not in ("defaults", "hydra")} | set(GROUPS)


def _target_modules(tree: Any) -> list[str]:
    """The modules that a job's targets live in."""
    found: set[str] = set()
    if isinstance(tree, Mapping):
        if isinstance(tree.get("_target_"), str):
            found.add(tree["_target_"].rpartition(".")[0])
        for value in tree.values():
            found.update(_target_modules(value))
    return sorted(found)


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
