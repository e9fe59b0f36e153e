"""MLflow and W&B, with their own clients: they have what metrics.jsonl has, and hold nothing up."""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninefold.extensions.trackers import mlflow, wandb
from ninefold.extensions.trackers.tracking import Point, Tracked
from ninefold.logger import Run
from ninefold.result import Result
from ninefold.waits import poll_until
from tests.conftest import ROOT, Shell
from tests.dataset.kit import photos
from tests.dataset.mine import Unsaid
from tests.faults.runs import one_after_another

SECRET = "canary-7f3a9c51"
OPTIONS = {"mlflow": ["logger=mlflow"], "wandb": ["logger=wandb", "logger.wandb.mode=offline"]}
Values = dict[tuple[str, int], float]  # by name and step


def written(run: Path) -> Values:
    """The values in metrics.jsonl."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {(key, line["step"]): line[key] for line in lines for key in line if key != "step"}


def of_mlflow(database: Path) -> list[tuple[Any, Values, int]]:
    """The runs in a database of MLflow, each with its values and their number, those twice too."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiments = [found.experiment_id for found in client.search_experiments()]
    found = []
    for run in client.search_runs(experiments, order_by=["attributes.start_time"]):
        values = [
            ((key, metric.step), metric.value)
            for key in run.data.metrics
            for metric in client.get_metric_history(run.info.run_id, key)
        ]
        found.append((run, dict(values), len(values)))
    return found


BLOCK, HEAD = 32768, 7


