"""Tasks: what a network is trained for, one file and one yaml for each."""

from ninefold.engine.task import Objective, Scores, Task
from ninefold.score import Figure, Score

__all__ = ["Figure", "Objective", "Score", "Scores", "Task"]
