"""The runs of a sweep are composed faster than Hydra does it, to the same end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ninefold.config import resolvers
from ninefold.study import composition

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
]  # fmt: skip


@pytest.fixture
def loader() -> Iterator[ConfigLoader]:
    resolvers.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def test_a_run_of_a_sweep_is_composed_as_hydra_would(loader: ConfigLoader) -> None:
    given = ["hydra.job.config.override_dirname.exclude_keys=[epochs]"]
    master = loader.load_configuration("train", given, RunMode.MULTIRUN)
    hydras = [loader.load_sweep_config(master, run) for run in RUNS]
    firsts: list[DictConfig] = []
    composition.share(loader, firsts.append)
    for _ in range(2):  # Hydra asks for each run twice
        for run, expected in zip(RUNS, hydras, strict=True):
            config = loader.load_sweep_config(master, run)
            assert OmegaConf.to_yaml(config) == OmegaConf.to_yaml(expected), run
            assert OmegaConf.is_struct(config)
    assert [config.seed for config in firsts] == [1]


def test_what_is_wrong_with_a_run_of_a_sweep_is_told_by_hydra(loader: ConfigLoader) -> None:
    master = loader.load_configuration("train", [], RunMode.MULTIRUN)
    composition.share(loader, lambda config: None)
    loader.load_sweep_config(master, ["seed=1"])
    with pytest.raises(HydraException, match="Could not override 'sed'"):
        loader.load_sweep_config(master, ["sed=1"])
