"""Removes host names and absolute paths from what a report publishes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Two components or more: a lone "/s" in a sentence is a unit, not a path.
_ABSOLUTE = re.compile(r"(?<![\w/.}])(?:[A-Za-z]:)?(?:[/\\][\w.@+~=,-]+){2,}")


class Scrubber:
    """Replaces the given host names by `HOST` and absolute paths by the last name of each."""

    def __init__(self, hostnames: Iterable[str], folders: Iterable[Path]) -> None:
        # Known folders are replaced as a whole, because their names may contain spaces.
        known = {str(folder) for folder in folders if len(folder.parts) > 2}
        self._folders = sorted(known, key=len, reverse=True)
        self._hosts = [
            re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in hostnames if name
        ]

    def text(self, text: str) -> str:
        """Return `text` without host names and absolute paths."""
        text = text.replace("file://", "")
        for folder in self._folders:
            text = text.replace(folder, "...")
        text = _ABSOLUTE.sub(_shorten, text)
        for host in self._hosts:
            text = host.sub("HOST", text)
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value with all its strings scrubbed and `hostname` keys left out."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items() if key != "hostname"}
        return value


def _shorten(path: re.Match[str]) -> str:
    names = re.split(r"[/\\]", path[0])[1:]
    # The second name of a path is often a user's, as in /home/ann.
    return f".../{names[-1]}" if len(names) > 2 else "..."
