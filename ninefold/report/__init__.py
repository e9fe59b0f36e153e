"""Turns the run folders of a study into an answer: report.html, report.md and their data.

data reads what was recorded, builder has ninefold.answer decide and makes the `Report`, render
writes it. Each imports only those before it.
"""

from ninefold.report.data.recording import read_runs
from ninefold.report.folder import Read, Written, place, read, write

__all__ = ["Read", "Written", "place", "read", "read_runs", "write"]
