"""Composes the configuration of a command with Hydra, without running or writing anything.

A command makes a run or a sweep: what it asks for that does not go with that is refused here.
"""

from __future__ import annotations

import os
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra import version
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, run_job
from hydra.errors import ConfigCompositionException, SearchPathException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ninefold.config import combinations, conf_files
from ninefold.config.hydra_parts import (
    Callbacks,
    ConfigLoaderImpl,
    Hydra,
    create_automatic_config_search_path,
    get_args_parser,
    parsed,
)
from ninefold.config.rules import SWEEP_SECTIONS
from ninefold.config.schema import defaults
from ninefold.errors import ConfigError, Failure
from ninefold.places import CONF
from ninefold.ranks import started_by
from ninefold.types import spelled

VERSION = "1.3"  # whose defaults Hydra is to have
SWEEPER = "study"  # the option of hydra/sweeper that runs in rounds


@dataclass(frozen=True)
class Composition:
    """The configuration of a single run, or of a sweep.

    config: with Hydra's own settings as `hydra`. A value like ${hydra:job.name} needs more: the
        singleton HydraConfig, which Hydra sets only while a run's function is called. So it is
        refused here, and ${hydra.job.name} is the way to write it in settings of Hydra's.
    context: Hydra's loader, which composes each run of a sweep, and the callbacks of the user.
    own: overrides of a sweep that are of some of its options alone, see `conf_files`: `config` is
        without them.
    """

    config: DictConfig
    context: HydraContext
    own: tuple[str, ...] = ()

    @property
    def sweeps(self) -> bool:
        return bool(self.config.hydra.mode == RunMode.MULTIRUN)

    def choice(self, group: str) -> str | None:
        """The option chosen from `group`, if any."""
        option = self.config.hydra.runtime.choices.get(group)
        return None if option is None else str(option)

    def overrides(self) -> list[str]:
        """Those of the command, without Hydra's own settings; as written, references too."""
        given = OmegaConf.to_container(self.config.hydra.overrides.task, resolve=False)
        assert isinstance(given, list)
        return [*(str(text) for text in given), *self.own]

    def as_yaml(self) -> str:
        """The configuration as multirun.yaml holds it, with all overrides of the command."""
        tree: Any = OmegaConf.to_container(self.config)
        tree["hydra"]["overrides"]["task"] = self.overrides()
        return OmegaConf.to_yaml(OmegaConf.create(tree))

    def params(self) -> list[str]:
        """What the settings of the sweeper sweep, as overrides: overlays of experiments/ do."""
        params = self.config.hydra.sweeper.get("params") or {}
        return [f"{key}={value}" for key, value in params.items()]

    def parsed(self, overrides: Sequence[str]) -> list[Override]:
        """Parse overrides, which may glob the options of a group."""
        return parsed(overrides, self.context.config_loader)

    def in_run_folder(self, action: Callable[[], object]) -> JobReturn:
        """Have Hydra make the folder of a run, with .hydra/, and then call `action`.

        With the working directory and the environment variables that it has for the run.
        """
        folder, within = ("sweep.dir", "hydra.sweep.subdir") if self.sweeps else ("run.dir", None)
        done = run_job(
            task_function=lambda _: action(),
            config=self.config,
            job_dir_key=f"hydra.{folder}",
            job_subdir_key=within,
            hydra_context=self.context,
        )
        _ = done.return_value  # raises what `action` did
        return done

    def go_on_in(self, folder: str) -> None:
        """Have the run resume the one in `folder`, and write there."""
        with read_write(self.config), open_dict(self.config):
            self.config.resume = folder
        self.set_folder(folder)

    def set_folder(self, folder: str) -> None:
        """Have the run write to `folder`: a name with ${now:} would be another at each look."""
        with read_write(self.config.hydra), open_dict(self.config.hydra):
            self.config.hydra.run.dir = folder


def flags_of(arguments: Sequence[str]) -> Namespace:
    """Hydra's flags, and the overrides, in the arguments of a command."""
    flags: Namespace = get_args_parser().parse_args(arguments)
    return flags


def only_shows(flags: Namespace) -> bool:
    """Whether Hydra itself is to carry out the command: --cfg, --info and the like.

    It also refuses flags that contradict each other.
    """
    asked = (flags.hydra_help, flags.cfg, flags.resolve, flags.shell_completion)
    odd = flags.run and flags.multirun
    return bool(any(asked) or flags.info or flags.experimental_rerun or odd)


