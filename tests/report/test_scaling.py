"""Cells of several numbers of processes: their names, their batches, how they scale."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.report.answer.answer import build, evidence_of
from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.scaling import scaling
from ninefold.report.answer.tree import ScalingPoint, Series
from ninefold.report.data.cell import Cell
from ninefold.report.data.cells import groups
from ninefold.report.data.recording import gather_recording, read_recording, read_runs
from ninefold.report.data.rounds import name_of
from ninefold.report.data.runs import read_csv
from ninefold.stats.verdicts import OTHER_HOSTS
from tests.report.test_report import failure, result, row, sweep

SWEPT = {
    "wall_seconds": 60.0, "runs": 12, "swept": {
        "parallel": ["none", "ddp"], "parallel.processes": ["1", "2", "10"],
    },
    "planned_cells": [
        {"parallel": "none", "amp": "fp32"},
        *({"parallel": "ddp", "amp": "fp32", "parallel.processes": n} for n in ("1", "2", "10")),
    ],
}  # fmt: skip
CELLS = [Cell("none", "fp32"), *(Cell("ddp", "fp32", processes) for processes in (1, 2, 10))]


def of_processes(parallel: str, processes: int, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The result.json of a run of a study that swept the processes."""
    return result(
        parallel, seed=seed, processes=processes, replicas=processes, devices=["cpu"] * processes,
        threads=processes, overrides=[f"parallel.processes={processes}"], **changes,
    )  # fmt: skip


def study(folder: Path, seeds: int = 2, weak: bool = False, cores: int = 4) -> Path:
    """Runs whose time falls with the root of their processes."""
    chance = random.Random(0)
    made = [
        of_processes(
            parallel, processes, seed, batch_size=64 * (processes if weak else 1),
            train_seconds=20.0 / processes**0.5 * chance.gauss(1, 0.005),
            environment={**result()["environment"], "cores": cores},
        )
        for seed in range(seeds)
        for parallel, processes in (("none", 1), ("ddp", 1), ("ddp", 2), ("ddp", 10))
    ]  # fmt: skip
    settings = {"study": {"scaling": "weak" if weak else "strong"}}
    return sweep(folder, *made, **SWEPT, settings=settings)


def evidence(folder: Path) -> Evidence:
    recording = gather_recording(folder)
    assert recording is not None
    [found] = evidence_of(recording)
    return found


def test_cells_of_several_numbers_of_processes_stand_in_one_table(tmp_path: Path) -> None:
    found = evidence(study(tmp_path))
    assert found.cells == CELLS
    assert found.group.title == "convnet on digits, batch 64, 10 epochs"
    runs, facts = read_runs(tmp_path)
    names = ["none-fp32", "ddp x1-fp32", "ddp x2-fp32", "ddp x10-fp32"]
    assert [str(cell) for cell in found.cells] == facts.cell_names == names
    assert {name_of(run, facts) for run in runs} == set(names)


def test_a_recording_of_them_is_the_same(tmp_path: Path) -> None:
    report.write(study(tmp_path))
    assert [each.cells for each in evidence_of(read_recording(tmp_path / "report"))] == [CELLS]


def test_where_scaling_is_weak_cells_share_the_batch_of_a_process(tmp_path: Path) -> None:
    found = evidence(study(tmp_path, weak=True))
    assert found.cells == CELLS
    assert found.group.title == "convnet on digits, batch 64 per process, 10 epochs"


def test_where_processes_are_not_swept_they_are_no_part_of_a_cell(tmp_path: Path) -> None:
    facts = {**SWEPT, "swept": {"parallel": ["none", "ddp"]}, "planned_cells": []}
    two = result("ddp", processes=2, replicas=2, devices=["cpu", "cpu"])
    found = evidence(sweep(tmp_path, result(), two, **facts))
    assert found.cells == [Cell("none", "fp32"), Cell("ddp", "fp32")]
    assert {run.scaling for run in found.group.runs} == {None}
    assert scaling(found) is None


def test_a_run_that_failed_stands_in_the_cell_of_its_processes(tmp_path: Path) -> None:
    bad = failure("ddp", "fp32", seed=2, processes=10, batch_size=64)
    made = [of_processes("ddp", processes, seed) for processes in (2, 10) for seed in (0, 1)]
    found = evidence(sweep(tmp_path, *made, bad, **SWEPT))
    assert found.bad == {Cell("ddp", "fp32", 10): "failed"}


