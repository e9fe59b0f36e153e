"""Console: a progress bar with loss, speed and time left, a line for each evaluation."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ninefold.logger import Run
from ninefold.progress import bar
from ninefold.result import Result
from ninefold.score import Score


class Console:
    """The bar goes to stderr where that is a terminal; the lines to stdout."""

    def __init__(self, run: Run) -> None:
        self._counted = run.counted
        self._score = Score(run.score, run.unit)
        self._bar = bar(
            total=run.steps,
            initial=run.first_step,
            unit="step",
            dynamic_ncols=True,
            delay=1e-3,  # it is drawn at the first log point, below the lines printed before that
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._bar.update(step - self._bar.n)
        if "loss" in values:
            speed = values["examples_per_second"] * self._counted.per_example
            shown = f"{speed:,.0f} {self._counted.name}/s"
            self._bar.set_postfix_str(f"loss {values['loss']:.4f}, {shown}")
        if "test_score" in values:
            line = f"epoch {values['epoch']:.4g}  step {step}"
            for split in ("val", "test"):
                if f"{split}_score" in values:
                    shown = self._score.text(values[f"{split}_score"])
                    line += f"  {split} {self._score.name} {shown}"
                    if self._score.name != "loss":  # of a loss of one's own, which is the score
                        line += f"  {split} loss {values[f'{split}_loss']:.4f}"
            self._bar.write(line, file=sys.stdout)
            sys.stdout.flush()

    def close(self, result: Result | None) -> None:
        self._bar.close()
