"""Reads the arguments of a command."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from ninefold.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line, as the other commands do. allowed, do: its end."""

    def __init__(self, allowed: str, do: str, **options: Any) -> None:
        super().__init__(**options)
        self._allowed, self._do = allowed, do

    def error(self, message: str) -> NoReturn:
        raise ConfigError("arguments", " ".join(sys.argv[1:]), message, self._allowed, self._do)
