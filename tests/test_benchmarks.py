"""Benchmarks: turns, intervals, and the verdicts met, not met and void."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import control, known_answers, ours, run, true
from benchmarks.measure import (
    CONTROL,
    OURS,
    Bench,
    Goal,
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
from benchmarks.step import MLP
from tests.conftest import ROOT, Shell
from tests.report.test_timing import study as write_study


def test_ours_runs_twice_per_round_as_the_control_and_every_other_round_is_reversed() -> None:
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
def test_a_row_is_not_met_when_slower_than_its_goal_and_says_whether_noise_could_change_that(
    goal: Goal | None, slowdown: float, expected: str
) -> None:
    noise = np.random.default_rng(1).normal(1, 0.01, (2, 20))
    figures = {OURS: slowdown * noise[0], "raw": noise[1]}
    found = estimate(Row("step", "raw", ratio(OURS, "raw"), goal).value(figures))
    assert found.low < found.median < found.high
    assert verdict(found, goal, quiet=True) == expected


def test_rows_are_void_when_two_turns_of_the_same_code_differ() -> None:
    noise = np.random.default_rng(1).normal(1, 0.01, 20)
    control = estimate(1.1 * noise)
    assert not is_quiet(control)
    assert is_quiet(estimate(noise))
    assert verdict(control, at_most(1.05), is_quiet(control)) == "void"


def test_a_mistyped_bench_name_is_one_error_line() -> None:
    done = Shell(ROOT).run("-m", "benchmarks", "steep")
    assert done.returncode == 2
    assert done.stderr.startswith("error: bench=steep: no such bench; there are ")
    assert done.stderr.count("\n") == 1


RECORDED = sorted((ROOT / "benchmarks" / "results").glob("*/figures.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.parent.name)
def test_recorded_controls_and_void_verdicts_follow_from_the_recorded_figures(file: Path) -> None:
    for record in json.loads(file.read_text()):
        figures = {name: np.array(of) for name, of in record["figures"].items()}
        control = estimate(ratio(OURS, CONTROL)(figures))
        assert [control.median, control.low, control.high] == pytest.approx(record["control"])
        for row in record["rows"]:
            assert (row["verdict"] == "void") is not is_quiet(control)


def test_the_documentation_shows_the_latest_recorded_table_as_far_as_there_are_benches() -> None:
    text = (ROOT / "docs" / "internals" / "performance.md").read_text()
    shown = text.partition("<!-- table -->\n")[2].partition("<!-- end of table -->")[0]
    table = (RECORDED[-1].parent / "table.md").read_text()
    header, line, *rows = table.partition("\n\n")[0].splitlines()
    known = {(row.what, row.rival) for bench in run.known().values() for row in bench.rows}
    kept = [row for row in rows if tuple(re.split(r" *\| *", row)[1:3]) in known]
    assert len(kept) == len(known)
    assert shown.splitlines() == [header, line, *kept]
    page = (ROOT / "docs" / "background" / "speed.md").read_text()
    recorded = {tuple(re.split(r" *\| *", line)[3:5]) for line in table.splitlines()[2:]}
    rows = re.findall(r"^\| .* \| (\S+ \S+) \| (\[.*\]) \|$", page, re.MULTILINE)
    assert rows
    assert {*rows} <= recorded  # the page has some of them, in other words


def test_the_picture_of_the_control_follows_from_the_recorded_reports() -> None:
    assert control.PICTURE.read_text() == control.drawn(control.checks())


def test_our_contestants_use_as_many_threads_as_their_job_says() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ours.training(*MLP):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_studies_with_known_answers_count_false_verdicts_and_delays_that_were_found() -> None:
    def pair(first: str, second: str, verdict: str) -> dict[str, object]:
        return {"first": first, "second": second, "estimate": 1.0, "verdict": verdict}

    delayed = [pair(*cells, verdict="slower") for cells in known_answers.DELAYED]
    wrong = pair("none-fp32", "dp-fp32", "faster")
    studies = [
        {"minutes": 2.0, "named": "dp-again", "equal": [wrong, wrong], "delayed": delayed},
        {"minutes": 4.0, "named": None, "equal": [pair("a", "b", "tie")] * 2,
         "delayed": [pair(b, a, "faster") for a, b in known_answers.DELAYED]},  # `a` is
        {"minutes": 3.0, "named": "none-delayed", "equal": [pair("a", "b", "tie")] * 2,
         "delayed": [pair(a, b, "open") for a, b in known_answers.DELAYED]},
    ]  # fmt: skip
    first, false, named, *found = known_answers.summary(studies)
    assert first == "3 studies, 3.0 minutes each"
    assert false == "equal cells called different: 2 of 6 pairs"
    assert named == "named a cell that is as fast as any: 1; named none: 1"
    assert found[0] == "none-delayed found slower than none-fp32: 2 of 3"


def promise_and_whole_runs(off: float) -> dict[str, object]:
    """What the bench finds where a study's times of ddp's cells are off by a factor."""
    rng = np.random.default_rng(0)

    def drawn(rounds: int, factor: float) -> dict[str, dict[int, float]]:
        return {
            cell: {
                number: float((1 + place) * (factor if "ddp" in cell else 1) * noise)
                for number, noise in enumerate(np.exp(0.02 * rng.standard_normal(rounds)))
            }
            for place, cell in enumerate(true.CELLS)
        }

    pairs = {
        f"{first} : {second}": {"first": first, "second": second, "low": 0.9, "high": 1.1}
        for first, second in combinations(true.CELLS, 2)
    }
    found = {"values": drawn(12, off), "pairs": pairs, "named": true.CELLS[0]}
    return true.compare(found, drawn(6, 1.0))


def test_a_study_agrees_with_whole_runs_unless_it_is_off_by_more_than_both_noises_allow() -> None:
    right, wrong = promise_and_whole_runs(1.0), promise_and_whole_runs(0.85)
    assert right["agree"] == 1.0
    assert right["rms"] == pytest.approx(right["noise_of_whole_runs"], rel=0.5)
    said = {row["pair"]: row["agrees"] for row in wrong["rows"]}  # type: ignore[attr-defined]
    assert not said["none-fp32 : ddp-fp32"]
    assert said["none-fp32 : none-autocast"]
    assert wrong["agree"] == pytest.approx(6 / 15)  # the pairs within a strategy
    assert wrong["beyond_noise"] == pytest.approx(-np.log(0.85) * np.sqrt(9 / 15), rel=0.1)
    said_by = {true.MEDIAN: wrong, true.MEAN: right}
    assert "NOT MET" in true.text_of("a study", said_by, "quiet")
    assert all(met for _, met in true.goals(right, "quiet"))


def test_a_burst_moves_the_mean_of_a_whole_run_not_its_median_and_is_told() -> None:
    quiet, hit = true.WholeRun.of([2.0] * 10), true.WholeRun.of([2.0] * 9 + [6.0])
    assert quiet == true.WholeRun(mean=2.0, median=2.0, disturbed=0.0)
    assert hit == true.WholeRun(mean=2.4, median=2.0, disturbed=0.25)
    told = true.disturbed_text("net", {"none-fp32": {0: quiet, 1: hit}})
    assert told.endswith("none-fp32 of round 2 25 %")


def test_the_handicap_keeps_the_fastest_half_of_the_turns(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study")
    true.handicap(study)
    for path in study.glob("timing/*/*/result.json"):
        assert len(json.loads(path.read_text())["turn_seconds"]) == 3  # of 5
    assert (study / "report" / "report.json").exists()
