"""What more processes bring is told with intervals, of turns alone, and only where it is shown."""

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.answer.cell import Cell
from ninefold.answer.runs import Run
from ninefold.extensions.reports.scaling import UNTIMED, Series, series_of
from ninefold.numbers import three_digits
from ninefold.report.data.recording import Recording, record
from ninefold.report.render.figures import plot
from tests.extensions.reports.made import STEPS, timed
from tests.report.made import built

ALPHA = 2e-4  # seconds of a message, to each of the other processes


def step(processes: int, alpha: float = ALPHA, weak: bool = False) -> float:
    """Seconds of a step: fixed ones, those of its examples, two messages and 2 MB at 500 MB/s."""
    of_examples = 15e-3 if weak else 15e-3 / processes
    others = processes - 1
    return 1e-3 + of_examples + (2 * alpha * others + 4e-3 * others / processes) / 2


def planted(
    rounds: int = 6,
    cores: int = 64,
    noise: float = 0.003,
    counts: tuple[int, ...] = (1, 2, 4),
    alpha: float = ALPHA,
    weak: bool = False,
    none: bool = True,
) -> Recording:
    """A study whose steps take as long as `step` says."""
    chance, kind = random.Random(1), "weak" if weak else "strong"
    cells = [*([("none", 1)] if none else []), *(("ddp", count) for count in counts)]
    runs = [
        timed(
            parallel, "fp32", number, step(count, alpha, weak) * chance.gauss(1, noise),
            batch=64 * count if weak else 64, processes=count, replicas=count, threads=count,
            devices=["cpu"] * count, scaling=kind,
        )
        for number in range(rounds)
        for parallel, count in cells
    ]  # fmt: skip
    sweep = {
        "swept": {"parallel": ["none", "ddp"], "parallel.processes": list(map(str, counts))},
        "settings": {"study": {"ask": ["time"], "scaling": kind}},
    }
    return Recording(runs, {"sweep": sweep, "environment": {"cores": cores}}, [], [])


def series(**facts: Any) -> tuple[Series, int | None]:
    """The series of a planted study, and from how many processes on more do not pay."""
    recording = planted(**facts)
    [evidence] = recording.facts
    [found] = series_of(recording, evidence)
    return found, found.enough(evidence)


@pytest.mark.parametrize("weak", [False, True])
def test_speed_up_and_efficiency_are_those_of_the_steps(weak):
    found, _ = series(weak=weak)
    for point in found.points[1:]:
        count = point.processes
        true = step(1, weak=weak) / step(count, weak=weak) * (count if weak else 1)
        assert point.speedup.value == pytest.approx(true, rel=0.01)
        assert (point.speedup.low or 0) < true < (point.speedup.high or 0)
        assert point.efficiency == pytest.approx(true / count, rel=0.01)
        assert point.speedup.verdict == "faster"


def test_without_none_the_base_is_the_fewest_processes():
    found, _ = series(none=False)
    assert found.base == Cell("ddp", "fp32", 1)
    assert found.points[0].speedup.value == 1.0


@pytest.mark.parametrize(
    ("facts", "enough", "said"),
    [
        ({"alpha": 4e-3, "counts": (1, 2, 4, 8)}, 2,
         "More than 2 processes are shown not to pay: ddp x4, fp32; ddp x8, fp32 are no faster"),
        ({}, None, "From which number on more processes do not pay is not shown."),
        ({"alpha": 4e-3, "noise": 0.5, "rounds": 3}, None, "No acceptable number of its"),
    ],
)  # fmt: skip
def test_from_where_more_processes_do_not_pay_is_said_only_where_it_is_shown(facts, enough, said):
    assert series(**facts)[1] == enough
    assert said in " ".join(built(planted(**facts)).answer.reasons)


def test_more_processes_than_cores_have_no_efficiency_and_decide_nothing():
    facts: dict[str, Any] = {"cores": 2, "alpha": 4e-3, "counts": (1, 2, 4, 8)}
    found, enough = series(**facts)
    assert [point.crowded for point in found.points] == [False, False, True, True]
    assert [point.efficiency is None for point in found.points] == [False, False, True, True]
    assert all(point.speedup for point in found.points)
    assert enough is None
    answer = built(planted(**facts)).answer
    assert "ddp x4, fp32; ddp x8, fp32 had fewer cores than threads" in " ".join(answer.reasons)
    assert [row[2] == "too few cores" for row in answer.table.rows] == [False, False, True, True]


@pytest.mark.parametrize(
    ("facts", "lead", "named"),
    [
        ({}, "Use 4 processes (ddp): 2.34 times as fast as one.", Cell("ddp", "fp32", 4)),
        ({"alpha": 0.05, "counts": (1, 2)},
         "Do not scale out: 2 processes (ddp) are 0.27 times as fast as one.",
         Cell("none", "fp32")),
        ({"weak": True}, "Use 4 processes (ddp): 3.54 times the examples a second of one.",
         Cell("ddp", "fp32", 4)),
        ({"noise": 0.9, "rounds": 3, "counts": (1, 2)},
         "Not decided: 2 processes (ddp) may be faster or slower than one.", None),
        ({"cores": 1}, "No answer: no acceptable number of processes has a known speedup.", None),
    ],
)  # fmt: skip
def test_a_scaling_study_answers_in_its_own_words(facts, lead, named):
    answer = built(planted(**facts)).answer
    assert (answer.lead, answer.cell, answer.decided) == (lead, named, named is not None)


