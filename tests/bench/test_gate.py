"""The gate: what an interval shows, in words and as an exit code, and how long it would take."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError

import pytest

from ninefold.answer.needed import rounds_for_side
from ninefold.answer.words import interval
from ninefold.bench import gate
from ninefold.bench.measurements import Options
from ninefold.bench.options import joined, share
from ninefold.bench.summary import Summary
from ninefold.errors import Failure, Slower, Undecided
from ninefold.stats.verdicts import OPEN, Pair, Settings
from tests.answer.screens import found


def pair(speedup: float, low: float | None, high: float | None, rounds: int = 14) -> Pair:
    return Pair("main", "HEAD", rounds, speedup, low, high, None, None, OPEN)


def time_gate(pair: Pair) -> gate.Gate:
    return gate.Gate(gate.TIME, pair, 0.03)


def failure_of(pair: Pair, minutes: float, made: int) -> Failure | None:
    return gate.failure(time_gate(pair), "what is known", minutes, made)


@pytest.mark.parametrize(
    ("found", "verdict", "code", "said"),
    [
        (pair(1.004, 0.991, 1.017), gate.PASSES, None, "passes: HEAD is not 3 % slower than main"),
        (pair(1.25, 1.24, 1.26), gate.PASSES, None, "passes: HEAD is not 3 % slower than main"),
        (pair(0.98, 0.975, 0.985), gate.PASSES, None, "passes: HEAD is not 3 % slower than main"),
        (pair(0.925, 0.9, 0.95), gate.FAILS, 8, "fails: HEAD is more than 3 % slower than main"),
        (
            pair(0.988, 0.938, 1.022),
            gate.UNDECIDED,
            9,
            "undecided: HEAD may be up to 7 % slower or 3 % faster than main, and 3 % slower is "
            "allowed",
        ),
        (
            pair(0.8, None, None, rounds=1),
            gate.UNDECIDED,
            9,
            "undecided: how HEAD compares with main is not known yet, and 3 % slower is allowed",
        ),
    ],
)
def test_the_gate_passes_below_what_is_allowed_fails_above_and_is_else_undecided(
    found: Pair, verdict: str, code: int | None, said: str
) -> None:
    asked = time_gate(found)
    assert asked.verdict == verdict
    sure = f"({found.speedup:.3f}; 95 % interval {interval(found)})"
    assert gate.clause(asked, Settings()) == f"{said.partition(': ')[2]} {sure}"
    failure = gate.failure(asked, said, minutes=2, made=14)
    assert (failure and failure.code) == code


def test_an_error_says_what_is_allowed_and_what_would_decide() -> None:
    slower = failure_of(pair(0.925, 0.9, 0.951), minutes=2, made=14)
    assert isinstance(slower, Slower)
    assert str(slower) == (
        "error: max-slowdown=3%: what is known; at least 0.971 is allowed; see what changed, or "
        "allow more"
    )
    undecided = failure_of(pair(1.0, 0.967, 1.034), minutes=3, made=14)
    assert isinstance(undecided, Undecided)
    rounds = rounds_for_side(pair(1.0, 0.967, 1.034), 1 / 1.03, made=14)
    assert rounds is not None
    assert str(undecided) == (
        "error: max-slowdown=3%: not decided after 14 rounds; what is known; "
        f"--minutes {math.ceil(3 * rounds / 14)}, a quieter runner, or more to be allowed"
    )
    # A round in which one of the two was disturbed is made, and tells nothing.
    fewer = pair(1.0, 0.955, 1.047, rounds=4)
    rounds = rounds_for_side(fewer, 1 / 1.03, made=4)
    assert rounds is not None
    later = failure_of(fewer, minutes=30, made=6)
    assert "not decided after 6 rounds" in str(later)
    assert f"--minutes {math.ceil(30 * (rounds + 2) / 6)}, " in str(later)
    assert rounds_for_side(fewer, 1 / 1.03, made=14) is None  # more than are made
    near = failure_of(pair(1 / 1.0299, 1 / 1.06, 1.0), minutes=3, made=14)
    assert str(near).endswith("; a quieter runner, or more to be allowed")
    alone = failure_of(pair(0.8, None, None, rounds=1), minutes=3, made=1)
    assert "not decided after 1 round; what is known; --minutes 9, a quieter" in str(alone)


@pytest.mark.parametrize(
    ("second", "code", "said"),
    [
        ((100, 101, 100), None, ""),
        (
            (110, 111, 110),
            8,
            "HEAD takes 1.103 times the memory of main, 1.086 to 1.121 (3 % more is allowed)",
        ),
        ((100, 110, 104), 9, "not decided after 3 rounds; HEAD takes 1.046 times the memory"),
        ((110, 111), 9, "not decided after 2 rounds; HEAD takes 1.105 times the memory of main ("),
        ((100, 400, 90), 9, "not decided after 3 rounds; HEAD takes 1.533 times the memory"),
        (
            (110, 110, 110),
            8,
            "HEAD takes 1.100 times the memory of main, 1.100 to 1.100 (3 % more is allowed)",
        ),
    ],
)
def test_a_gate_on_memory_is_decided_by_the_ratio_of_each_round(
    second: tuple[int, ...], code: int | None, said: str
) -> None:
    memory = {"main": dict(enumerate((100, 100, 100))), "HEAD": dict(enumerate(second))}
    rounds = len(second)
    pair = gate.memory_pair(("main", "HEAD"), memory, {rounds: 1.0}, rounds, Settings())
    asked = gate.Gate(gate.MEMORY, pair, 0.03)
    failure = gate.failure(asked, gate.clause(asked, Settings()), minutes=1, made=rounds)
    assert (failure and failure.code) == code
    assert f"error: max-memory=3%: {said}" in str(failure) or failure is None


def test_after_too_few_rounds_a_gate_names_the_minutes_that_would_do() -> None:
    measured = found({"A": 0.1, "B": 0.1}, rounds=1, options=Options(allowed=0.03))
    assert re.match(
        r"error: minutes=2: there was time for 1 round; an answer takes 3 .*; --minutes [\d.]+$",
        str(Summary(measured).failure),
    )


def test_a_bench_goes_on_until_each_of_its_gates_is_decided_and_the_worst_is_told() -> None:
    options = Options(allowed=0.03, allowed_memory=0.03)
    measured = found({"A": 0.1, "B": 0.1}, noise=0.001, options=options)
    measured.memory.update(A=dict.fromkeys(range(6), 1000), B=dict.fromkeys(range(6), 1091))
    summary = Summary(measured)
    assert measured.look().decided
    assert summary.verdict == gate.FAILS
    assert summary.lead.startswith("Gate fails: B is not 3 % slower than A (")
    assert "; B takes 1.091 times the memory of A" in summary.lead
    assert isinstance(summary.failure, Slower)
    assert summary.markdown().splitlines()[1].startswith("❌")
    assert summary.data(8)["gate"]["verdict"] == "fails"
    measured.memory["B"] |= {1: 1000, 3: 1000}
    assert not measured.look().decided
    slower = found({"A": 0.1, "B": 0.2}, noise=0.001, options=options)
    slower.memory.update(measured.memory)
    assert slower.look().decided


@pytest.mark.parametrize("speedup", [1.0, 1 / 1.01, 1 / 1.015, 1 / 1.05])
def test_after_the_rounds_that_are_needed_the_same_noise_decides_and_long_before_it_does_not(
    speedup: float,
) -> None:
    def after(rounds: int) -> Pair:
        half = 0.06 / math.sqrt(rounds)
        return pair(speedup, speedup * math.exp(-half), speedup * math.exp(half), rounds)

    assert time_gate(after(4)).verdict == gate.UNDECIDED
    needed = rounds_for_side(after(4), 1 / 1.03, made=4)
    assert needed is not None
    assert time_gate(after(needed)).verdict == (gate.PASSES if speedup > 1 / 1.03 else gate.FAILS)
    assert time_gate(after(math.floor(0.8 * needed))).verdict == gate.UNDECIDED


def test_a_line_of_words_leaves_the_folder_of_a_run_outside_of_quotes() -> None:
    words = ["python", "my train.py", "--dir={out}", "{out}/a b", ""]
    assert joined(words) == "python 'my train.py' --dir={out} {out}'/a b' ''"


def test_a_share_is_written_in_percent_or_as_a_number() -> None:
    assert [share(text) for text in ("3%", "0.03", " 12.5% ")] == pytest.approx([0.03, 0.03, 0.125])
    for text in ("3", "x", "-1%", "100%", "nan", ""):
        with pytest.raises((ValueError, ArgumentTypeError)):
            share(text)
