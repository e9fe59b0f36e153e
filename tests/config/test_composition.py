"""A command is composed as Hydra's own main composes it."""

import sys
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from ninefold.config import resolvers
from ninefold.config.composition import VERSION, compose, flags_of
from ninefold.config.hydra_parts import Callbacks
from ninefold.places import CONF


class Composed(BaseException):
    """Raised with the configuration that Hydra begins to run."""

    def __init__(self, config: DictConfig) -> None:
        super().__init__()
        self.config = config


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["max_steps=2", "parallel=ddp", "+optimizer.eps=0.1"],
        ["-m", "seed=0,1"],
        ["experiments=nine_way", "epochs=1", "amp=fp32,autocast"],
        ["experiments=nine_way", "hydra.mode=RUN"],
        ["hydra.mode=MULTIRUN", "seed=0,1", "hydra/sweeper=basic"],
        ["--config-name", "evaluate", "ckpt=run"],
        ["--config-dir", "mine", "model=mine"],
    ],
    ids=" ".join,
)
def test_a_command_is_composed_as_by_hydras_main(arguments, tmp_path, monkeypatch):
    def stop(self: Callbacks, config: DictConfig, **kwargs: Any) -> None:
        raise Composed(config)

    def task(config: DictConfig) -> None:
        raise AssertionError

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "mine.yaml").write_text("net: {_target_: torch.nn.Identity}\n")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    GlobalHydra.instance().clear()
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    monkeypatch.setattr(Callbacks, "on_run_start", stop)
    monkeypatch.setattr(Callbacks, "on_multirun_start", stop)
    resolvers.register()
    task.__module__ = "train"
    with pytest.raises(Composed) as theirs:
        hydra.main(version_base=VERSION, config_path=str(CONF), config_name="train")(task)()
    ours = compose("train", flags_of(arguments))
    assert OmegaConf.to_yaml(ours.config) == OmegaConf.to_yaml(theirs.value.config)
