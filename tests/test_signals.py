"""A signal to one process stops all of a run after the same step."""

import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from ninefold.config.spec import RunSpec
from ninefold.engine.parallel import RankContext
from ninefold.errors import Failure, Interrupted
from ninefold.signals import Stop
from ninefold.train import build
from ninefold.train import run as train_run
from ninefold.waits import poll_until
from tests.conftest import ROOT


def told(number: int) -> Failure:
    return Interrupted("signal", number, "", "", "")


def test_a_process_that_ends_ignores_signals_also_after_what_handled_them():
    code = (
        "import os, signal\n"
        "from ninefold import signals\n"
        "with signals.handled(lambda number, first: None):\n"
        "    signals.ignore()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('said why')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "said why\n")


def test_processes_that_share_a_notice_stop_after_the_same_step(tmp_path):
    told, other = (Stop(tmp_path / "notice", alone=False) for _ in range(2))
    assert not other.due(5)  # it is ahead by a look, as it may be
    told.signal = signal.SIGTERM
    assert not told.due(5), "the other may have begun the sixth step, which needs this one"
    assert (tmp_path / "notice").read_bytes() == struct.pack("=q", 6)
    assert told.wanted
    assert other.wanted
    assert told.due(6)
    assert other.due(6)


def test_processes_of_several_hosts_or_gpus_do_not_decide_between_log_points(tmp_path):
    ahead, behind = (Stop(tmp_path / "notice", alone=False) for _ in range(2))
    for stop in (ahead, behind):
        stop.only_at_log_points()
    assert not any(ahead.due(step) for step in (5, 6, 7))  # they are queued
    for stop in (behind, Stop(None, alone=False)):  # on GPUs, and of several hosts
        stop.signal = signal.SIGTERM
        assert not any(stop.due(step) for step in (5, 6, 7, 8))
        assert stop.wanted  # which evaluations and log points ask
    assert not ahead.due(8)
    alone = Stop()
    alone.only_at_log_points()
    alone.signal = signal.SIGTERM
    assert alone.due(5)


@pytest.mark.parametrize(("device", "last"), [("cpu", [6]), ("cuda", [])])
def test_only_processes_on_gpus_leave_a_stop_to_log_points(tmp_path, monkeypatch, device, last):
    """The run gets no further here than to where it knows its device."""

    class Here(Exception):
        pass

    def reached(*arguments: Any, **options: Any) -> NoReturn:
        raise Here

    run = SimpleNamespace(context=RankContext(0, 2, torch.device(device, 0)))
    monkeypatch.setattr(build, "running", lambda *arguments, **options: nullcontext(run))
    monkeypatch.setattr(train_run, "facts", reached)
    stop = Stop(tmp_path / "notice", alone=False)
    with pytest.raises(Here):
        train_run.train(RunSpec("train", "threads: 1", tmp_path, started=0.0), stop)
    stop.signal = signal.SIGTERM
    assert [step for step in (5, 6) if stop.due(step)] == last


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_the_first_signal_is_kept_and_the_handlers_are_put_back(number):
    before = signal.getsignal(number)
    stop = Stop()
    with stop.listening(60, told, inline=True):
        os.kill(os.getpid(), number)
        poll_until(lambda: stop.signal, 10, interval=0.001)
    assert stop.signal == number
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_in_the_launchers_own_process_interrupts_at_once():
    stop = Stop()
    with stop.listening(60, told, inline=True):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


AT_ONCE = """
import os, signal, sys
from ninefold import exits, signals

def two(frame, event, arg):  # another one comes as soon as the first one's handler is called
    if event == "call" and frame.f_code.co_name == "{called}":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)

try:
    with exits.interruptible():
        sys.setprofile(two)
        os.kill(os.getpid(), signal.SIGTERM)
        print("lost")
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("called", ["receive", "interrupt"])
def test_of_two_signals_that_come_at_once_one_interrupts_the_command(called):
    source = AT_ONCE.format(called=called)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with stop.listening(60, told, inline=True):
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.05)
        assert not stop.signal
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_whose_parent_died_before_it_could_follow_it_ends_at_once():
    code = "import os; from ninefold.signals import follow_parent; follow_parent({}); print('on')"
    for parent, end in (("os.getppid()", 0), ("1 << 22", -signal.SIGKILL)):
        done = subprocess.run([sys.executable, "-c", code.format(parent)], cwd=ROOT)
        assert done.returncode == end