def compose(command: str, flags: Namespace) -> Composition:
    """Compose the configuration of `command`, train or evaluate. Raises what Hydra raises."""
    hydra = _hydra(command, flags)
    name, given = flags.config_name or command, list(flags.overrides)

    def composed(mode: RunMode) -> DictConfig:
        return hydra.compose_config(
            name, given, mode, with_log_configuration=True, validate_sweep_overrides=False
        )

    told = ("experiments=", "hydra.mode=")  # a study of experiments/ says so itself
    likely = flags.multirun or any(text.lstrip("+").startswith(told) for text in given)
    tried = RunMode.MULTIRUN if likely else RunMode.RUN
    own: tuple[str, ...] = ()
    try:
        config = composed(tried)
    except ConfigCompositionException:
        own = tuple(filter(conf_files.is_own, given))
        if tried == RunMode.RUN or not own:
            raise
        given = [text for text in given if text not in own]
        config = composed(tried)
    said = config.hydra.mode
    mode = RunMode.MULTIRUN if flags.multirun else said or RunMode.RUN
    if said not in (None, mode):
        warnings.warn("-m replaces hydra.mode=RUN by hydra.mode=MULTIRUN", stacklevel=2)
    if mode != tried:  # a sweep may leave out an option that each run is to have
        own, given = (), list(flags.overrides)
        config = composed(mode)
    ConfigLoaderImpl.validate_sweep_overrides_legal(parsed([*given, *own]), mode, from_shell=True)
    if said != mode:
        config.hydra.mode = mode
        config.hydra.overrides.hydra.append(f"hydra.mode={mode.name}")
    return Composition(config, HydraContext(hydra.config_loader, Callbacks(config)), own)


def _hydra(command: str, flags: Namespace) -> Hydra:
    """Hydra with the folders in which it is to look for files, as its own main sets it up."""
    version.setbase(VERSION)
    path = create_automatic_config_search_path(None, command, flags.config_path or str(CONF))
    if flags.config_dir is not None:
        own = os.path.abspath(flags.config_dir)
        if not os.path.isdir(own):
            raise SearchPathException(f"Additional config directory '{own}' not found")
        path.prepend("command-line", f"file://{own}", SearchPathQuery(provider="schema"))
    return Hydra(command, ConfigLoaderImpl(path))


def mode_problems(composition: Composition) -> list[Failure]:
    """What is wrong with a command before its job is looked at."""
    config, kind = composition.config, "sweep" if composition.sweeps else "run"
    found = not_honored(config)
    if config.hydra.job.env_set and not (composition.sweeps or config.launch.inline):
        names = ", ".join(map(str, config.hydra.job.env_set))
        wrong, allowed = "a run's processes do not get it", "variables of the command are theirs"
        found = [ConfigError("hydra.job.env_set", names, wrong, allowed, "set them before it")]
    found = found or combinations.problems(_asked(composition), combinations.REFUSED_COMMANDS)
    if found or config.hydra[kind].dir:
        return found
    said = ("it names nothing", "a folder is allowed", "leave it out")
    return [ConfigError(f"hydra.{kind}.dir", "", *said)]


def _asked(composition: Composition) -> dict[str, Any]:
    """What a command asks for instead of a run, and what starts it, by key."""
    keys = ("resume", "launch.inline", "launch.max_restarts", "study.ask")
    found = {key: OmegaConf.select(composition.config, key) for key in keys}
    return found | {
        "hydra.mode": "MULTIRUN" if composition.sweeps else "RUN",
        "hydra/launcher": composition.choice("hydra/launcher"),
        "started_by": started_by(),
    }


def not_honored(config: DictConfig) -> list[Failure]:
    """The `study.*` and `report.*` values that have no effect because this command is no study."""
    wrong, do = "a single run is no study", "add -m, or leave it out"
    if config.hydra.mode == RunMode.MULTIRUN:
        sweeper = config.hydra.runtime.choices.get("hydra/sweeper")
        if sweeper == SWEEPER:
            return []
        wrong, do = f"hydra/sweeper={sweeper} makes no study", "leave one of them out"
    allowed = f"a sweep with hydra/sweeper={SWEEPER}, the default, is one"
    return [
        ConfigError(f"{section}.{key}", spelled(value), wrong, allowed, do)
        for section in SWEEP_SECTIONS
        for key, value in changed(config, section).items()
    ]


def changed(config: DictConfig, section: str) -> dict[str, Any]:
    """The values of a section that are not the defaults."""
    before = defaults("train")[section]
    given = {str(key): value for key, value in (config.get(section) or {}).items()}
    return {key: value for key, value in given.items() if value != before.get(key)}
