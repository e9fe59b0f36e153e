"""A signal to one process stops all of a run after the same step."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ninefold.stop import Stop


def test_a_process_alone_stops_after_the_step_it_is_in() -> None:
    stop = Stop()
    assert not stop.due(4)
    stop.signal = signal.SIGTERM
    assert stop.due(5)


def test_processes_that_share_a_notice_stop_after_the_same_step(tmp_path: Path) -> None:
    told, other = (Stop(tmp_path / "notice", alone=False) for _ in range(2))
    assert not other.due(5)  # it is ahead by a look, as it may be
    told.signal = signal.SIGTERM
    assert not told.due(5), "the other may have begun the sixth step, which needs this one"
    assert told.wanted
    assert other.wanted
    assert told.due(6)
    assert other.due(6)


def test_processes_that_are_told_at_once_agree_as_well(tmp_path: Path) -> None:
    both = [Stop(tmp_path / "notice", alone=False) for _ in range(2)]
    for stop in both:
        stop.signal = signal.SIGINT
    assert [stop.due(5) for stop in both] == [False, False]
    assert [stop.due(6) for stop in both] == [True, True]


def test_processes_on_several_hosts_do_not_decide_between_log_points() -> None:
    stop = Stop(None, alone=False)
    stop.signal = signal.SIGTERM
    assert not stop.due(5)
    assert stop.wanted  # which evaluations and log points ask


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_the_first_signal_is_kept_and_the_handlers_are_put_back(number: int) -> None:
    before = signal.getsignal(number)
    stop = Stop()
    with stop.listening(60, inline=True):
        os.kill(os.getpid(), number)
        deadline = time.monotonic() + 10
        while not stop.signal and time.monotonic() < deadline:
            time.sleep(0.001)
    assert stop.signal == number
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_in_the_launchers_own_process_interrupts_at_once() -> None:
    stop = Stop()
    with stop.listening(60, inline=True):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with stop.listening(60, inline=True):
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.05)
        assert not stop.signal
    finally:
        signal.signal(signal.SIGHUP, before)
