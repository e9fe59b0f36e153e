"""The forkserver dies with its launcher, whenever that is killed."""

import pytest

from ninefold.launch.forkserver import preloadable
from tests.conftest import ROOT, Shell, wait_until

# Python imports it before anything else: the forkserver takes a while to begin.
LATE = """
import sys, time
if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    open("begun", "w").close()
    time.sleep(2)
"""
SLOW = "import time; open('imported', 'w').close(); time.sleep(60)"
LAUNCHER = """
import time
from ninefold.launch import forkserver
forkserver.start({"task": {"_target_": "slow.Task"}})
time.sleep(60)
"""


def test_a_launcher_that_is_killed_before_its_forkserver_begins_leaves_none(shell):
    (shell.folder / "sitecustomize.py").write_text(LATE)
    (shell.folder / "slow.py").write_text(SLOW)
    path = f"{shell.folder}:{ROOT}"
    process = shell.start("-c", LAUNCHER, env={"PYTHONPATH": path})
    wait_until((shell.folder / "begun").exists, process)
    shell.kill(process)
    assert not (shell.folder / "imported").exists(), "it went on without its launcher"


RESTARTED = """
import multiprocessing, os, signal, time
from multiprocessing import forkserver as server
from ninefold.launch import forkserver
def worker():
    import fine
    print("the worker runs")
def run():
    process = multiprocessing.get_context("forkserver").Process(target=worker)
    process.start()
    process.join()
if __name__ == "__main__":
    names = ("divides", "exits", "misses", "fine")
    forkserver.start({name: {"_target_": f"{name}.Own"} for name in names})
    run()
    print("it is killed", flush=True)
    os.kill(server._forkserver._forkserver_pid, signal.SIGKILL)
    time.sleep(1)  # it is dead by then
    run()
"""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str], list[str]]:
    """What goes to stderr; what a worker printed before its forkserver was killed, and one after.

    Of the modules that the forkserver is to import three cannot be.
    """
    shell = Shell(tmp_path_factory.mktemp("restarted"))
    (shell.folder / "divides.py").write_text("1 / 0")
    (shell.folder / "exits.py").write_text("raise SystemExit(3)")
    (shell.folder / "misses.py").write_text("import nowhere")
    (shell.folder / "fine.py").write_text("print('imported', flush=True)")
    (shell.folder / "start.py").write_text(RESTARTED)
    done = shell.run("start.py", forked=True, env={"PYTHONPATH": f"{ROOT}:{shell.folder}"}, code=0)
    before, after = done.stdout.split("it is killed")
    return done.stderr, before.splitlines(), after.splitlines()


def test_a_module_that_cannot_be_imported_is_left_to_who_needs_it(restarted):
    stderr, before, _ = restarted
    assert (stderr, sorted(before)) == ("", ["imported", "the worker runs"])


def test_workers_can_be_started_again_after_the_forkserver_was_killed(restarted):
    assert "the worker runs" in restarted[2]


ASKS = 'import torch\nDEVICE = "cuda" if torch.cuda.is_available() else "cpu"\n'
FORKED = """
import multiprocessing, os, sys
os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # torch asks no driver where all are hidden
from ninefold.launch import forkserver
def worker():
    import asks, torch, torchvision.models
    print(torch.cuda._is_in_bad_fork(), "torch._dynamo" in sys.modules)
if __name__ == "__main__":
    forkserver.gpu_driver = lambda: True  # as a host with GPUs
    forkserver.start({"model": {"_target_": "asks.Net"}, "net": {"_target_": "ninefold.x.Y"}})
    process = multiprocessing.get_context("forkserver").Process(target=worker)
    process.start()
    process.join()
"""


@pytest.mark.slow
def test_workers_can_use_cuda_though_a_users_module_asks_for_it_while_it_is_imported(shell):
    (shell.folder / "asks.py").write_text(ASKS)
    (shell.folder / "forked.py").write_text(FORKED)
    path = f"{shell.folder}:{ROOT}"
    done = shell.run("forked.py", env={"PYTHONPATH": path})
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_users_modules_are_imported_before_workers_are_forked_where_there_is_no_gpu():
    targets = ["asks", "ninefold.model.unet", "torchvision.models"]
    assert set(targets) <= set(preloadable(targets, gpus=False))
    assert "asks" not in preloadable(targets, gpus=True)


ASKED = """
import os
from torch import nn
def net(**options):
    print("NVML" in " ".join(os.environ), flush=True)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_a_worker_does_not_load_nvml_each_time_that_torch_asks_for_a_gpu(shell):
    """As Adam does in each step; only the forkserver needs torch to ask NVML in place of CUDA."""
    (shell.folder / "mine.py").write_text(ASKED)
    done = shell.train(
        "model.net._target_=mine.net", "max_steps=1", "logger=quiet",
        env={"PYTHONPATH": f"{shell.folder}:{ROOT}"}, code=0,
    )  # fmt: skip
    assert "False" in done.stdout.split()
    assert "True" not in done.stdout.split()
