"""A notebook shows what anybody may have written as text, and copies a report's files alone."""

from __future__ import annotations

import ast
import csv
import json
import shutil
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import ninefold
from ninefold.answer.facts import facts_of
from ninefold.answer.times import times
from ninefold.api import NOTES
from ninefold.api.fits import Fits
from ninefold.tournament.taken import TurnLog
from tests.api.test_steps import SETTINGS
from tests.conftest import ROOT

(RECORDED,) = (ROOT / "experiments" / "nine_way").glob("20*")
HOSTILE = "'\"><script>alert(1)</script><img src=x onerror=alert(1)>"


def studied(place: Path, **of_run: str) -> ninefold.Answer:
    """The answer of a recording with a run that failed with a hostile error, and such a note."""
    shutil.copytree(RECORDED, place)
    with (place / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[-1] |= {"status": "failed", "error": HOSTILE, **of_run}
    with (place / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (place / NOTES).parent.mkdir()
    (place / NOTES).write_text(json.dumps([HOSTILE]))
    return ninefold.Answer(place)


def fitting(folder: Path) -> Fits:
    return Fits([{"line": {HOSTILE: HOSTILE}}], [HOSTILE], [HOSTILE])


def timed(folder: Path) -> ninefold.Times:
    log = TurnLog()
    for number in range(6):
        for name, seconds in {HOSTILE: 1.0, "b": 2.0}.items():
            log.add(name, number, seconds=seconds + number / 1e3, steps=1)
    return times(facts_of((HOSTILE, "b"), log.turns, {}, 6, SETTINGS), [HOSTILE])


SHOWN: dict[str, Callable[[Path], Any]] = {"Answer": studied, "Fits": fitting, "Times": timed}


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [(tag, dict(attrs).get("onerror"))]


def test_no_object_that_a_notebook_shows_lets_text_be_html(tmp_path: Path) -> None:
    trees = [ast.parse(path.read_text()) for path in (ROOT / "ninefold").rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    shows = {
        node.name
        for node in classes
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name == "_repr_html_"
    }
    assert shows == SHOWN.keys()
    for make in SHOWN.values():
        page = make(tmp_path / "study")._repr_html_()
        assert escape(HOSTILE) in page
        found = Tags(page).found
        assert not [tag for tag, onerror in found if tag == "script" or onerror]
