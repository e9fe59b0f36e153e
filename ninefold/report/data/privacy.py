"""Removes host names and absolute paths from what a report publishes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Two components or more: a lone "/s" in a sentence is a unit, not a path.
_ABSOLUTE = re.compile(r"(?<![\w/.}])(?:[A-Za-z]:)?(?:[/\\][\w.@+~=,-]+){2,}")
_ENDS = r"(?!\.?[\w@+~=-])"  # after a folder, whose name is not the beginning of another's


class Scrubber:
    """Replaces host names by `HOST`, folders by `...` and other absolute paths by `.../NAME`."""

    def __init__(
        self, hostnames: Iterable[str], folders: Iterable[Path], differ: Iterable[str] = ()
    ) -> None:
        """hostnames, folders: what is replaced as a whole.

        differ: texts, such as overrides, whose paths stay distinct: /a/b/x.pt and /a/c/x.pt become
            .../x.pt and .../x.pt#2.
        """
        # Known folders are replaced as a whole, because their names may contain spaces.
        known = {str(folder) for folder in folders if len(folder.parts) > 2}
        longest_first = sorted(known, key=len, reverse=True)
        self._folders = [re.compile(rf"{re.escape(each)}{_ENDS}") for each in longest_first]
        self._hosts = [
            re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in hostnames if name
        ]
        self._short: dict[str, str] = {}
        for path in sorted({path for text in differ for path in self._paths(text)}):
            short = _shorten(path)
            before = sum(_shorten(other) == short for other in self._short)
            self._short[path] = f"{short}#{before + 1}" if before else short

    def text(self, text: str) -> str:
        """Return `text` without host names and absolute paths."""
        text = _ABSOLUTE.sub(
            lambda path: self._short.get(path[0]) or _shorten(path[0]), self._relative(text)
        )
        for host in self._hosts:
            text = host.sub("HOST", text)
        return text

    def _relative(self, text: str) -> str:
        text = text.replace("file://", "")
        for folder in self._folders:
            text = folder.sub("...", text)
        return text

    def _paths(self, text: str) -> list[str]:
        return [path[0] for path in _ABSOLUTE.finditer(self._relative(text))]

    def value(self, value: Any) -> Any:
        """Return a JSON value with all its strings scrubbed and `hostname` keys left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items() if key != "hostname"}
        return value


def _shorten(path: str) -> str:
    names = re.split(r"[/\\]", path)[1:]
    # The second name of a path is often a user's, as in /home/ann.
    return f".../{names[-1]}" if len(names) > 2 else "..."
