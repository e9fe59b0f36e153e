"""Runs on different hosts: their times are not compared, their scores are, nothing names them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ninefold import report
from ninefold.report.answer.answer import build, evidence_of
from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.recommend import recommend
from ninefold.report.data.cell import Cell
from ninefold.report.data.recording import gather_recording, read_recording
from ninefold.report.data.runs import read_csv
from ninefold.stats.verdicts import OTHER_HOSTS
from tests.report.test_report import result, sweep

Hosts = Callable[[str, int], list[str]]  # of a strategy and a seed
SEEDS = 5


def by_cell(parallel: str, seed: int) -> list[str]:
    """A host of its own for each cell, as a scheduler may give it."""
    return [f"node-{parallel}"]


def one_host(parallel: str, seed: int) -> list[str]:
    return ["node-a"]


def study(folder: Path, hosts: Hosts, draw: int = 0, slower: float = 1.0) -> Path:
    """Runs of none and ddp that differ by 10 %, and by how much slower the host of ddp is."""
    chance = random.Random(draw)
    made = []
    for seed in range(SEEDS):
        for parallel in ("none", "ddp"):
            base = 20.0 if parallel == "none" else 22.0
            mine = hosts(parallel, seed)
            there = slower if mine != hosts("none", 0) else 1.0
            made.append(
                result(
                    parallel, seed=seed, train_seconds=base * there * chance.gauss(1, 0.005),
                    accuracy=0.9 + chance.gauss(0, 0.0004) + 0.01 * seed,
                    environment=environment(mine),
                )
            )  # fmt: skip
    return sweep(folder, *made)


def environment(hosts: list[str]) -> dict[str, Any]:
    known = result()["environment"]
    assert isinstance(known, dict)
    named = [{"name": name, "cpu": "A CPU", "cores": 2, "gpus": [], "ranks": [0]} for name in hosts]
    return {**known, "hostname": hosts[0], "hosts": named}


def evidence(folder: Path) -> Evidence:
    recording = gather_recording(folder)
    assert recording is not None
    [found] = evidence_of(recording)
    return found


def test_cells_on_different_hosts_get_no_verdict_on_time_and_on_one_set_of_hosts_they_do(
    tmp_path: Path,
) -> None:
    for draw in range(20):
        confounded = evidence(study(tmp_path / f"{draw}", by_cell, draw, slower=12.0))
        [pair] = confounded.comparison.seconds
        assert (pair.verdict, pair.estimate, pair.low) == (OTHER_HOSTS, None, None)
        [score] = confounded.comparison.accuracy
        assert score.verdict == "tie"
        assert confounded.safe[Cell("ddp", "fp32")] == "safe"
        same = evidence(study(tmp_path / f"same {draw}", one_host, draw))
        assert [pair.verdict for pair in same.comparison.seconds] == ["slower"]


def test_what_is_run_on_the_same_two_hosts_is_compared(tmp_path: Path) -> None:
    found = evidence(study(tmp_path, lambda *_: ["node-b", "node-a"]))
    assert [pair.verdict for pair in found.comparison.seconds] == ["slower"]
    assert [run.on_hosts for run in found.group.runs] == [[1, 2]] * (2 * SEEDS)


def test_a_host_of_ones_own_among_shared_ones_is_another_set_of_hosts(tmp_path: Path) -> None:
    found = evidence(study(tmp_path, lambda way, _: ["node-a", f"node-{way}"]))
    assert [pair.verdict for pair in found.comparison.seconds] == [OTHER_HOSTS]


def test_of_rounds_on_changing_hosts_those_count_in_which_both_cells_had_the_same(
    tmp_path: Path,
) -> None:
    def moved(parallel: str, seed: int) -> list[str]:
        return ["node-b" if parallel == "ddp" and seed > 2 else "node-a"]

    found = evidence(study(tmp_path, moved, slower=0.1))
    [pair] = found.comparison.seconds
    assert (pair.n, pair.verdict) == (3, "slower")
    assert 1.08 < (pair.estimate or 0) < 1.12


def test_the_answer_names_no_fastest_cell_and_says_why(tmp_path: Path) -> None:
    study(tmp_path, by_cell, slower=12.0)
    recording = gather_recording(tmp_path)
    assert recording is not None
    found = evidence_of(recording)
    made = build(recording, found)
    assert made.answer.cell is None
    assert made.answer.lead == "No answer on speed: the configurations ran on different hosts."
    assert recommend(found[0]).settled
    said = "none, fp32 on host 1 and ddp, fp32 on host 2"
    assert any(said in text for text in made.answer.caveats)
    [own] = [cell for cell in made.groups[0].cells if cell.cell == Cell("ddp", "fp32")]
    seconds = own.measures["seconds"]
    assert seconds is not None
    assert seconds.relative is None
    assert own.speedup is None


def test_a_report_says_that_hosts_differ_and_names_none_of_them(tmp_path: Path) -> None:
    report.write(study(tmp_path, by_cell, slower=12.0))
    written = tmp_path / "report"
    for name in ("report.md", "report.html", "report.json"):
        assert OTHER_HOSTS in (written / name).read_text(), name
    assert {tuple(run.on_hosts) for run in read_csv(written / "runs.csv")} == {(1,), (2,)}
    for path in written.iterdir():
        assert b"node-" not in path.read_bytes(), path.name
    before = (written / "report.json").read_bytes()
    report.write(written)  # a recording, without the run folders
    assert (written / "report.json").read_bytes() == before
    assert [
        each.verdict for each in evidence_of(read_recording(written))[0].comparison.seconds
    ] == [OTHER_HOSTS]


def test_runs_that_do_not_know_their_hosts_are_compared_as_before(tmp_path: Path) -> None:
    runs = [
        result(parallel, seed=seed, train_seconds=base + seed / 10, environment={})
        for seed in range(SEEDS)
        for parallel, base in (("none", 20.0), ("ddp", 22.0))
    ]
    found = evidence(sweep(tmp_path, *runs))
    assert [pair.verdict for pair in found.comparison.seconds] == ["slower"]
