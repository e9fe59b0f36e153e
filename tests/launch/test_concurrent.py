"""Runs that another launcher makes at the same time: each process has its GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ninefold.config.options import takes_one_gpu
from ninefold.launch import concurrent
from ninefold.launch.concurrent import gpus_shown, show_one_gpu
from tests.conftest import ROOT, Shell

SEAT = "from ninefold.launch.concurrent import seat; print(seat(), seat())"
ANNOUNCE = (
    "import subprocess, sys\n"
    "from ninefold.launch import concurrent\n"
    "concurrent.announce(1.0)\n"
    f"command = [sys.executable, '-c', {SEAT!r}]\n"
    "each = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]\n"
    "print(sorted(one.communicate()[0] for one in each))\n"
)


def python(code: str, **env: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={**os.environ, **env}, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_each_process_of_a_sweep_has_a_seat_of_its_own_and_keeps_it() -> None:
    assert python(ANNOUNCE) == "['0 0\\n', '1 1\\n', '2 2\\n', '3 3\\n']\n"


def test_a_process_of_no_sweep_has_no_seat() -> None:
    assert python(SEAT, **{concurrent.VARIABLE: "/nowhere"}) == "None None\n"


@pytest.mark.parametrize(
    ("variable", "count", "shown"),
    [
        (None, 3, ["0", "1", "2"]),
        ("2,3", 2, ["2", "3"]),
        ("GPU-a1, GPU-b2", 2, ["GPU-a1", "GPU-b2"]),
        ("1,9,2", 1, ["1"]),  # CUDA goes no further than to the first that is not there
        ("", 0, []),
        (None, 0, []),
    ],
)
def test_gpus_have_the_names_that_the_process_was_started_with(
    variable: str | None, count: int, shown: list[str]
) -> None:
    assert gpus_shown(variable, count) == shown


@pytest.mark.parametrize(("seat", "shown"), [(0, "4"), (1, "6"), (2, "4"), (5, "6")])
def test_seats_go_around_the_gpus(monkeypatch: pytest.MonkeyPatch, seat: int, shown: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr("ninefold.machine.gpu_count", lambda: 2)
    show_one_gpu(seat)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == shown


def test_a_process_without_several_gpus_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr("ninefold.machine.gpu_count", lambda: 1)
    show_one_gpu(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


SINGLE = "ninefold.parallel.none.Single"


@pytest.mark.parametrize(
    ("target", "device", "one"),
    [
        (SINGLE, "auto", True),
        (SINGLE, "cuda", True),
        (SINGLE, "cuda:1", False),  # it was named
        (SINGLE, "cpu", False),
        ("ninefold.parallel.dp.DP", "auto", False),
        ("mine.Pipeline", "auto", False),  # it may use several
        ("mine.Alone", "auto", True),  # it says so
    ],
)
def test_only_runs_that_use_one_gpu_and_name_none_are_shown_one(
    target: str, device: str, one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(
        "class Pipeline: pass\nclass Alone:\n    one_device: ClassVar[bool] = True\n"
    )
    job: dict[str, Any] = {"parallel": {"_target_": target}, "device": device}
    assert takes_one_gpu(job) is one


MODEL = """
import json
import os
import signal
from torch import nn
def net(**options):
    with open(os.environ["SEEN"], "a") as file:
        file.write(os.environ["CUDA_VISIBLE_DEVICES"] + os.environ["NCCL_SOCKET_IFNAME"] + "\\n")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.slow
def test_runs_of_joblib_are_told_their_gpus_and_keep_nccl_on_this_host(shell: Shell) -> None:
    """With two GPUs made up where there is none: what the runs are told has no effect."""
    (shell.folder / "mine.py").write_text(MODEL)
    (shell.folder / "sitecustomize.py").write_text(
        "import ninefold.launch.concurrent as c\n"
        "c.gpus_shown = lambda variable, count: ['0', '1']\n"
    )
    seen = shell.folder / "seen"
    done = shell.train(
        "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1,2,3", "max_steps=2",
        "model.net._target_=mine.net", "logger=quiet", "clock.warmup=0", "hydra.sweep.dir=sweep",
        env={"PYTHONPATH": os.pathsep.join([str(shell.folder), str(ROOT)]), "SEEN": str(seen)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(seen.read_text().split()) == {"0lo", "1lo"}


REGISTERED = (
    "import signal, sys, time\n"
    "from ninefold.launch import concurrent\n"
    "def stopped(number, frame):\n"
    "    raise KeyboardInterrupt\n"
    "signal.signal(signal.SIGTERM, stopped)\n"
    "try:\n"
    "    with concurrent.registered():\n"
    "        print('runs', flush=True)\n"
    "        time.sleep(30)\n"
    "except KeyboardInterrupt:\n"
    "    print('stopped')\n"
    "except SystemExit as leaving:\n"
    "    print('exits with', leaving.code)\n"
)


def test_a_run_is_stopped_wherever_it_is_without_its_process_number(tmp_path: Path) -> None:
    sweep = concurrent.Announced(tmp_path, 0.5)
    (tmp_path / concurrent.FILE).write_text(json.dumps([None, None, 0.5, True]))
    env = {**os.environ, concurrent.VARIABLE: str(tmp_path)}
    command = [sys.executable, "-c", REGISTERED]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    assert not any(str(process.pid) in path.name for path in tmp_path.iterdir())
    assert sweep.stop(signal.SIGINT) == 1
    assert process.communicate()[0] == "stopped\n"
    late = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=True)
    assert late.stdout == "exits with 130\n"  # one that begins later, as a job from a queue


def test_the_folder_in_which_runs_of_other_hosts_register_is_in_that_of_the_sweep(
    tmp_path: Path,
) -> None:
    announce = (
        "from pathlib import Path\n"
        "from ninefold.launch import concurrent\n"
        f"concurrent.announce(1.0, Path({str(tmp_path)!r}))\n"
        "print(concurrent.announced().mailbox.parent)\n"
    )
    assert python(announce).strip() == str(tmp_path)
    assert not list(tmp_path.iterdir())
    python(announce + "concurrent.announced().stop(2)\n")
    (left,) = tmp_path.iterdir()  # for jobs that are still in a queue
    assert (left / "stop").read_text() == "2"