def test_of_several_precisions_the_fastest_is_named_and_not_the_one_that_scales_best():
    found = planted()
    slow = [replace(run, amp="fp32") for run in found.runs]
    fast = [
        replace(run, amp="bf16", dtype="bfloat16", taken=[
            replace(turn, seconds=turn.seconds * (0.4 if run.processes == 1 else 0.5))
            for turn in run.taken
        ], folder=run.folder.replace("fp32", "bf16"))
        for run in found.runs
    ]  # fmt: skip
    answer = built(replace(found, runs=[*slow, *fast])).answer
    assert answer.lead.startswith("Use 4 processes (ddp, bf16): 1.8")
    assert answer.cell == Cell("ddp", "bf16", 4)


FOUR = Cell("ddp", "fp32", 4)


def trained(lost: float | None) -> list[Run]:
    """Training runs of `planted`, of which those of four processes lose so much of the score."""
    return [] if lost is None else [
        replace(run, folder=f"{run.cell}-{run.seed}", turns=None, taken=[],
                score=0.9 + 1e-4 * (run.seed or 0) * run.processes - lost * (run.cell == FOUR))
        for run in planted().runs
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "lost", "why"),
    [
        ({"mean_loss": False}, None, "Not named by its loss"),
        ({"weights": "bfloat16"}, None, "Not named without a score: a small update is lost"),
        ({}, 0.1, "Eliminated, as accuracy is lost: ddp x4, fp32."),
        ({}, 0.0, None),
    ],
    ids=["loss", "weights", "score", "none"],
)
def test_a_number_of_processes_that_is_not_acceptable_is_not_recommended(changes, lost, why):
    found = planted()
    runs = [replace(run, **changes) if run.cell == FOUR else run for run in found.runs]
    answer = built(replace(found, runs=[*runs, *trained(lost)])).answer
    count = 2 if why else 4
    assert answer.lead.startswith(f"Use {count} processes (ddp): ")
    assert f"ddp, fp32: ddp x{count}, fp32 is " in answer.reasons[0]
    assert [each.startswith(why) for each in answer.reasons[2:]] == [True] * bool(why)


@pytest.mark.parametrize("none", [True, False])
def test_a_number_of_processes_whose_score_is_open_is_not_named(none):
    found = planted(none=none)
    apart = [
        replace(run, score=0.9 + 0.02 * (-1) ** (run.seed or 0)) if run.cell == FOUR else run
        for run in trained(0.0)
        if none or run.parallel != "none"
    ]
    sweep = found.environment["sweep"]
    sweep["command"] = "python train.py -m seed=0,1,2,3,4,5"
    sweep["timing_ended"] = "decided"
    for kind, runs in (("timing", found.runs), ("rounds", apart)):
        sweep[kind] = [
            {"round": n, "seed": n, "runs": [run.folder for run in runs if run.seed == n]}
            for n in range(6)
        ]
    answer = built(replace(found, runs=[*found.runs, *apart], folder=Path("mine"))).answer
    assert (answer.decided, answer.cell) == (False, None)
    if none:
        assert answer.lead == "Not decided: whether ddp x4, fp32 keeps accuracy is open."
        assert answer.surer.text.startswith("Scores are open: ")
        assert " seed=0,1,2,3,4,5,6," in answer.surer.command
    else:
        assert answer.lead == "No answer yet: none, fp32 was not run."
        assert answer.surer is None


def test_whole_runs_say_the_direction_first_draw_their_seconds_and_have_no_verdict():
    found = planted()
    whole = [replace(run, turns=None, taken=[], score=0.9) for run in found.runs]
    found.environment["sweep"]["command"] = "python train.py -m study.ask=[score] seed=0,1"
    answer = built(replace(found, runs=whole, folder=Path("mine"))).answer
    command = "python train.py study.resume=mine 'study.ask=[time,score]'"
    assert answer.surer.command == command
    apart = [replace(run, on_hosts=[1, 2]) for run in whole]
    assert built(replace(found, runs=apart, folder=Path("mine"))).answer.surer is None
    assert re.fullmatch(
        r"More processes look faster: ddp x4 is 2\.\d+ times as fast\.", answer.lead
    )
    assert not answer.decided
    assert answer.reasons == [UNTIMED]
    drawn = plot(built(replace(found, runs=whole)).groups[0])
    assert [chart.title for chart in drawn.charts] == ["← seconds an epoch", "accuracy, points →"]
    shown = [row.marks[0].text for row in drawn.rows]
    assert shown[0].endswith(" s")
    assert drawn.rows[0].label == "none, fp32"
    slow = planted(alpha=0.1)
    slower = [replace(run, turns=None, taken=[], score=0.9) for run in slow.runs]
    assert built(replace(slow, runs=slower)).answer.lead.startswith("More processes look slower")
    seconds = [run.train_seconds or 0.0 for run in whole if run.processes == 4]
    assert answer.table.rows[-1] == [
        "ddp x4, fp32", "–", "–", three_digits(1e3 * sum(seconds) / len(seconds) / STEPS)
    ]  # fmt: skip


def test_the_report_has_the_table(tmp_path):
    record(planted(cores=2), tmp_path)
    console = report.write(tmp_path).text
    assert "answer: Use 2 processes (ddp): 1.65 times as fast as one." in console
    assert "## More processes" in (tmp_path / "report.md").read_text()
    assert "Strong scaling:" in (tmp_path / "report.html").read_text()
