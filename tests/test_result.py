"""result.json: reading and writing, atomicity, and the recorded environment."""

import json
import math
import os
import platform
import resource
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from ninefold.files import write_durably, write_json
from ninefold.machine import GPU_VARIABLES
from ninefold.measure.environment import environment
from ninefold.result import FILE, Result, option_name
from ninefold.score import by_present_keys
from tests.forks import exit_code, fork

FULL = Result(
    status="ok", parallel="ddp", amp="scaler", dataset="digits", model="convnet", seed=3,
    dtype="bfloat16", grad_scaler=True, processes=2, replicas=2, devices=["cpu", "cpu"], threads=2,
    batch_size=64, epochs=1.5, steps=33, skipped_steps=0, score=0.9, best_score=0.95,
    test_loss=0.25, test_count=360, train_seconds=1.5, total_seconds=2.5, epoch_seconds=[1.0, 0.5],
    examples_per_second=1408.0, phase_seconds={"data": 0.1}, peak_memory_bytes=[1, 2],
    notes=["Größe: 8×8\nand a second line"], environment={"torch": "2.15", "driver": None},
)  # fmt: skip


def test_a_result_is_read_as_it_was_written(tmp_path):
    FULL.write(tmp_path)
    assert Result.read(tmp_path) == FULL


def test_a_run_of_the_users_classes_has_their_names_unless_an_option_of_hers_has_one():
    items = {"dataset": {"train": {"_target_": "mine.Photos", "path": "A"}}}
    net = {"model": {"net": {"_target_": "mine.Net"}}}
    assert option_name("dataset", {"dataset": "mapped"}, items) == "Photos"
    assert option_name("dataset", {"dataset": "photos_of_cats"}, items) == "photos_of_cats"
    assert option_name("dataset", {"dataset": "hf"}, {"dataset": {"train": "train"}}) == "hf"
    assert option_name("model", {"model": None}, net) == "Net"
    assert option_name("model", {"model": "convnet"}, net) == "convnet"


def test_unknown_values_are_null(tmp_path):
    Result(status="failed", error="error: ...").write(tmp_path)
    found = json.loads((tmp_path / FILE).read_text())
    assert found["score"] is None
    assert Result.read(tmp_path) == Result(status="failed", error="error: ...")


def test_former_names_are_read_as_those_of_today():
    said = {"status": "ok", "accuracy": 54.0, "best_accuracy": 53.0, "score": "RMSE"}
    found = Result.of({**said, "images_per_second": 9.0})
    assert (found.score, found.best_score, found.score_name) == (54.0, 53.0, "RMSE")
    assert found.examples_per_second == 9.0
    assert Result.of({"status": "ok", "version": 2, "score": 0.9, "accuracy": 0.1}).score == 0.9
    lines = by_present_keys({"test_accuracy": 0.5, "loss": 1.0})
    assert lines == {"test_score": 0.5, "loss": 1.0}


def test_keys_of_another_version_are_ignored(tmp_path):
    FULL.write(tmp_path)
    found = json.loads((tmp_path / FILE).read_text())
    del found["notes"]
    (tmp_path / FILE).write_text(json.dumps({**found, "invented_later": 1}))
    read = Result.read(tmp_path)
    assert (read.status, read.steps, read.notes) == ("ok", 33, [])


@pytest.mark.parametrize("text", [None, "", '{"status": "ok"', "{}", "[]", "null"])
def test_a_folder_without_a_valid_result_raises_the_documented_error(tmp_path, text):
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises((OSError, ValueError)):
        Result.read(tmp_path)


def test_a_crash_while_writing_leaves_the_old_file_whole(tmp_path):
    write_json(tmp_path / FILE, {"old": True})

    def die() -> None:  # SIGXFSZ kills it in the middle of the file
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        write_durably(tmp_path / FILE, bytes(2**20))

    assert exit_code(fork(die)) == -signal.SIGXFSZ
    assert json.loads((tmp_path / FILE).read_text()) == {"old": True}
    write_json(tmp_path / FILE, {"new": True})  # what it left is in nobody's way
    assert os.listdir(tmp_path) == [FILE]
    assert json.loads((tmp_path / FILE).read_text()) == {"new": True}


def test_the_environment_has_versions_machine_commit_and_time():
    found = environment()
    assert {
        "versions", "platform", "driver", "commit", "dirty", "hostname", "cpu", "cores", "time",
    } <= set(found)  # fmt: skip
    versions = found["versions"]
    assert {"torchvision", "hydra-core", "omegaconf", "ninefold", "cuda"} <= set(versions)
    assert versions["torch"] == torch.__version__
    assert versions["numpy"] == np.__version__
    assert versions["python"] == platform.python_version()
    assert found["hostname"] == platform.node()
    assert found["cpu"]
    assert found["cores"] >= 1
    age = datetime.now(UTC) - datetime.fromisoformat(found["time"])
    assert timedelta() <= age < timedelta(minutes=1)
    assert json.loads(json.dumps(found)) == found


def test_the_environment_has_what_changes_the_speed_of_a_gpu_and_no_other_variable(monkeypatch):
    for name in GPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert (environment()["variables"], environment()["power_limits"]) == ({}, None)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "of the host")
    monkeypatch.setattr("ninefold.measure.environment.power_limit", [math.nan, 699.6].__getitem__)
    found = environment(2, [0, 1])
    assert (found["variables"], found["power_limits"]) == ({"CUDA_LAUNCH_BLOCKING": "1"}, [700])


def test_the_commit_is_that_of_the_checkout_from_any_working_directory(tmp_path, monkeypatch):
    root = Path(__file__).parents[1]
    git = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    expected = git.stdout.strip() if git.returncode == 0 else None
    monkeypatch.chdir(tmp_path)
    found = environment()
    assert found["commit"] == expected
    assert found["dirty"] is None if expected is None else isinstance(found["dirty"], bool)
