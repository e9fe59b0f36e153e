"""A run of a study in this process is given what Hydra's `run_job` gives one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, run_job
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from ninefold.config import resolvers
from ninefold.config.job import ROOT
from ninefold.study import one_run


class Recorder(Callback):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.done: JobReturn | None = None

    def on_job_start(self, config: DictConfig, *, task_function: Any, **kwargs: Any) -> None:
        self.calls.append(f"start in {os.getcwd()} with {os.environ.get('OF_A_RUN')}")

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        self.calls.append(f"end of {config.seed}")
        self.done = job_return


def composed(folder: Path, *more: str) -> DictConfig:
    resolvers.register()
    overrides = [
        f"hydra.sweep.dir={folder}", "hydra.mode=MULTIRUN", "+hydra.job.num=7", "hydra.job.id=7",
        "seed=3", "dataset.shape=[1,8,8]", "+optimizer.eps=1e-8", *more,
    ]  # fmt: skip
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=overrides, return_hydra_config=True)


def context(recorder: Recorder) -> HydraContext:
    from hydra._internal.callbacks import Callbacks

    callbacks = Callbacks()
    callbacks.callbacks.append(recorder)
    return HydraContext(config_loader=None, callbacks=callbacks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more", [[], ["hydra.job.chdir=true", "+hydra.job.env_set.OF_A_RUN=here"]], ids=["", "own"]
)
def test_its_folder_task_and_callbacks_are_as_from_hydra(tmp_path: Path, more: list[str]) -> None:
    seen: dict[str, Any] = {}

    def recorded(by: str) -> Recorder:
        recorder, config = Recorder(), composed(tmp_path / "sweep", *more)

        def task(given: DictConfig) -> float:
            hydra = OmegaConf.to_container(HydraConfig.instance().cfg, resolve=False)  # type: ignore[arg-type]
            seen[by] = (
                given,
                hydra,
                os.getcwd(),
                os.environ.get("OF_A_RUN"),
                HydraConfig.get().job.num,
            )
            return 0.5

        if by == "hydra":
            run_job(
                task_function=task,
                config=config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
                hydra_context=context(recorder),
            )
        else:
            one_run.run(config, context(recorder), task)
        (tmp_path / "sweep").rename(tmp_path / by)
        return recorder

    place = os.getcwd()
    theirs, ours = recorded("hydra"), recorded("ours")
    assert (os.getcwd(), HydraConfig.instance().cfg) == (place, None)
    assert seen["ours"] == seen["hydra"]
    assert ours.calls == theirs.calls
    assert vars(ours.done) == vars(theirs.done)
    written = sorted(
        path.relative_to(tmp_path / "hydra") for path in (tmp_path / "hydra").rglob("*")
    )
    assert len([path for path in written if path.suffix == ".yaml"]) == 3
    for path in written:
        if path.suffix:
            assert (tmp_path / "ours" / path).read_bytes() == (
                tmp_path / "hydra" / path
            ).read_bytes()


def test_an_error_of_the_task_ends_the_sweep(tmp_path: Path) -> None:
    recorder = Recorder()

    def task(given: DictConfig) -> float:
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        one_run.run(composed(tmp_path), context(recorder), task)
    assert recorder.calls[-1] == "end of 3"
    assert HydraConfig.instance().cfg is None
