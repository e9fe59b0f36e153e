"""Cells of several numbers of processes: their names, their batches, their groups."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ninefold import report
from ninefold.answer.cell import Cell
from ninefold.answer.grouping import groups
from ninefold.answer.runs import name_of
from ninefold.answer.study_facts import StudyFacts
from ninefold.report.data.recording import find_recording, read_recording, read_runs
from ninefold.report.data.runs import read_csv
from tests.report.made import result, sweep

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


def study(folder: Path, weak: bool = False) -> Path:
    made = [
        of_processes(parallel, processes, seed, batch_size=64 * (processes if weak else 1))
        for seed in range(2)
        for parallel, processes in (("none", 1), ("ddp", 1), ("ddp", 2), ("ddp", 10))
    ]
    settings = {"study": {"scaling": "weak" if weak else "strong"}}
    return sweep(folder, *made, **SWEPT, settings=settings)


def evidence(folder: Path) -> StudyFacts:
    [found] = find_recording(folder)[0].facts
    return found


def test_cells_of_several_numbers_of_processes_stand_in_one_table(tmp_path):
    found = evidence(study(tmp_path))
    assert found.cells == CELLS
    assert found.group.title == "convnet on digits, batch 64, 10 epochs"
    runs, facts = read_runs(tmp_path)
    names = ["none-fp32", "ddp x1-fp32", "ddp x2-fp32", "ddp x10-fp32"]
    assert [str(cell) for cell in found.cells] == names
    assert {name_of(run, facts) for run in runs} == set(names)
    report.write(tmp_path)
    assert [each.cells for each in read_recording(tmp_path / "report").facts] == [CELLS]
    runs = read_csv(tmp_path / "report" / "runs.csv")
    apart = [replace(run, batch_size=128) if run.processes == 2 else run for run in runs]
    assert len(groups(apart)) == 2


def test_where_scaling_is_weak_cells_share_the_batch_of_a_process(tmp_path):
    found = evidence(study(tmp_path, weak=True))
    assert found.cells == CELLS
    assert found.group.title == "convnet on digits, batch 64 per process, 10 epochs"


def test_where_processes_are_not_swept_they_are_no_part_of_a_cell(tmp_path):
    facts = {**SWEPT, "swept": {"parallel": ["none", "ddp"]}, "planned_cells": []}
    two = result("ddp", processes=2, replicas=2, devices=["cpu", "cpu"])
    found = evidence(sweep(tmp_path, result(), two, **facts))
    assert found.cells == [Cell("none", "fp32"), Cell("ddp", "fp32")]
    assert {run.scaling for run in found.group.runs} == {None}
