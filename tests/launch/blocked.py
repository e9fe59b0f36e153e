"""A dataset that waits until somebody writes into a named pipe."""

from pathlib import Path


class Blocked:
    def __init__(self, pipe: str) -> None:
        Path(pipe).read_text()
