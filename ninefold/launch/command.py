"""The jobs that a command of an extension names: composed, and one for each value of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omegaconf import DictConfig

from ninefold.config import overrides, resolvers
from ninefold.config.composition import compose, flags_of
from ninefold.config.hydra_parts import parsed, split
from ninefold.errors import ConfigError, Refused
from ninefold.words import key_of, quoted


def composed(arguments: Sequence[str], example: str) -> DictConfig:
    """The configuration of the command train, with Hydra's own as `hydra` in it.

    arguments: overrides, and --config-dir. example: as typed. Raises ConfigError, Refused.
    """
    words = usable(arguments, example)
    resolvers.register()
    return compose("train", flags_of(words)).config


def usable(arguments: Sequence[str], example: str) -> list[str]:
    """The arguments, quoted for Hydra.

    example: of a usable command, for the error. Raises Refused for what are no overrides of train,
    ConfigError for flags besides --config-dir.
    """
    if wrong := overrides.of_arguments(arguments, "train"):
        raise Refused(wrong)
    words = quoted(arguments)
    if odd := [w for w in words if w.startswith("-") and w.partition("=")[0] != "--config-dir"]:
        allowed = "--config-dir FOLDER and overrides of train are allowed"
        raise ConfigError("arguments", odd[0], "no such option", allowed, f"type {example}")
    return words


def jobs(words: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The overrides of each job, after those of keys that have several values."""
    found = parsed(words)
    swept = {key_of(each.input_line or "") for each in found if each.is_sweep_override()}
    for job in split(found):
        yield [word for word in job if key_of(word) in swept], job
