"""Benchmarks: turns, intervals, and the verdicts met, not met and void."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from benchmarks import control, ours, run, scripts
from benchmarks.measure import (
    CONTROL,
    OURS,
    Bench,
    Row,
    Turns,
    at_least,
    at_most,
    estimate,
    is_quiet,
    ratio,
    take_turns,
    verdict,
)
from benchmarks.shapes import SHAPES
from benchmarks.step import MLP
from ninefold.bench.command import Command
from ninefold.bench.held import HeldCommand
from ninefold.bench.turns import MARKS
from ninefold.waits import poll_until
from tests.conftest import ROOT, Shell


def test_ours_runs_twice_per_round_as_the_control_and_every_other_round_is_reversed():
    taken: list[str] = []

    @contextmanager
    def contestants(handicap: bool) -> Iterator[Turns]:
        def turn(name: str) -> float:
            taken.append(name)
            return float(len(taken))

        yield {OURS: lambda: turn(OURS), "raw": lambda: turn("raw")}

    figures = take_turns(Bench("b", "", contestants, []), pairs=2, handicap=False)
    assert taken == [OURS, "raw", OURS, "raw", OURS, OURS, "raw", OURS]  # the first two warm up
    assert {name: of.tolist() for name, of in figures.items()} == {
        OURS: [3, 8], "raw": [4, 7], CONTROL: [5, 6],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("goal", "slowdown", "expected"),
    [
        (at_most(1.05), 1.0, "met"),
        (at_most(1.05), 1.2, "not met"),
        (at_least(0.9), 1.0, "met"),
        (at_least(0.9), 0.5, "not met"),
        (at_most(1.0), 1.0001, "not met, within the noise"),
        (None, 1.2, "–"),
    ],
)
def test_a_row_slower_than_its_goal_says_whether_noise_could_be_it(goal, slowdown, expected):
    noise = np.random.default_rng(1).normal(1, 0.01, (2, 20))
    figures = {OURS: slowdown * noise[0], "raw": noise[1]}
    found = estimate(Row("step", "raw", ratio(OURS, "raw"), goal).value(figures))
    assert found.low < found.median < found.high
    assert verdict(found, goal, quiet=True) == expected


def test_rows_are_void_when_two_turns_of_the_same_code_differ():
    noise = np.random.default_rng(1).normal(1, 0.01, 20)
    control = estimate(1.1 * noise)
    assert not is_quiet(control)
    assert is_quiet(estimate(noise))
    assert verdict(control, at_most(1.05), is_quiet(control)) == "void"


def test_a_mistyped_bench_name_is_one_error_line():
    done = Shell(ROOT).run("-m", "benchmarks", "steep", code=2)
    assert done.stderr.startswith("error: bench=steep: no such bench; there are ")
    assert done.stderr.count("\n") == 1


RECORDED = sorted((ROOT / "benchmarks" / "results").glob("*/figures.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.parent.name)
def test_recorded_controls_and_void_verdicts_follow_from_the_recorded_figures(file):
    for record in json.loads(file.read_text()):
        figures = {name: np.array(of) for name, of in record["figures"].items()}
        control = estimate(ratio(OURS, CONTROL)(figures))
        assert [control.median, control.low, control.high] == pytest.approx(record["control"])
        for row in record["rows"]:
            assert (row["verdict"] == "void") is not is_quiet(control)


def test_the_documentation_leads_to_the_latest_recorded_table_which_has_each_bench():
    file = RECORDED[-1].with_name("table.md")
    assert str(file.relative_to(ROOT)) in (ROOT / "docs/internals/performance.md").read_text()
    table = [tuple(re.split(r" *\| *", row)) for row in file.read_text().splitlines()[2:]]
    known = {(row.what, row.rival) for bench in run.known().values() for row in bench.rows}
    assert known <= {row[1:3] for row in table}
    page = (ROOT / "docs" / "background" / "speed.md").read_text()
    rows = re.findall(r"^\| .* \| (\S+ \S+) \| (\[.*\]) \|$", page, re.MULTILINE)
    assert rows
    assert {*rows} <= {row[3:5] for row in table}  # the page has some of them, in other words


def test_the_picture_of_the_control_follows_from_the_recorded_reports():
    assert control.PICTURE.read_text() == control.drawn(control.checks())


def test_our_contestants_use_as_many_threads_as_their_job_says():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ours.training(*MLP):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


LOGS = """
import time
for said, seconds in ("step 50 ", 0), ("step 60 ", 0.01), ("accuracy", 0.5), ("step 70 ", 0.01):
    time.sleep(seconds)
    print(said, flush=True)
time.sleep(1000)
"""


def test_the_stopwatch_stands_while_a_script_does_not_train_and_ends_it_after_enough_steps():
    line = shlex.join([sys.executable, "-c", LOGS])
    found = scripts.watch(line, lambda steps, seconds: steps >= 20)
    assert found.steps == 20
    assert found.seconds < 0.25 < found.away


def test_a_script_that_ends_by_itself_is_not_measured():
    line = shlex.join([sys.executable, "-c", "raise SystemExit('why')"])
    with pytest.raises(subprocess.CalledProcessError) as raised:
        scripts.watch(line, lambda *_: False)
    assert raised.value.stderr == "why\n"


@pytest.mark.parametrize(
    ("true", "inside", "allowing"),
    [(0.91, True, True), (0.94, False, True), (0.97, False, False), (0.865, False, True)],
)
def test_bench_holds_a_speedup_strictly_or_allowing_for_the_error_of_the_stopwatch(
    true, inside, allowing
):
    said = scripts.Ratio(0.90, 0.87, 0.93)
    found = scripts.Ratio(true, true / 1.03, true * 1.03)
    assert scripts.holds(said, found, allowing=False) is inside
    assert scripts.holds(said, found, allowing=True) is allowing


def test_the_stopwatch_tells_the_mean_of_its_pairs_of_runs_with_students_interval():
    found = scripts.stopwatch([1.0, 1.0, 1.0], [1.0, 1.1, 1.21])
    assert found.speedup == pytest.approx(1 / 1.1)
    half = 4.30265 * np.log(1.1) / 3**0.5  # t of two degrees of freedom
    assert np.log(found.high / found.speedup) == pytest.approx(half, rel=1e-4)
    assert np.log(found.speedup / found.low) == pytest.approx(half, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_of_bench_is_a_step_that_the_script_counts(shape, tmp_path):
    """The stopwatch counts what a script logs; a step ends before it is logged."""
    command, every = Command(scripts.command(shape, changed=True)), 13
    held = HeldCommand(command, 0, tmp_path, {*MARKS})
    try:
        poll_until(held.arrived)
        held.train(0, 60)
        (*_, logged) = re.findall(r"^step (\d+)", held.log.read_text(), re.MULTILINE)
        assert int(logged) < held.steps <= int(logged) + every
    finally:
        held.close()