@pytest.mark.parametrize(
    ("cores", "hosts", "too_many"),
    [
        (4, None, CELLS[3:]),
        (16, None, []),
        (4, [{"cores": 4, "ranks": [0]}], []),
        (16, [{"cores": 1, "ranks": [0, 1]}, {"cores": 1, "ranks": [2]}], CELLS),
    ],
)
def test_a_run_with_more_processes_than_cores_is_oversubscribed(
    tmp_path: Path, cores: int, hosts: Sequence[dict[str, Any]] | None, too_many: list[Cell]
) -> None:
    known = {**result()["environment"], "cores": cores, **({"hosts": hosts} if hosts else {})}
    made = [
        of_processes(parallel, processes, environment=known)
        for parallel, processes in (("none", 1), ("ddp", 1), ("ddp", 2), ("ddp", 10))
    ]
    runs, _ = read_runs(sweep(tmp_path, *made, **SWEPT))
    assert [run.cell for run in runs if run.oversubscribed] == too_many


def test_batches_that_differ_without_weak_scaling_are_still_kept_apart(tmp_path: Path) -> None:
    report.write(study(tmp_path))
    runs = read_csv(tmp_path / "report" / "runs.csv")
    apart = [replace(run, batch_size=128) if run.processes == 2 else run for run in runs]
    assert len(groups(apart)) == 2


# How cells scale

ALPHA = 2e-4  # seconds of a message, to each of the other processes


def step(processes: int, alpha: float = ALPHA, weak: bool = False) -> float:
    """Seconds of a step: fixed ones, those of its examples, two messages and 2 MB at 500 MB/s."""
    of_examples = 15e-3 if weak else 15e-3 / processes
    others = processes - 1
    return 1e-3 + of_examples + (2 * alpha * others + 4e-3 * others / processes) / 2


def planted(
    folder: Path,
    seeds: int = 5,
    cores: int = 64,
    noise: float = 0.003,
    counts: str = "1,2,4",
    alpha: float = ALPHA,
    weak: bool = False,
    none: bool = True,
    hosts: str = "node",
) -> Path:
    """A study whose steps take as long as `step` says."""
    chance, made = random.Random(1), []
    numbers = [int(count) for count in counts.split(",")]
    cells = [*([("none", 1)] if none else []), *(("ddp", count) for count in numbers)]
    for seed in range(seeds):
        for parallel, processes in cells:
            steps = 220 // (processes if weak else 1)
            seconds = steps * step(processes, alpha, weak) * chance.gauss(1, noise)
            names = [f"node-{n}" for n in range(processes)] if hosts == "more" else [hosts]
            names = [f"other-{processes}"] if hosts == "other" else names
            made.append(
                of_processes(
                    parallel, processes, seed, train_seconds=seconds, steps=steps,
                    batch_size=64 * (processes if weak else 1),
                    environment={**result()["environment"], "cores": cores, "hosts": names},
                )
            )  # fmt: skip
    cell = {"amp": "fp32", "parallel": "ddp"}
    facts = {
        **SWEPT, "swept": {"parallel": ["none", "ddp"], "parallel.processes": counts.split(",")},
        "planned_cells": [{**cell, "parallel.processes": count} for count in counts.split(",")],
        "settings": {"study": {"scaling": "weak" if weak else "strong"}},
    }  # fmt: skip
    return sweep(folder, *made, **facts)


def series_of(folder: Path) -> Series:
    found = scaling(evidence(folder))
    assert found is not None
    [series] = found.series
    return series


def points(series: Series) -> dict[int, ScalingPoint]:
    return {point.processes: point for point in series.points}


@pytest.mark.parametrize("weak", [False, True])
def test_speed_up_and_efficiency_are_those_of_the_steps(tmp_path: Path, weak: bool) -> None:
    found = points(series_of(planted(tmp_path, weak=weak)))
    for processes in (2, 4):
        true = step(1, weak=weak) / step(processes, weak=weak) * (processes if weak else 1)
        point = found[processes]
        assert point.speedup == pytest.approx(true, rel=0.01)
        assert point.speedup_low is not None
        assert point.speedup_high is not None
        assert point.speedup_low < true < point.speedup_high
        assert point.efficiency == pytest.approx(true / processes, rel=0.01)
        assert point.verdict == "faster"


def test_without_none_the_base_is_the_fewest_processes(tmp_path: Path) -> None:
    series = series_of(planted(tmp_path, none=False))
    assert series.base == Cell("ddp", "fp32", 1)
    assert (series.points[0].speedup, series.points[0].verdict) == (1.0, None)


