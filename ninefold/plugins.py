"""Sweepers and launchers of other packages for Hydra (Optuna, submitit), which call us.

They compose the configuration of each run themselves, and make its folder with Hydra's `run_job`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, open_dict, read_write

from ninefold import ranks
from ninefold.config.composition import Composition
from ninefold.errors import Interrupted, Preempted
from ninefold.launch.run import follow
from ninefold.launch.runs import Runs
from ninefold.ranks import started_by
from ninefold.result import Result
from ninefold.words import key_of

if TYPE_CHECKING:
    from ninefold.study.runner import Launch


class HydraTask:
    """The function that Hydra calls for each run, here or in a process that a launcher starts.

    It returns the run's best score, as `objective` has it. A failure is printed at once and gives
    None, so that the other runs of a sweep follow. (NaN would end an Optuna study: its plugin for
    Hydra 1.3 fails over it, see hydra#2237.)
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def __call__(self, config: DictConfig) -> float | None:
        if not self._runs.elsewhere:
            return self._run(config)
        with self._runs.in_another_process():
            return self._as_a_rank(config) if started_by() else self._run(config)

    def _run(self, config: DictConfig) -> float | None:
        hydra = HydraConfig.get()
        outcome = self._runs.run_composed(config, hydra)
        return objective(outcome.result, hydra.sweeper) if outcome.result else None

    def _as_a_rank(self, config: DictConfig) -> float | None:
        """Run a job of which each rank calls the task, as with several tasks of submitit."""
        from ninefold.launch import per_rank

        per_rank.meet(self._runs.argv)
        if ranks.found(os.environ).rank == 0:
            try:
                return self._run(config)
            finally:
                per_rank.release(self._runs.code)
        code = follow()
        if code in (Preempted.code, Interrupted.code):
            raise SystemExit(code)
        return None


def objective(result: Result, sweeper: DictConfig) -> float | None:
    """What a sweeper is told of a run: its best score.

    With its sign turned where the sweeper maximizes and less of the score is better: which of the
    two is known only when a run has built its task.
    """
    best, score = result.best_score, result.scoring
    turned = score.better == "less" and sweeper.get("direction") == "maximize"
    return -best if turned and best is not None else best


def sweep(composition: Composition, runs: Runs) -> None:
    """Have the chosen sweeper make runs, by the chosen launcher. Raises what it raises."""
    maximize(composition.config.hydra)
    sweeper = Plugins.instance().instantiate_sweeper(
        hydra_context=composition.context, task_function=HydraTask(runs), config=composition.config
    )
    sweeper.sweep(composition.overrides())


def launch_of(composition: Composition, runs: Runs) -> Launch:
    """The function of the chosen launcher that makes runs of a study."""
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=composition.context, task_function=HydraTask(runs), config=composition.config
    )

    def launch(jobs: Sequence[Sequence[str]], number: int) -> None:
        for done in launcher.launch(jobs, number):
            _ = done.return_value  # raises what the task did, which is a bug

    return launch


def maximize(hydra: DictConfig) -> None:
    """Have an optimizing sweeper maximize the best score, which a run returns.

    Optuna's minimizes, and stops at a failure. Values on the command line have priority: with
    hydra.sweeper.direction=minimize a run returns its score as it is.
    """
    given = {key_of(str(text)) for text in hydra.overrides.hydra}
    for key, value in {"direction": "maximize", "max_failure_rate": 1.0}.items():
        if key in hydra.sweeper and f"hydra.sweeper.{key}" not in given:
            with read_write(hydra), open_dict(hydra):
                hydra.sweeper[key] = value
