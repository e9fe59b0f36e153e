"""Runs of a study are composed as Hydra composes them, but most of them without Hydra."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ninefold.config import resolvers
from ninefold.study.plan import Composer

CONF = Path(__file__).parents[2] / "conf"
RUNS = [
    ["seed=1"],
    ["seed=2", "parallel=ddp", "optimizer.lr=0.1", "model.net.width=4"],
    ["seed=3", "parallel=ddp", "optimizer.lr=${clock.sample}", "dataset.root='a, b=c'"],
    ["experiments=nine_way", "amp=scaler", "batch_size=8", "max_steps=null"],
    ["~logger.console", "seed=1", "+model.net.more=1", "dataset.shape=[1,2,3]", "epochs=3"],
    ["model.net.width=4", "model={net: {width: 3}}"],
    ["model={net: {width: 3}}", "model.net.width=4"],
    ["hydra.sweep.subdir=burn_in", "parallel=ddp", "max_steps=3"],
    ["logger=jsonl", "optimizer.groups=[{match: '*.bias', lr: 0.1}]", "dataset.shape=[3,8,8]"],
    ["dataset=synthetic", "dataset.shape=[3,'${clock.sample}',8]", "optimizer.groups=[]"],
]  # fmt: skip


@pytest.fixture
def loader() -> Iterator[ConfigLoader]:
    resolvers.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


@pytest.mark.slow
def test_a_run_is_composed_as_by_hydra(loader: ConfigLoader) -> None:
    given = ["hydra.job.config.override_dirname.exclude_keys=[epochs]"]
    sweep = loader.load_configuration("train", given, RunMode.MULTIRUN)
    compose = Composer(loader, sweep)
    for run in RUNS:
        expected = OmegaConf.to_yaml(loader.load_sweep_config(sweep, run))
        for _ in range(2):  # the second time from what is kept
            config = compose(run)
            assert OmegaConf.to_yaml(config) == expected, run
            assert OmegaConf.is_struct(config)


def test_runs_that_differ_in_values_are_composed_once(
    loader: ConfigLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = loader.load_configuration("train", [], RunMode.MULTIRUN)
    composed: list[list[str]] = []
    real = loader.load_sweep_config

    def load_sweep_config(master: DictConfig, overrides: list[str]) -> DictConfig:
        composed.append(overrides)
        return real(master, overrides)

    monkeypatch.setattr(loader, "load_sweep_config", load_sweep_config)
    compose = Composer(loader, sweep)
    for seed in range(5):
        for lr in (0.1, 0.2):
            shape = [seed + 1, 8, 8]
            config = compose(
                [f"seed={seed}", "parallel=ddp", f"optimizer.lr={lr}", f"dataset.shape={shape}"]
            )
            assert (config.seed, config.optimizer.lr, config.dataset.shape) == (seed, lr, shape)
    assert composed == [["parallel=ddp"]]
