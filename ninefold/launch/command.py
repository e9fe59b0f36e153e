"""What the commands of extensions share: composing, signals, one-line failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from omegaconf import DictConfig

from ninefold.config import overrides, resolvers
from ninefold.config.composition import compose, flags_of
from ninefold.config.hydra_parts import parsed, split
from ninefold.errors import ConfigError, Refused, require_configuration
from ninefold.exits import exit_code_of
from ninefold.launch.run import failure_of
from ninefold.words import key_of, last_of_each, quoted


def carried_out(
    action: Callable[[list[str]], None], arguments: Sequence[str], stopped: str, text: str
) -> int:
    """Call `action` with a command's arguments and print its failures; returns the exit code.

    stopped: what is wrong after a signal, such as "the count was stopped"; `action` is to have
        removed what it wrote. text: what --help prints in the place of all this.
    """
    if {"-h", "--help"} & {*arguments}:
        print(text)
        return 0
    words = last_of_each(arguments)

    def carry_out() -> None:
        require_configuration()
        action(words)

    left = "nothing is left of what was written"
    return exit_code_of(carry_out, stopped, left, lambda error: failure_of(error, words))


def composed(arguments: Sequence[str], example: str) -> DictConfig:
    """The configuration of the command train, with Hydra's own as `hydra` in it.

    arguments: overrides, and --config-dir. example: as typed. Raises ConfigError, Refused.
    """
    if wrong := overrides.of_arguments(arguments, "train"):
        raise Refused(wrong)
    words = quoted(arguments)
    if odd := [w for w in words if w.startswith("-") and w.partition("=")[0] != "--config-dir"]:
        allowed = "--config-dir FOLDER and overrides of train are allowed"
        raise ConfigError("arguments", odd[0], "no such option", allowed, f"type {example}")
    resolvers.register()
    return compose("train", flags_of(words)).config


def jobs(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The overrides of each job, after a label: its values of keys that have several."""
    found = parsed(words)
    swept = {key_of(each.input_line or "") for each in found if each.is_sweep_override()}
    for job in split(found):
        yield " ".join(word for word in job if key_of(word) in swept), job
