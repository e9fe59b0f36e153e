"""MLflow: parameters, and the metrics of metrics.jsonl under the same names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ninefold import secrets
from ninefold.extensions.trackers.tracking import Point, Tracked
from ninefold.files import opener
from ninefold.logger import Run
from ninefold.waits import locked, poll_until, unlock

EXTRA = "mlflow"
DEFAULT = Path("outputs", "mlflow.db")
SQLITE = "sqlite:///"
TAG = "ninefold.id"
PARAMETERS, METRICS = 100, 1000  # in a request
ENDS = {"ok": "FINISHED", "preempted": "KILLED"}  # MLflow's words for how a run ended
ARTIFACTS = "_MLFLOW_SERVER_ARTIFACT_ROOT"  # unset, MLflow makes ./mlruns
FILES = re.compile(r"sqlite:|file:|(?!databricks)[^:]*$")
PASSWORDS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


def logger(run: Run, uri: str | None, experiment: str, wait: float) -> Tracked:
    """The logger of a run.

    uri: of the server or database; None: MLFLOW_TRACKING_URI, else outputs/mlflow.db.
    experiment: its name. wait: seconds after the end of the run for what a server has not taken.
    """
    for name in PASSWORDS:
        if value := os.environ.get(name):
            secrets.note(name, value)
    if not uri or uri.startswith(SQLITE):
        path = (Path(uri.removeprefix(SQLITE)) if uri else DEFAULT).absolute()
        if not uri:
            with suppress(OSError):  # a database that cannot be made is one warning
                path.parent.mkdir(exist_ok=True)
        uri = f"{SQLITE}{path}"
    at, local = uri, bool(FILES.match(uri))
    return Tracked(run, EXTRA, lambda about, _: Client(about, at, experiment), wait, local)


class Client:
    """What talks to MLflow."""

    def __init__(self, about: Mapping[str, Any], uri: str, experiment: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
        import mlflow
        from mlflow import entities

        self._about, self._uri, self._experiment = about, uri, experiment
        self._mlflow, self._entities = mlflow, entities
        self._logged: dict[str, int] = {}

    def start(self) -> None:
        about, Param = self._about, self._entities.Param  # noqa: N806
        with alone(self._uri):
            client = self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            there = client.get_experiment_by_name(self._experiment)
            number = there.experiment_id if there else client.create_experiment(self._experiment)
        found = client.search_runs([number], f"tags.`{TAG}` = '{about['id']}'", max_results=1)
        if found:  # it is resumed
            run = found[0]
            client.update_run(run.info.run_id, status="RUNNING")
            for key in run.data.metrics:
                history = client.get_metric_history(run.info.run_id, key)
                self._logged[key] = max(metric.step for metric in history)
        else:
            run = client.create_run(number, run_name=about["name"], tags={TAG: about["id"]})
        self._run = run.info.run_id
        params = [
            Param(re.sub(r"[^\w./ -]", "_", key), str(value)[:6000])  # as MLflow takes it
            for key, value in about["settings"].items()
        ]
        new = [param for param in params if param.key not in run.data.params]  # none may change
        for some in range(0, len(new), PARAMETERS):
            client.log_batch(self._run, params=new[some : some + PARAMETERS])

    def log(self, points: Sequence[Point]) -> None:
        """Log what is new: after a crash, steps after the checkpoint are trained again."""
        metrics = []
        for step, when, values in points:
            new = [key for key in values if step > self._logged.get(key, -1)]
            metrics += [
                self._entities.Metric(key, values[key], int(1000 * when), step) for key in new
            ]
            self._logged |= dict.fromkeys(new, step)
        for first in range(0, len(metrics), METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + METRICS])

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._run, ENDS.get(status, "FAILED"))

    def abandon(self) -> None:
        """Leave the thread behind: nothing waits for it."""


@contextmanager
def alone(uri: str) -> Iterator[None]:
    """One process at a time in the block: it makes the tables of a new database."""
    if not uri.startswith(SQLITE):
        yield
        return
    path = Path(uri.removeprefix(SQLITE))
    os.environ.setdefault(ARTIFACTS, str(path.parent / "mlruns"))
    with open(path.with_name(f".{path.name}.lock"), "a", opener=opener) as file:
        poll_until(lambda: locked(file))
        try:
            yield
        finally:
            unlock(file)
