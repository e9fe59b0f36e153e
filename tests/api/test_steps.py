"""`ninefold.time_steps`: what it takes, raises and says."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import ninefold
from ninefold.answer.facts import facts_of
from ninefold.answer.times import times
from ninefold.api.session import Session, in_use
from ninefold.api.steps import take_turns
from ninefold.errors import ConfigError
from ninefold.stats.verdicts import Settings
from ninefold.tournament.taken import TurnLog
from tests.conftest import ROOT

SHORT: dict[str, Any] = {"minutes": 0.01, "show": False}


def nothing() -> None:
    pass


def test_each_step_computes_with_the_threads_that_it_has_set_and_no_other_step_with_them() -> None:
    threads, seen = torch.get_num_threads(), {"sets": set[int](), "as it is": set[int]()}

    def sets() -> None:
        if not seen["sets"]:
            torch.set_num_threads(threads + 1)
        seen["sets"].add(torch.get_num_threads())

    def as_it_is() -> None:
        seen["as it is"].add(torch.get_num_threads())

    ninefold.time_steps({"sets": sets, "as it is": as_it_is}, **SHORT)
    assert seen == {"sets": {threads + 1}, "as it is": {threads}}
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("error", [KeyError("mine"), StopIteration("no batch is left")])
def test_what_a_step_raises_is_raised_with_its_name(error: Exception) -> None:
    calls = list[None]()

    def fails() -> None:
        calls.append(None)
        if len(calls) > 5:
            raise error

    with pytest.raises(type(error)) as raised:
        ninefold.time_steps({"works": nothing, "fails": fails}, **SHORT)
    assert raised.value is error
    assert error.__notes__ == ["ninefold.time_steps: in the step 'fails'"]  # type: ignore[attr-defined]


def in_autocast() -> Generator[None, None, None]:
    with torch.autocast("cpu", torch.bfloat16):
        while True:
            yield


def without_gradients() -> None:
    torch.set_grad_enabled(False)


def by_the_plain_kernel() -> Generator[None, None, None]:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        while True:
            yield


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (in_autocast(), "torch.autocast"),
        (without_gradients, "torch.set_grad_enabled"),
        (by_the_plain_kernel(), "torch.nn.attention.sdpa_kernel"),
    ],
)
def test_a_step_that_leaves_settings_changed_for_the_other_steps_is_refused(step, name) -> None:
    try:
        with pytest.raises(
            ConfigError, match=rf"^error: steps\['odd'\]={name}: the step leaves it"
        ):
            ninefold.time_steps({"odd": step, "plain": nothing}, **SHORT)
    finally:
        torch.set_grad_enabled(True)
        if isinstance(step, Generator):
            step.close()


def ends() -> Generator[None, None, None]:
    yield
    yield


def endless() -> Generator[None, None, None]:
    while True:
        yield


async def later() -> None:
    pass


async def in_turns() -> AsyncGenerator[None, None]:
    yield


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"steps": [nothing, nothing]}, "error: steps=list: it is no mapping"),
        ({"steps": {"a": nothing}}, "error: steps=a: there is nothing to compare it with"),
        ({"steps": {"a": nothing, 2: nothing}}, "error: steps=2: it is no name"),
        ({"steps": {"a": nothing, "b": [nothing]}}, "error: steps['b']=list: it cannot be called"),
        ({"steps": {"a": nothing, "b": ends()}}, "error: steps['b']=generator: it has ended"),
        ({"steps": {"a": nothing, "b": endless}}, "error: steps['b']=generator: calling it takes"),
        ({"steps": {"a": nothing, "b": lambda: endless()}}, "error: steps['b']=generator: calling"),
        ({"steps": {"a": nothing, "b": later}}, "error: steps['b']=coroutine: calling"),
        ({"steps": {"a": nothing, "b": in_turns}}, "error: steps['b']=async_generator: calling"),
        ({"minutes": 0}, "error: minutes=0: it cannot be that; a number above 0"),
        ({"minutes": float("nan")}, "error: minutes=nan"),
        ({"minutes": "1"}, "error: minutes='1'"),
        ({"minutes": 10**400}, "error: minutes=10"),
        ({"turn": 10**5000}, "error: turn=<str() of a int failed>: it cannot be that"),
        ({"same": 1}, "error: same=1: it cannot be that; a number above 0 and below 1"),
        ({"baseline": "c"}, "error: baseline=c: there is no such step; there are a, b"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ninefold.time_steps(**{"steps": {"a": nothing, "b": nothing}, **SHORT, **given})
    assert str(raised.value).startswith(line)
    assert str(raised.value).count(";") >= 2
    assert "\n" not in str(raised.value)


def test_one_of_several_processes_is_refused() -> None:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(ConfigError, match=r"^error: processes=2: .* with ninefold bench$"):
            ninefold.time_steps({"a": nothing, "b": nothing}, **SHORT)
    finally:
        distributed.destroy_process_group()


class Accelerator:
    """Two devices that run what is queued for them only when they are waited for."""

    def __init__(self) -> None:
        self.queued = [0.0, 0.0]
        self.now = 0.0
        self.waits = self.launches = 0
        self.used = {0}

    def is_available(self) -> bool:
        return True

    def current_accelerator(self) -> str:
        return "cpu"  # torch.cpu, which has been initialized

    def current_device_index(self) -> int:
        return 0

    def device_count(self) -> int:
        return 3

    def memory_reserved(self, number: int) -> int:
        self.now += 1e-3
        return int(number in self.used)

    def synchronize(self, number: int) -> None:
        self.waits += 1
        self.now += self.queued[number]
        self.queued[number] = 0.0

    def launch(self, number: int, seconds: float) -> None:
        self.launches += 1
        self.used.add(number)
        self.queued[number] += seconds * random.uniform(0.99, 1.01)
        self.now += 1e-5


def test_steps_that_only_queue_work_are_timed_with_it_and_waited_for_at_the_ends_of_turns() -> None:
    fake = Accelerator()
    session = Session(
        ["one", "other"], minutes=0.5, turn=0.04, settings=SETTINGS, show=False,
        clock=lambda: fake.now, accelerator=fake,
    )  # fmt: skip
    take_turns(
        session, {"one": lambda: fake.launch(0, 0.01), "other": lambda: fake.launch(1, 0.02)}
    )
    found = session.times()
    # As if none were asked for anything: that takes a millisecond for each of two.
    assert found.seconds == pytest.approx({"one": 0.01, "other": 0.02}, rel=0.01)
    assert [pair.verdict for pair in found.pairs] == ["slower"]
    assert fake.waits < fake.launches  # two devices, twice in a turn
    assert found.decided


def test_an_accelerator_that_nothing_has_used_is_left_alone() -> None:
    fake = Accelerator()
    fake.used.clear()
    assert in_use(fake) == [0]
    fake.launch(1, 0.0)
    assert in_use(fake) == [1]
    fake.launch(0, 0.0)
    assert in_use(fake) == [0, 1]


SETTINGS = Settings()


def found(
    slower: float, noise: float = 0.001, busy: float = 0.0, late: int = 0, rounds: int = 6
) -> ninefold.Times:
    """What is told of two steps. busy: others' share in the turns of the first `late` rounds."""
    draw, log = np.random.default_rng(0), TurnLog()
    for number in range(rounds):
        for name, each in {"<a>": 1.0, "b": slower}.items():
            seconds = each * float(np.exp(noise * draw.standard_normal()))
            others = busy if number < late else 0.0
            log.add(name, number, seconds=seconds, steps=1, others=others)
    return told(("<a>", "b"), log, SETTINGS)


