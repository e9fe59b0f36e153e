"""TensorBoard, started for real, serves what a run wrote."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from ninefold.logger import Run
from ninefold.logger.tensorboard import TensorBoard
from tests.conftest import Shell


def fetch(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_a_part_of_a_run_that_logs_nothing_leaves_the_final_metrics_as_they_are(
    tmp_path: Path,
) -> None:
    TensorBoard(Run(tmp_path, 8, 8, 8, 2, {"seed": 0})).close(None)
    assert len(list(tmp_path.glob("tensorboard/events.*"))) == 1  # hyper-parameters have their own


def test_tensorboard_serves_the_scalars_and_hyper_parameters_of_a_run(shell: Shell) -> None:
    assert shell.train("epochs=2", "log_every=10", "hydra.run.dir=run").returncode == 0
    server = shell.start(
        "-m", "tensorboard.main", "--logdir", "run/tensorboard", "--host", "127.0.0.1",
        "--port", "0", "--load_fast=false", stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        shown = ""
        while not (address := re.search(r"http://127\.0\.0\.1:\d+/", shown)):
            line = server.stdout.readline()
            assert line, shown
            shown += line
        url = address.group()
        tags = fetch(f"{url}data/plugin/scalars/tags")
        deadline = time.monotonic() + 30
        while not tags and time.monotonic() < deadline:
            time.sleep(0.2)
            tags = fetch(f"{url}data/plugin/scalars/tags")
        (run,) = tags
        assert {"train/loss", "train/lr", "test/accuracy", "test/loss"} <= set(tags[run])
        points = fetch(f"{url}data/plugin/scalars/scalars?run={run}&tag=test%2Faccuracy")
        assert [step for _, step, _ in points] == [22, 44]
        experiment = fetch(f"{url}data/plugin/hparams/experiment", {"experimentName": ""})
        names = {info["name"] for info in experiment["hparamInfos"]}
        assert {"seed", "batch_size", "optimizer.lr", "choices.parallel"} <= names
        metrics = {info["name"]["tag"] for info in experiment["metricInfos"]}
        assert "final/test_accuracy" in metrics
    finally:
        server.kill()
        server.communicate()
