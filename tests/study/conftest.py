"""A study whose runs take no time."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from benchmarks import ours
from ninefold.config.job import as_yaml, asked
from ninefold.config.schema import defaults
from ninefold.result import Result
from ninefold.study import start
from ninefold.study.plan import Composer, Plan
from ninefold.study.runner import Study
from ninefold.study.screen import Screen
from tests.conftest import ROOT

CELLS = [["parallel=none"], ["parallel=dp"], ["parallel=ddp"]]


@dataclass
class Sweep:
    """A study in `folder` whose runs take no time: each writes the files of a real run.

    statuses: how the runs end, in the order run; ok after the last of them.
    """

    folder: Path
    compose: Callable[[Sequence[str]], DictConfig]
    statuses: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    name: str | None = None  # of the study

    def plan(self, *overrides: str, seeds: Sequence[int] = (0, 1), **study: Any) -> Plan:
        jobs = [[f"seed={seed}", *cell, *overrides] for seed, cell in product(seeds, CELLS)]
        return Plan(jobs, self.compose, self.settings(**study))

    def settings(self, **study: Any) -> dict[str, Any]:
        return {**defaults("train")["study"], "ask": ["score"], **study}

    def study(self, *overrides: str, resume: bool = False, **given: Any) -> Study:
        seeds = given.pop("seeds", (0, 1))
        planned, study = self.plan(*overrides, seeds=seeds, **given), self.settings(**given)
        settings, now = {"study": study, "report": {}}, time.time()
        if resume:
            recording = start.resume(self.folder, planned, settings, "basic", now)
        else:
            recording = start.begin(
                self.folder, planned, settings, self.name, "basic", "train.py", now
            )
        return Study(planned, recording, self.launch, None, False, Screen())

    def launch(self, jobs: Sequence[Sequence[str]], number: int) -> None:
        (overrides,) = jobs
        config = self.compose(overrides)
        with open_dict(config):
            config.hydra.job.num = number
        name = str(OmegaConf.select(config, "hydra.sweep.subdir"))
        folder = self.folder / name
        self.names.append(name)
        self.resumed += [name] * (config.resume is not None)
        folder.mkdir(exist_ok=True)
        job = asked(config, config.hydra)
        (folder / "config.yaml").write_text(as_yaml(job.config.frozen, job.choices))
        status = self.statuses.pop(0) if self.statuses else "ok"
        if status == "killed":
            raise KeyboardInterrupt
        Result(
            status, parallel=job.choices["parallel"], amp="fp32", seed=config.seed,
            score=0.5, train_seconds=1.0, epochs=1, total_seconds=60.0, devices=["cpu"],
            threads=1,
        ).write(folder)  # fmt: skip

    def file(self) -> dict[str, Any]:
        return json.loads((self.folder / "sweep.json").read_text())

    def rounds(self, *keys: str) -> list[tuple[Any, ...]]:
        return [tuple(entry[key] for key in keys) for entry in self.file()["rounds"]]


@pytest.fixture(scope="session")
def composer() -> Composer:
    return ours.composer()


@pytest.fixture
def made(tmp_path: Path, composer: Composer) -> Iterator[Sweep]:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield Sweep(tmp_path, composer)
