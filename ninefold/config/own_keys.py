"""Overrides of keys that some options of a group have and others lack, in a sweep over these.

`parallel=none,ddp parallel.find_unused_parameters=true` sets the key of ddp; none has no such key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ninefold.config.conf_files import keys_in, options_of
from ninefold.errors import ConfigError
from ninefold.words import key_and_value, key_of

GPUS = "parallel.devices"


def is_own(text: str) -> bool:
    """Return whether an override sets a key that some options of its group have and others lack."""
    group, inside, _ = key_of(text).partition(".")
    having = [fits(text, option) for option in options_of(group)] if inside else []
    return text[:1] not in "+~" and any(having) and not all(having)


def fits(text: str, option: str | None) -> bool:
    """Return whether an option of a group has the key of an override; one of a user's own may."""
    group, _, name = key_of(text).partition(".")
    keys = keys_in(group, option)
    return keys is None or name.partition(".")[0] in keys


def of_options(
    jobs: Sequence[Sequence[str]], choice: Callable[[str], str | None]
) -> list[list[str]]:
    """Return the overrides of the jobs of a sweep, without keys that a job's own options lack.

    A key that no job's option has is kept, so that it is refused. choice: a group's option where
    a job names none. Raises ConfigError if dropping a key would change which GPUs a job uses.
    """

    def fitting(text: str, job: Sequence[str]) -> bool:
        group = key_of(text).partition(".")[0]
        chosen = [word.partition("=")[2] for word in job if key_of(word) == group]
        return fits(text, chosen[-1] if chosen else choice(group))

    own = {text for job in jobs for text in job if is_own(text)}
    own = {text for text in own if any(text in job and fitting(text, job) for job in jobs)}
    left_out = {text for job in jobs for text in job if text in own and not fitting(text, job)}
    for key, value in map(key_and_value, left_out):
        if key == GPUS and value != "null":
            raise ConfigError(
                key,
                value,
                "strategies of one process would train on the first GPU all the same",
                "all strategies of a comparison use the same GPUs",
                f"leave it out, and set CUDA_VISIBLE_DEVICES={value.strip('[]').replace(' ', '')}",
            )
    return [[text for text in job if text not in left_out or fitting(text, job)] for job in jobs]
