"""The error rate of a series of judgements: at most 5 % of what is kept is noise, in the mean.

Each judgement is a test, at a level that the series can afford: alpha-investing (Foster and Stine
2008). It has a wealth, of which a test spends a part, the larger the sooner it comes after a change
that was kept; what is kept earns some back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ninefold.bench.score import KEEP
from ninefold.errors import ConfigError
from ninefold.files import read_text, write_durably

ALPHA = 0.05  # of what is kept, the share that is noise in the mean
OPTION = "--series"


def level_of_next(kept: Sequence[bool]) -> float:
    """Return the level of the next test. kept: of each test before, whether its change was."""
    wealth, last = ALPHA * (1 - ALPHA), 0
    for number, was_kept in enumerate(kept, start=1):
        wealth += ALPHA if was_kept else -_spends(wealth, number - last)
        last = number if was_kept else last
    spends = _spends(wealth, len(kept) + 1 - last)
    return spends / (1 + spends)


def _spends(wealth: float, place: int) -> float:
    """What of its wealth a test spends. place: of the tests since a change was kept, from 1."""
    return wealth / (1 + place)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the judgements of a series; none of a file that is not there. Raises ConfigError."""
    if not path.exists():
        return []
    try:
        found = [json.loads(line) for line in read_text(path).splitlines() if line.strip()]
        if all(isinstance(each, dict) and isinstance(each.get("verdict"), str) for each in found):
            return found
        wrong = "a line of it is no judgement"
    except (OSError, ValueError, RecursionError) as error:
        wrong = f"it cannot be read ({error})"
    raise ConfigError(OPTION, path, wrong, "a line of JSON for each", "name a new file")


def add(path: Path, before: Sequence[dict[str, Any]], judged: dict[str, Any]) -> str:
    """Add a judgement to the file of a series; return what the series has come to."""
    lines = [json.dumps(each) for each in (*before, judged)]
    write_durably(path, "".join(f"{line}\n" for line in lines).encode())
    kept = sum(each["verdict"] == KEEP for each in (*before, judged))
    noise = f"{ALPHA * kept:.2g}"
    return (
        f"This series: {kept} of {len(lines)} kept, of which {noise} at most are noise in the mean."
    )