def records(content: bytes) -> Iterator[bytes]:
    """The records of an offline run: LevelDB's log format, behind a head of the file."""
    place, record = HEAD, b""
    while place + HEAD <= len(content):
        if BLOCK - place % BLOCK < HEAD:  # no room for another part in this block
            place += BLOCK - place % BLOCK
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + HEAD : place + HEAD + size]
        place += HEAD + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def of_wandb(run: Path) -> list[tuple[str, Values]]:
    """The ids and values in the offline runs of a run folder, in their order."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted((run / "wandb").glob("offline-run-*/run-*.wandb")):
        values: Values = {}
        number = ""
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                number = record.run.run_id
            row = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json)
                   for i in record.history.item}  # fmt: skip
            step = row.pop("_step", record.history.step.num)
            values |= {(key, step): v for key, v in row.items() if not key.startswith("_")}
        found.append((number, values))
    return found


def tracked(folder: Path, tracker: str) -> Path:
    """A folder with a run that was stopped and resumed."""
    shell = Shell(folder)
    root = photos(shell.folder / SECRET, {"train": 8, "test": 8}, (8, 8))
    short = ["log_every=2", "threads=1", "batch_size=4", "epochs=9",
             "dataset=folder", "dataset.shape=[3,8,8]",
             "dataset.root=${oc.env:CANARY}"]  # fmt: skip
    commands = [
        ["train.py", *short, *OPTIONS[tracker], "max_steps=6", "hydra.run.dir=run"],
        ["train.py", "resume=run", "max_steps=10", "trust=true"],
    ]
    for done in one_after_another(shell, *commands, env={"CANARY": str(root)}):
        assert (done.returncode, done.stderr) == (0, ""), done
    return shell.folder


@pytest.fixture(scope="module")
def by_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracked(tmp_path_factory.mktemp("mlflow"), "mlflow")


@pytest.fixture(scope="module")
def by_wandb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracked(tmp_path_factory.mktemp("wandb"), "wandb")


@pytest.mark.slow
def test_mlflow_has_each_value_of_metrics_jsonl_once_though_the_run_was_resumed(by_mlflow):
    ((run, values, count),) = of_mlflow(by_mlflow / "outputs" / "mlflow.db")
    assert values == written(by_mlflow / "run")
    assert count == len(values)
    assert {step for key, step in values if key == "loss"} == {2, 4, 6, 8, 10}
    assert run.info.status == "FINISHED"
    assert run.data.params["optimizer.lr"] == "0.001"
    assert run.info.run_name == "run"
    assert run.data.params["dataset.root"] == "${oc.env:CANARY}"


@pytest.mark.slow
def test_wandb_has_each_value_of_metrics_jsonl_in_runs_of_one_id(by_wandb):
    (one, first), (other, second) = of_wandb(by_wandb / "run")
    assert one == other
    assert not first.keys() & second.keys()
    assert first | second == written(by_wandb / "run")
    assert {step for key, step in first | second if key == "loss"} == {2, 4, 6, 8, 10}


@pytest.mark.parametrize(
    ("tracker", "file"),
    [pytest.param("by_mlflow", "mlflow.db", marks=pytest.mark.slow), ("by_wandb", "*.wandb")],
)
def test_no_tracker_gets_the_value_of_an_environment_variable(request, tracker, file):
    folder: Path = request.getfixturevalue(tracker)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert list(folder.rglob(file))
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def a_run(folder: Path) -> Run:
    return Run(folder, 0, 0, 10, 8, {"seed": 0}, "accuracy")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


def closed(logger: Tracked) -> float:
    """Log, close; returns the seconds of both."""
    started = time.monotonic()
    for step in range(2000):
        logger.log(step, {"loss": 1.0, "examples_per_second": 2.0})
    logger.close(None)
    took = time.monotonic() - started
    logger.log(3000, {"loss": 1.0})  # to nobody
    logger.close(None)
    return took


class Odd:
    """A client that forks, as of a library, and whose error cannot be told."""

    def start(self) -> None:
        self.child = os.fork()

    def log(self, points: Sequence[Point]) -> None:
        raise Unsaid

    def finish(self, status: str) -> None: ...

    def abandon(self) -> None: ...


def test_an_error_that_does_not_say_what_it_is_is_a_warning_and_no_fork_goes_on(tmp_path, capfd):
    client = Odd()
    assert closed(Tracked(a_run(tmp_path), "mlflow", lambda about, wait: client, 2, False)) < 10
    told = "Unsaid: <str() of a Unsaid failed>; the run continues without it"
    assert f"warning: logger=mlflow: {told}\n" in capfd.readouterr().err
    assert poll_until(lambda: os.waitpid(client.child, os.WNOHANG)[0], 5)


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("tracker", "dead"),
    [
        ("mlflow", False),
        ("wandb", True),
        pytest.param("mlflow", True, marks=pytest.mark.slow),
        pytest.param("wandb", False, marks=pytest.mark.slow),
    ],
)
def test_a_dead_server_costs_seconds_and_warns(tmp_path, silent, capfd, monkeypatch, tracker, dead):
    address = nobody() if dead else silent
    if tracker == "mlflow":
        # The thread that is left behind would log its retries into what a later test captures.
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        logger = mlflow.logger(a_run(tmp_path), address, "ninefold", 2)
    else:
        monkeypatch.setenv("WANDB_BASE_URL", address)
        monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 3)
        logger = wandb.logger(a_run(tmp_path), "p", None, None, "online", 2)
    assert closed(logger) < 10  # it waits for 2 s, and without that for minutes
    # What else is in this process may log what urllib3 retries.
    lines = capfd.readouterr().err.splitlines()
    (line,) = (line for line in lines if line.startswith("warning: "))
    assert line.startswith(f"warning: logger={tracker}: ")
    assert line.endswith("; the run continues without it")
    assert "0123456789abcdef" not in line


ENDS = """
import sys
from pathlib import Path
from tests.extensions.trackers.test_trackers import a_run
from ninefold.extensions.trackers import mlflow, wandb
run = a_run(Path.cwd())
logger = (
    mlflow.logger(run, sys.argv[2], "ninefold", 2) if sys.argv[1] == "mlflow" else
    wandb.logger(run, "p", None, None, "online", 2)
)
logger.log(1, {"loss": 1.0})
logger.close(None)
print("closed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_process_ends_although_the_server_of_its_tracker_hangs(shell, silent, tracker):
    key = {"WANDB_BASE_URL": silent, "WANDB_API_KEY": "0123456789abcdef" * 3}
    process = shell.start("-c", ENDS, tracker, silent, env={"PYTHONPATH": str(ROOT), **key})
    assert process.stdout.readline() == "closed\n"
    process.communicate(timeout=20)  # wandb's own end waits for 90 s
    assert process.returncode == 0


@pytest.mark.slow
def test_after_a_crash_mlflow_has_each_step_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for first, steps in ((0, (2, 4, 6)), (4, (6, 8))):
        logger = mlflow.logger(replace(a_run(tmp_path), first_step=first), None, "ninefold", 2)
        for step in steps:
            logger.log(step, {"loss": step + first / 100})
        logger.close(Result("ok"))  # which waits longer than after a crash
    ((run, values, count),) = of_mlflow(tmp_path / "outputs" / "mlflow.db")
    assert values == {("loss", 2): 2, ("loss", 4): 4, ("loss", 6): 6, ("loss", 8): 8.04}
    assert count == 4
    assert run.info.status == "FINISHED"
