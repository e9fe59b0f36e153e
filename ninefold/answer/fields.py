"""Fields of tables, and the words of verdicts that stand in them."""

from __future__ import annotations

from typing import NamedTuple

from ninefold.stats.verdicts import FAILED, INCONCLUSIVE, OPEN, PASSED, WITHIN

# The word of a verdict, and whether it is good, bad, even or open.
_WORDS = {
    "baseline": ("baseline", ""),
    "faster": ("faster", "good"),
    "slower": ("slower", "bad"),
    "better": ("better", "good"),
    "worse": ("worse", "bad"),
    "tie": ("the same", "even"),
    "safe": ("kept", "good"),
    OPEN: ("open", "open"),
    WITHIN: ("in the noise", "open"),
    PASSED: ("passed", "good"),
    FAILED: ("failed", "bad"),
    INCONCLUSIVE: ("inconclusive", "open"),
}
GLYPHS = {"good": "✓", "bad": "✗", "even": "=", "open": "?"}


class Word(NamedTuple):
    """A verdict as a word. state: good, bad, even or open; empty of what is none."""

    text: str
    state: str

    @property
    def glyph(self) -> str:
        """What tells the state without its color."""
        return GLYPHS.get(self.state, "")


def word(verdict: str) -> Word:
    """Return how a verdict is told; an unknown one by its own words."""
    return Word(*_WORDS.get(verdict, (verdict, "even")))


class Field(NamedTuple):
    """One field of a table. more: stands beside it, smaller; word: its verdict."""

    text: str
    more: str = ""
    word: Word | None = None

    def __str__(self) -> str:
        more = self.more if self.more.startswith("±") or not self.more else f"({self.more})"
        return " ".join(filter(None, [self.text, more, self.word.text if self.word else ""]))
