"""A task in whose processes the disk is slow."""

import os
import time

from ninefold.task.classification import Classification


class Task(Classification):
    """Classification, and a twentieth of a second more for each file forced to disk."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        force = os.fsync

        def fsync(descriptor: int) -> None:
            time.sleep(0.05)
            force(descriptor)

        os.fsync = fsync
