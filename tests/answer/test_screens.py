"""What each door shows is the text that is written down, and fits on a screen."""

from __future__ import annotations

import re

from ninefold.answer.screen import WIDTH
from tests.answer.screens import WRITTEN, all_screens

LINES, BELOW_A_MATRIX = 12, 8


def test_each_screen_is_the_one_that_is_written_down() -> None:
    do = "run python -m tests.answer.screens, and read the difference"
    assert all_screens() == WRITTEN.read_text(), do


def test_a_screen_has_twelve_lines_of_160_characters_and_that_of_a_study_its_matrix() -> None:
    shown = re.split(r"^=== (.*)\n", WRITTEN.read_text(), flags=re.M)[1:]
    assert len(shown) > 2 * 15
    for name, text in zip(shown[::2], shown[1::2], strict=True):
        lead, *blocks = text.strip().split("\n\n")
        lines = text.strip().splitlines()
        assert max(map(len, lines)) <= WIDTH, name
        own = [lead, *blocks[1:]] if name.startswith("study") else [text.strip()]
        most = BELOW_A_MATRIX if name.startswith("study") else LINES + (name == "compare")
        assert sum(len(block.splitlines()) for block in own) <= most, name