def told(names: Sequence[str], log: TurnLog, settings: Settings) -> ninefold.Times:
    """What is told after one look."""
    rounds = 1 + max((turn.round for turn in log.turns), default=-1)
    return times(facts_of(names, log.turns, {}, rounds, settings))


def test_the_sentence_claims_what_was_shown_and_always_says_in_this_process() -> None:
    assert found(1.5).sentence.startswith("In this process b is slower than <a>: 0.667 times as")
    assert found(0.5).sentence.startswith("In this process b is 2.000 times as fast as <a> (95 %")
    assert found(1.0).sentence.startswith("In this process b and <a> are equally fast within 2 % (")
    open_ = found(1.1, noise=0.2)
    assert open_.sentence.startswith("Not decided in this process: b may be up to 28 % slower or")
    assert not open_.decided
    assert open_.best == "<a>"
    assert 0.5 < open_.chance < 0.98
    none = found(1.0, rounds=0)
    assert (none.best, none.decided) == (None, False)
    assert none.sentence.startswith("Not decided in this process: 0 rounds are complete")
    beside = found(1.5, busy=0.31, late=6).caveats
    assert "under load: other programs used 31 % of the CPU, in most turns" in beside[0]
    bursts = found(1.5, busy=0.31, late=2).caveats
    assert "33 % of the turns were disturbed and left out." in bursts[0]
    assert not found(1.5, busy=0.04, late=6).caveats
    without = ninefold.time_steps({"a": nothing, "b": nothing}, **SHORT)
    assert "in this process" in without.sentence.lower()


