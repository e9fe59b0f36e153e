"""The answers to other questions than which configuration is the fastest."""

from __future__ import annotations

from collections.abc import Sequence

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.tree import Answer
from ninefold.report.data.recording import Recording

from . import batches, scaling


def answer(recording: Recording, found: Sequence[Evidence]) -> Answer | None:
    """Return the answer of a study of processes or of batch sizes, None for another one.

    found: the evidence of all groups, as the report takes it.
    """
    return scaling.answer(recording, found[0]) or batches.answer(found)
