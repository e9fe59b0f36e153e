"""The runs of a sweep, composed without doing again for each what is the same for all."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException


def share(loader: ConfigLoader, first: Callable[[DictConfig], None]) -> None:
    """Have `loader` compose the runs of a sweep that differ in values only from one composition.

    Hydra reads and merges some twenty files for each run, twice over, and then puts values (as of
    `seed=1`) over what it has merged. Here that is done to a copy of what was merged once. All else
    that an override may be, and all that may be wrong with one, is left to Hydra. `first` is given
    the first run so composed.
    """
    compose = loader.load_sweep_config
    merged: dict[tuple[str, ...], bytes] = {}
    parsed: dict[str, Override] = {}
    parser = OverridesParser.create()

    def load_sweep_config(master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        for text in set(sweep_overrides) - parsed.keys():
            parsed[text] = parser.parse_override(text)
        groups = master_config.hydra.runtime.choices
        overrides = [parsed[text] for text in sweep_overrides]
        values = [override for override in overrides if _is_value(override, groups)]
        others = [override for override in overrides if not _is_value(override, groups)]
        if _section_of_both(values, [o for o in others if not _is_choice(o, groups)]):
            return compose(master_config, sweep_overrides)
        is_first = not merged
        shared = tuple(str(override.input_line) for override in others)
        if shared not in merged:
            merged[shared] = pickle.dumps(compose(master_config, list(shared)))
        config: DictConfig = pickle.loads(merged[shared])  # a copy in a fifth of deepcopy's time
        try:
            for override in values:
                OmegaConf.update(config, override.key_or_group, override.value())
        except OmegaConfBaseException:  # Hydra has words for it
            return compose(master_config, sweep_overrides)
        job = config.hydra.job
        ours = [override for override in overrides if not override.is_hydra_override()]
        config.hydra.overrides.task = [override.input_line for override in ours]
        job.override_dirname = get_overrides_dirname(ours, **job.config.override_dirname)
        if is_first:
            first(config)
        return config

    loader.load_sweep_config = load_sweep_config  # type: ignore[method-assign]


def _is_choice(override: Override, groups: DictConfig) -> bool:
    """Whether `override` chooses an option from a group, which Hydra does before all else."""
    return override.key_or_group in groups and not isinstance(override.value(), dict)


def _is_value(override: Override, groups: DictConfig) -> bool:
    """Whether `override` gives a key, and only that, another value."""
    return (
        override.type == OverrideType.CHANGE
        and override.package is None
        and override.key_or_group not in groups
        and not override.is_hydra_override()
        and not isinstance(override.value(), dict | list)
    )


def _section_of_both(some: list[Override], others: list[Override]) -> bool:
    """Whether the order of `some` among `others` may matter."""
    sections = {override.key_or_group.partition(".")[0] for override in others}
    return any(override.key_or_group.partition(".")[0] in sections for override in some)