def test_a_baseline_that_is_as_fast_is_named() -> None:
    log = TurnLog()
    for number in range(6):
        log.add("a", number, seconds=1.0 + number / 1e4, steps=1)
        log.add("b", number, seconds=1.001, steps=1)
    for baseline in ("a", "b"):
        settings = Settings(baseline=baseline)
        assert told(("a", "b"), log, settings).best == baseline


def test_all_are_told_against_the_first_or_the_baseline_and_above_1_is_faster() -> None:
    draw, log = np.random.default_rng(0), TurnLog()
    for number in range(6):
        for name, seconds in {"a": 2.0, "b": 1.0, "c": 4.0}.items():
            log.add(name, number, seconds=seconds * draw.uniform(0.999, 1.001), steps=1)
    for baseline, speedups in ((None, {"b": 2.0, "c": 0.5}), ("c", {"a": 2.0, "b": 4.0})):
        settings = Settings(baseline=baseline)
        of = told(("a", "b", "c"), log, settings)
        found = {pair.second: pair.speedup for pair in of.against_baseline}
        assert found == pytest.approx(speedups, rel=0.01)
        assert of.best == "b"
        assert of.sentence.startswith("In this process b is the fastest, ")
        assert of.cells(baseline or "a") == ("1", "", "baseline")


def test_each_step_is_in_the_table_as_no_file_has_the_others() -> None:
    log = TurnLog()
    for number in range(3):
        for name in "abcdefgh":
            log.add(name, number, seconds=1.0 + number / 100, steps=1)
    lines = repr(told([*"abcdefgh"], log, Settings())).splitlines()
    assert {line[0] for line in lines if line[1:3] == "  "} == {*"abcdefgh"}


def test_times_are_shown_as_text_html_and_rows() -> None:
    of = found(1.5)
    assert "b     1500" in repr(of)
    assert "slower" in repr(of)
    assert ">&lt;a&gt;</td>" in of._repr_html_()
    assert "<a>" not in of._repr_html_()
    timed = ninefold.time_steps({"a": nothing, "b": nothing}, **SHORT)
    rows = timed.rows()
    assert list(rows[0]) == [
        *("step", "round", "turn", "order", "seconds", "steps", "begin", "end", "others"),
        "left_out",
    ]
    assert [row["order"] for row in rows] == list(range(len(rows)))


WITHOUT_POSIX = """
import os, sys, torch, tqdm
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "sched_getaffinity", "getuid", "geteuid", "sysconf", "setpgid"):
    delattr(os, name)
import signal
for name in ("SIGUSR1", "SIGHUP", "SIGQUIT"):
    delattr(signal, name)
del os.register_at_fork
import ninefold
assert [name for name in sys.modules if name.startswith("ninefold.")] == []
found = ninefold.time_steps({"a": lambda: None, "b": lambda: None}, minutes=0.01)
assert found.busy is None
for name in ("hydra", "omegaconf", "pandas", "ninefold.report", "ninefold.exits"):
    assert name not in sys.modules, name
"""


@pytest.mark.slow
def test_it_runs_without_fork_and_proc_and_importing_ninefold_imports_next_to_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "this process" in done.stdout
