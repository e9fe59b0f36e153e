"""Compose the configuration of each run. Hydra does it once per cell; plain values are then set."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ninefold.config.hydra_internal import get_overrides_dirname
from ninefold.config.parse import parsed


class Composer:
    """Composes runs as Hydra does, and reuses a composition for those that differ in values only.

    Hydra reads and merges some twenty files in each composition and sets plain values (as of
    `seed=1`) last. Here those are set on a copy. Hydra does the rest, and reports errors.
    """

    def __init__(self, loader: ConfigLoader, sweep: DictConfig) -> None:
        """`sweep`: the configuration of the whole sweep, as Hydra gives it to its sweeper."""
        self._loader, self._sweep = loader, sweep
        self._composed: dict[tuple[str, ...], bytes] = {}

    def __call__(self, texts: Sequence[str]) -> DictConfig:
        """The configuration of the run with these overrides. Raises what Hydra raises."""
        overrides = parsed(texts)
        groups = self._sweep.hydra.runtime.choices
        # The order of other overrides matters to values in the same section, but a group's option
        # is chosen before all values are set.
        plain = [override for override in overrides if _is_value(override, self._sweep)]
        ordered = {
            _section(override)
            for override in overrides
            if override not in plain and not _is_choice(override, groups)
        }
        values = [override for override in plain if _section(override) not in ordered]
        others = tuple(o.input_line or "" for o in overrides if o not in values)
        if others not in self._composed:
            composed = self._loader.load_sweep_config(self._sweep, list(others))
            self._composed[others] = pickle.dumps(composed)
        config: DictConfig = pickle.loads(self._composed[others])  # 5 times as fast as deepcopy
        OmegaConf.copy_cache(self._sweep, config)  # so that ${now:} is that of the sweep
        try:
            for override in values:
                OmegaConf.update(config, override.key_or_group, override.value())
        except OmegaConfBaseException:  # Hydra says it better
            return self._loader.load_sweep_config(self._sweep, list(texts))
        own = [override for override in overrides if not override.is_hydra_override()]
        config.hydra.overrides.task = [override.input_line for override in own]
        job = config.hydra.job
        job.override_dirname = get_overrides_dirname(own, **job.config.override_dirname)
        return config


def _section(override: Override) -> str:
    return override.key_or_group.partition(".")[0]


def _is_choice(override: Override, groups: DictConfig) -> bool:
    """Whether `override` chooses an option of a group."""
    return override.key_or_group in groups and not isinstance(override.value(), dict)


def _is_value(override: Override, sweep: DictConfig) -> bool:
    """Whether `override` only sets an existing key to another plain value or list."""
    groups = sweep.hydra.runtime.choices  # without those of which several options are chosen
    return (
        override.type == OverrideType.CHANGE
        and override.package is None
        and override.key_or_group not in groups
        and not override.is_hydra_override()
        and not isinstance(override.value(), dict)
        and not OmegaConf.is_dict(OmegaConf.select(sweep, override.key_or_group))
    )