def test_from_where_more_processes_do_not_pay_is_said_only_where_it_is_shown(
    tmp_path: Path,
) -> None:
    slow = series_of(planted(tmp_path / "slow", alpha=4e-3, counts="1,2,4,8"))
    assert slow.enough == 2
    assert "More than 2 processes are shown not to pay: ddp x4, fp32; ddp x8, fp32 are slower" in (
        " ".join(slow.said)
    )
    fast = series_of(planted(tmp_path / "fast", counts="1,2,4"))
    assert fast.enough is None
    noisy = series_of(planted(tmp_path / "noisy", alpha=4e-3, counts="1,2,4", noise=0.5, seeds=3))
    assert noisy.enough is None
    assert "From which number on more processes do not pay is not shown." in noisy.said


def test_more_processes_than_cores_are_hollow_and_have_no_efficiency(tmp_path: Path) -> None:
    series = series_of(planted(tmp_path, cores=2, alpha=4e-3, counts="1,2,4,8"))
    found = points(series)
    assert [found[n].oversubscribed for n in (1, 2, 4, 8)] == [False, False, True, True]
    assert found[8].speedup is not None
    assert (found[8].efficiency, found[8].efficiency_low) == (None, None)
    assert series.enough is None  # nothing is said because of them
    text = " ".join(series.said)
    assert "ddp x4, fp32; ddp x8, fp32 had fewer cores or GPUs than processes" in text


def test_points_on_other_hosts_than_the_base_have_no_speed_up(tmp_path: Path) -> None:
    series = series_of(planted(tmp_path, hosts="other"))
    assert [point.speedup for point in series.points if point.processes > 1] == [None, None]
    assert {point.verdict for point in series.points if point.processes > 1} == {OTHER_HOSTS}


def test_points_on_more_hosts_than_the_base_have_a_speed_up_and_no_verdict(tmp_path: Path) -> None:
    one = points(series_of(planted(tmp_path / "one")))
    series = series_of(planted(tmp_path / "more", hosts="more"))
    for processes in (2, 4):
        point = points(series)[processes]
        assert point.verdict == OTHER_HOSTS
        assert point.speedup == pytest.approx(one[processes].speedup)
        assert point.speedup_low is not None
    assert series.enough is None
    assert "judged by the interval of its seeds, at best ddp x4, fp32 is 2.3" in series.said[0]


@pytest.mark.parametrize(
    ("facts", "lead", "sure"),
    [
        ({}, "Use 4 processes (ddp): 2.3 times as fast as one.", True),
        ({"hosts": "more"}, "Use 4 processes (ddp): 2.3 times as fast as one.", True),
        ({"alpha": 0.05, "counts": "1,2"},
         "Do not scale out: 2 processes (ddp) are only 0.27 times as fast.", True),
        ({"weak": True}, "Use 4 processes (ddp): 3.5 times the examples a second of one.", True),
        ({"noise": 0.9, "seeds": 3, "counts": "1,2"},
         "Not decided: 2 processes (ddp) may be faster or slower than one.", False),
        ({"hosts": "other"}, "No answer: no speed-up of more processes is known.", False),
    ],
)  # fmt: skip
def test_a_scaling_study_answers_in_its_own_words(
    tmp_path: Path, facts: dict[str, Any], lead: str, sure: bool
) -> None:
    recording = gather_recording(planted(tmp_path, **facts))
    assert recording is not None
    answer = build(recording, evidence_of(recording)).answer
    assert (answer.lead, answer.decided) == (lead, sure)
    assert answer.train is None


def test_the_report_shows_it_in_every_form(tmp_path: Path) -> None:
    console = report.write(planted(tmp_path, cores=2))
    assert "answer: Use 2 processes (ddp): 1.7 times as fast as one." in console
    written = tmp_path / "report"
    text = (written / "report.md").read_text()
    assert row(text, "Results", "ddp x4, fp32")[1].endswith(" too few cores")
    page = (written / "report.html").read_text()
    assert "Strong scaling: every step has the same global batch." in page
    content = json.loads((written / "report.json").read_text())
    [group] = content["groups"]
    assert [point["processes"] for point in group["scaling"]["series"][0]["points"]] == [1, 2, 4]
    before = (written / "report.json").read_bytes()
    report.write(written)
    assert (written / "report.json").read_bytes() == before
