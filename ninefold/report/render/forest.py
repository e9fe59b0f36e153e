"""Draws how many times as fast as the baseline each configuration is, with its interval."""

from __future__ import annotations

from ninefold.report.answer.tree import Report


def figure(report: Report) -> str | None:
    """Return figure.svg, the speed of each configuration; None where no time is known."""
    return None
