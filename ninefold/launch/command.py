"""What the commands `python -m ninefold.NAME` share: composing, signals, one-line failures."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from ninefold.config import letters, overrides, resolvers
from ninefold.errors import ConfigError, Failure, Refused
from ninefold.launch.run import failure_of
from ninefold.places import CONF
from ninefold.process import (
    OutputClosed,
    interrupted,
    interruptible,
    no_reader,
)
from ninefold.secrets import redact


def carried_out(action: Callable[[list[str]], None], arguments: Sequence[str], stopped: str) -> int:
    """Call `action` with a command's arguments and print its failures; returns the exit code.

    stopped: what is wrong after a signal, such as "packing was stopped". Nothing is left then.
    """
    arguments = overrides.last_of_each(arguments)
    failures: list[Failure]
    debug = bool(os.environ.get("HYDRA_FULL_ERROR"))
    try:
        with interruptible():
            action(arguments)
            sys.stdout.flush()
        return 0
    except OutputClosed:
        return no_reader().code
    except KeyboardInterrupt as interrupt:
        left = "nothing is left of what was written"
        failures = [interrupted(interrupt, stopped, left, "start again")]
    except Refused as refused:
        failures = list(refused.failures)
    except Exception as error:
        failures = [failure_of(error, arguments)]
    for failure in failures:
        if debug and failure.__cause__ is not None:
            lines = traceback.format_exception(failure.__cause__)
            print(redact("".join(lines)), file=sys.stderr)
        print(failure, file=sys.stderr, flush=True)
    return failures[0].code


def composed(command: str, arguments: Sequence[str], example: str) -> DictConfig:
    """The configuration of `command`, train or evaluate, with Hydra's own as `hydra` in it.

    arguments: overrides, and --config-dir. example: of how they are typed. Raises ConfigError.
    """
    words, folder = _config_folder(letters.quoted(arguments))
    if wrong := letters.problems(arguments):
        raise Refused(wrong)
    if odd := [word for word in words if word.startswith("-")]:
        raise ConfigError(
            "arguments",
            odd[0],
            f"no such option; --config-dir FOLDER and overrides of {command} are allowed; type "
            f"{example}",
        )
    resolvers.register()
    if folder is not None:
        words.append(f"hydra.searchpath=[file://{folder}]")
    with initialize_config_dir(str(CONF), version_base="1.3", job_name=command):
        return compose(command, words, return_hydra_config=True)


def _config_folder(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """The arguments without --config-dir, and its folder."""
    rest, folder, words = [], None, iter(arguments)
    for word in words:
        if word == "--config-dir":
            folder = next(words, None)
        elif word.startswith("--config-dir="):
            folder = word.partition("=")[2]
        else:
            rest.append(word)
    return rest, None if folder is None else os.path.abspath(folder)
