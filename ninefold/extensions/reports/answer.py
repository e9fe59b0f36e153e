"""The answers to other questions than which configuration is the fastest."""

from __future__ import annotations

from collections.abc import Sequence

from ninefold.answer.answer import Answer
from ninefold.answer.study_facts import StudyFacts
from ninefold.extensions.reports import batches, scaling, sweep
from ninefold.report.data.recording import Recording
from ninefold.study_record import StudyRecord


def answer(recording: Recording, found: Sequence[StudyFacts]) -> Answer | None:
    """Return the answer of a study of processes, batch sizes or other values; None for another.

    found: the facts of all groups, as the report takes it.
    """
    if scaled := scaling.answer(recording, found[0]):
        return scaled
    if not any(each.timed for each in found):  # without times batch sizes are values as others
        return sweep.answer(recording, found) or batches.answer(recording, found)
    return batches.answer(recording, found) or sweep.answer(recording, found)


def decided(record: StudyRecord, found: Sequence[StudyFacts]) -> bool | None:
    """Return whether more rounds cannot change which value is the best; None for other answers."""
    if any(each.timed for each in found) and batches.compared(found):
        return None
    return sweep.decided(record, found)
