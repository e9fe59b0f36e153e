"""Timing in turns: what its rounds show, what is still measured, and what the report says."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from ninefold import report
from ninefold.report.data.cell import Cell
from ninefold.report.data.cells import groups
from ninefold.report.data.recording import read_runs
from ninefold.report.data.runs import run_of_result
from tests.report.studies import DDP, DDP_AUTOCAST, DP, NONE, NONE_AUTOCAST, NONE_SCALER
from tests.report.test_report import result

SECONDS = {
    NONE: 2.0, NONE_AUTOCAST: 1.0, NONE_SCALER: 1.3, DP: 2.0,
    DDP: 2.6, DDP_AUTOCAST: 1.6,
}  # fmt: skip


def study(
    folder: Path,
    seconds: Mapping[Cell, float] = SECONDS,
    rounds: int = 6,
    noise: float = 0.005,
    stays: Mapping[Cell, int] | None = None,
    lost: Mapping[Cell, float] | None = None,
    seeds: int = 0,
    ask: str = "[time]",
    memory: Mapping[Cell, int] | None = None,
    stretched: Mapping[Cell, float] | None = None,
    others: float | None = None,
    ended: str | None = "rounds",
    scaled: bool = False,
    **changes: Any,
) -> Path:
    """A study with timing rounds, and with runs that were trained as a whole.

    stays: the rounds that a cell took part in, if not all
    lost: the share of the score that a cell loses
    seeds: of training runs; their clock is off by 50 %, up or down
    memory: bytes that a timing run of a cell takes
    stretched: seconds of a step of a cell in a long stretch, over those in its turns
    others: share of the CPU time that other programs used
    ended: why the timing rounds ended; None: they were interrupted
    scaled: whether cells named scaler have a GradScaler
    """
    chance = random.Random(1)
    timing, trained = [], []
    for number in range(rounds):
        common = chance.gauss(1, 0.03)
        runs = []
        for cell, base in seconds.items():
            if number < (stays or {}).get(cell, rounds):
                step = common * base * chance.gauss(1, noise) / 22
                turns = [step * chance.gauss(1, 0.01) for _ in range(5)]
                parallel, amp, _ = cell
                runs.append(f"timing/{number}/{cell}")
                _write(folder / runs[-1], result(
                    parallel, amp, number, turns=5, turn_seconds=turns, steps=44, epochs=2.0,
                    planned_epochs=10, train_seconds=44 * fmean(turns), accuracy=None,
                    best_accuracy=None, test_loss=None, score=None, epoch_seconds=[], replicas=1,
                    **({"peak_memory_bytes": [memory[cell] + number]} if memory else {}),
                    **({"stretch_seconds": stretched[cell] * fmean(turns) * chance.gauss(1, 0.004)}
                       if cell in (stretched or {}) else {}),
                    **({"grad_scaler": amp == "scaler"} if scaled else {}), **changes,
                ))  # fmt: skip
        timing.append({**_entry(number, runs), "others": others})
    for seed in range(seeds):
        common, runs = chance.gauss(0.8, 0.004), []
        for cell, base in seconds.items():
            parallel, amp, _ = cell
            score = common - (lost or {}).get(cell, 0.0) + chance.gauss(0, 0.0005)
            runs.append(f"runs/{seed}_{cell}")
            _write(folder / runs[-1], result(
                parallel, amp, seed, accuracy=score, score="mean IoU", replicas=1,
                train_seconds=10 * base * chance.uniform(0.5, 1.5), **changes,
            ))  # fmt: skip
        trained.append(_entry(seed, runs))
    cells = [{"parallel": cell.parallel, "amp": cell.amp} for cell in seconds]
    facts = {
        "wall_seconds": 1.0, "runs": 1, "timing": timing, "rounds": trained, "timing_ended": ended,
        "planned_cells": cells, "settings": {"study": {"ask": ask.strip("[]").split(", ")}},
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(facts))
    return folder


def _entry(number: int, runs: list[str]) -> dict[str, Any]:
    return {
        "round": number, "seed": number, "attempt": 0, "part": 0, "shuffled": True, "drift": 0.0,
        "drifted": False, "counted": True, "runs": runs,
    }  # fmt: skip


def _write(folder: Path, content: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(content))


def test_a_clear_best_cell_settles_a_study_that_asks_for_the_best(tmp_path: Path) -> None:
    state = report.timing(study(tmp_path), "best")
    assert (state.settled, state.cells, state.named) == (True, [], "none-autocast")
    assert state.chance is not None
    assert state.chance >= 0.95


def test_before_the_first_timing_round_all_cells_are_to_be_measured(tmp_path: Path) -> None:
    state = report.timing(study(tmp_path, rounds=0), "best")
    assert state == report.TimingState(list(map(str, SECONDS)), False, None, None)


def test_cells_that_cannot_be_the_best_are_measured_no_further(tmp_path: Path) -> None:
    near = {**SECONDS, NONE_SCALER: 1.01, NONE: 1.01, DP: 1.01}
    state = report.timing(study(tmp_path, near, rounds=4, noise=0.02), "best")
    assert not state.settled
    # dp-fp32 is the control of none-fp32 and stays as long as that one does.
    assert state.cells == ["none-fp32", "none-autocast", "none-scaler", "dp-fp32"]


def test_a_study_that_asks_for_all_pairs_goes_on_with_the_cells_of_open_ones(
    tmp_path: Path,
) -> None:
    near = {**SECONDS, DDP_AUTOCAST: 2.63}
    state = report.timing(study(tmp_path, near, noise=0.008), "all")
    assert {"ddp-fp32", "ddp-autocast"} <= set(state.cells)
    assert (state.settled, "none-autocast" in state.cells) == (False, False)


def test_a_cell_with_a_worse_score_is_not_named_and_those_behind_it_are_in_again(
    tmp_path: Path,
) -> None:
    close = {**SECONDS, NONE_SCALER: 1.3, DDP_AUTOCAST: 1.31}
    alone = report.timing(study(tmp_path / "time", close, rounds=4, noise=0.02), "best")
    assert (alone.named, alone.settled) == ("none-autocast", True)
    both = study(
        tmp_path / "both", close, rounds=4, noise=0.02, lost={NONE_AUTOCAST: 0.1}, seeds=5,
        ask="[time, accuracy]",
    )  # fmt: skip
    state = report.timing(both, "best")
    assert state.named in ("none-scaler", "ddp-autocast")
    assert not state.settled
    assert state.cells == ["none-scaler", "ddp-autocast"]


def test_timing_runs_and_training_runs_of_the_same_job_are_one_group(tmp_path: Path) -> None:
    folder = study(tmp_path, seeds=3, ask="[time, accuracy]")
    runs, _ = read_runs(folder)
    assert sum(run.timed for run in runs) == 36
    [group] = groups(runs)
    assert (len(group.timing), len(group.training), group.score) == (36, 18, "mean IoU")


def test_the_answer_says_how_sure_it_is_that_the_cell_is_within_2_percent_of_the_fastest(
    tmp_path: Path,
) -> None:
    shown = report.write(study(tmp_path / "time", noise=0.01))
    chance = report.timing(tmp_path / "time", "best").chance
    assert chance is not None
    assert "none-autocast: " in shown
    assert "confidence within 2 % of the fastest cell; " in shown
    assert "The study asked for times alone" in shown
    assert "Test accuracy" not in shown
    both = report.write(study(tmp_path / "both", seeds=5, ask="[time, accuracy]"))
    assert "confidence within 2 % of the fastest safe cell; " in both
    assert "its mean IoU is safe" in both
    assert "times alone" not in both


def test_where_scores_were_not_asked_no_goal_calls_one_safe_or_counts_seeds(tmp_path: Path) -> None:
    taken = dict.fromkeys(SECONDS, 10**9) | {NONE_AUTOCAST: 9 * 10**8}
    report.write(study(tmp_path, memory=taken))
    content = json.loads((tmp_path / "report" / "report.json").read_text())
    least = next(g for g in content["answer"]["goals"] if g["goal"] == "least memory")
    assert least["cell"] == "none-autocast"
    said = " ".join([least["sentence"], *least["reasons"]])
    assert "safe" not in said
    assert "seed" not in said
    assert "6 timing rounds" in said


def test_without_enough_timing_rounds_the_answer_says_that_it_is_not_shown(tmp_path: Path) -> None:
    shown = report.write(study(tmp_path, rounds=1))
    assert "Not decided yet: train with none-fp32, the simplest of the 5 cells that may be" in shown


def test_what_would_settle_a_score_is_told_in_seeds_and_a_time_in_rounds(tmp_path: Path) -> None:
    lost = {NONE_AUTOCAST: 0.003}
    folder = study(tmp_path, seeds=2, ask="[time, accuracy]", lost=lost)
    report.write(folder)
    content = json.loads((folder / "report" / "report.json").read_text())
    epoch = next(g for g in content["answer"]["goals"] if g["goal"] == "fastest epoch")
    said = " ".join([epoch["sentence"], *epoch["reasons"]])
    assert "none-autocast" in said
    assert re.search(r"not shown safe: about \d+ seeds in all would settle it", said), said
    text = (folder / "report" / "report.md").read_text()
    assert "| rounds | rounds needed |" in re.sub(" +", " ", text)
    assert "| seeds | seeds needed |" in re.sub(" +", " ", text)


def test_times_are_of_timing_rounds_and_scores_of_training_runs(tmp_path: Path) -> None:
    folder = study(tmp_path, seeds=3, ask="[time, accuracy]", stays={DDP: 3})
    shown = report.write(folder)
    content = json.loads((folder / "report" / "report.json").read_text())
    [group] = content["groups"]
    cells = {cell["cell"]: cell for cell in group["cells"]}
    assert group["timing_rounds"] == 6
    assert cells["none-fp32"]["measures"]["seconds"]["n"] == 6
    assert cells["ddp-fp32"]["measures"]["seconds"]["n"] == 3
    assert cells["none-fp32"]["measures"]["accuracy"]["n"] == cells["none-fp32"]["seeds"] == 3
    assert {pair["n"] for pair in group["pairs"]["seconds"]} == {3, 6}
    assert "33 timing runs in 6 timing rounds, 33 ok" in content["conditions"]
    assert "18 runs, 18 ok" in content["conditions"]
    assert any("turns of a process" in phrase for phrase in content["conditions"])
    assert "of 6 rounds" in (folder / "report" / "report.html").read_text()
    assert "0.50)" in shown  # none-autocast's ratio, though training clocks are 50 % off
    settings = content["settings"]
    assert (round(settings["confidence"], 1), settings["score_confidence"]) == (99.3, 95.0)


@pytest.mark.pictures
def test_a_recording_with_timing_runs_rebuilds_to_the_same_files(tmp_path: Path) -> None:
    folder = study(tmp_path, seeds=3, ask="[time, accuracy]")
    report.write(folder)
    names = ("runs.csv", "report.json", "report.md", "report.html")
    before = [(folder / "report" / name).read_bytes() for name in names]
    report.write(folder / "report")
    assert [(folder / "report" / name).read_bytes() for name in names] == before


def test_a_timing_run_that_failed_is_listed_as_one_and_its_cell_is_not_named(
    tmp_path: Path,
) -> None:
    folder = study(tmp_path)
    path = folder / "timing" / "5" / "none-autocast" / "result.json"
    content = {**json.loads(path.read_text()), "status": "failed", "error": "e", "turns": None}
    path.write_text(json.dumps(content))
    state = report.timing(folder, "best")
    assert state.named == "none-scaler"
    assert sum(run.turns == 0 for run in read_runs(folder)[0]) == 1


def test_the_gate_compares_timing_runs(tmp_path: Path) -> None:
    old, new = study(tmp_path / "old"), study(tmp_path / "new", {**SECONDS, NONE: 2.8})
    _, _, failed = report.compare(new, old, 0.03)
    assert failed is not None
    assert "none-fp32" in str(failed)


def test_a_study_of_scores_alone_says_that_its_times_were_not_asked(tmp_path: Path) -> None:
    shown = report.write(study(tmp_path, rounds=0, seeds=3, ask="[accuracy]"))
    assert "The study asked for scores alone" in shown


def test_every_turn_counts_alike_in_the_time_of_a_process() -> None:
    """Training pays for slow steps, too; `train_seconds` may be another mean of the turns."""
    run = run_of_result({
        "folder": "timing/0/ddp-fp32", "status": "ok", "turns": 3, "turn_seconds": [5.0, 1.0, 1.2],
        "steps": 22, "epochs": 2.0, "batch_size": 64, "train_seconds": 22 * 1.1, "no_op": False,
    })  # fmt: skip
    assert run.train_seconds == pytest.approx(22 * 2.4)
    assert run.images_per_second == pytest.approx(64 / 2.4)


def test_turns_that_are_not_like_a_long_stretch_widen_the_range_without_a_verdict(
    tmp_path: Path,
) -> None:
    near = {**SECONDS, NONE_SCALER: 1.08}
    turned = [pair["verdict"] for pair in seconds_pairs(study(tmp_path / "as is", near))]
    off = study(tmp_path / "off", near, stretched={NONE: 1.0, DDP: 0.85})
    content = json.loads((report.write(off) and off / "report" / "report.json").read_text())
    [group] = content["groups"]
    first, second = group["steady"]
    assert (first["cell"], first["held"]) == ("none-fp32", True)
    assert (second["cell"], second["held"], second["n"]) == ("ddp-fp32", False, 6)
    assert second["ratio"] == pytest.approx(1 / 0.85, rel=0.02)
    assert group["floor"] == pytest.approx(second["ratio"] - 1)
    pairs = {(pair["first"], pair["second"]): pair for pair in group["pairs"]["seconds"]}
    assert pairs["none-autocast", "none-scaler"]["verdict"] == "within the floor"
    assert "within the floor" not in turned
    assert pairs["none-fp32", "none-autocast"]["verdict"] == "faster"
    [said] = [text for text in content["answer"]["caveats"] if "steady-state" in text]
    assert "a step of ddp-fp32 took ×1.17" in said
    page = (off / "report" / "report.html").read_text()
    assert "Turns against a long stretch" in page
    assert "did not hold" in page


def seconds_pairs(folder: Path) -> list[dict[str, Any]]:
    report.write(folder)
    content = json.loads((folder / "report" / "report.json").read_text())
    return list(content["groups"][0]["pairs"]["seconds"])


def test_turns_that_were_held_against_no_stretch_are_said_to_be(tmp_path: Path) -> None:
    said = "No process trained a long stretch after its turns"
    assert said in report.write(study(tmp_path / "without"))
    assert said not in report.write(study(tmp_path / "with", stretched={NONE: 1.0}))


def test_that_other_programs_used_the_machine_during_turns_is_said(tmp_path: Path) -> None:
    assert "The machine was busy" not in report.write(study(tmp_path / "quiet", others=0.04))
    shown = report.write(study(tmp_path / "busy", others=0.32))
    assert "The machine was busy: other programs used 32 % of its CPU time" in shown


def test_a_study_of_times_that_was_interrupted_is_called_unfinished(tmp_path: Path) -> None:
    said = "The study is not finished"
    assert said in report.write(study(tmp_path / "a", rounds=2, ended=None))
    assert said not in report.write(study(tmp_path / "b", rounds=2, ended="budget"))


def test_after_two_noisy_rounds_an_interval_is_not_known_yet(tmp_path: Path) -> None:
    folder = study(tmp_path, rounds=2, noise=0.2)
    report.write(folder)
    content = json.loads((folder / "report" / "report.json").read_text())
    [group] = content["groups"]
    wide = [p for p in group["pairs"]["seconds"] if p["verdict"] == "not enough runs"]
    assert any(pair["low"] is None for pair in wide)
    assert all(pair["low"] is None or pair["low"] > 0.01 for pair in group["pairs"]["seconds"])
    assert any(control["floor"] is None for control in group["controls"])
    text = (folder / "report" / "report.md").read_text()
    assert "not known yet" in text
    assert re.search(r"\d{5,}\.\d", text) is None


def test_while_undecided_the_simplest_cell_that_may_be_the_fastest_is_named_as_that(
    tmp_path: Path,
) -> None:
    near = {**SECONDS, NONE: 1.0, DP: 1.0, DDP_AUTOCAST: 0.97}
    shown = report.write(study(tmp_path, near, rounds=4, noise=0.03))
    answer = shown.partition("\n")[0]
    assert answer.startswith("answer: Not decided yet: train with none-fp32, the simplest of the ")
    sure = r"(with [\d.]+ % confidence|not shown to be) within 2 % of the fastest cell"
    assert re.search(rf"cells that may be the fastest: [\d.]+ s per epoch, {sure}", answer)


def test_a_gradscaler_without_float16_is_never_recommended_over_its_autocast_twin(
    tmp_path: Path,
) -> None:
    near = {**SECONDS, NONE_SCALER: 0.9}
    for dtype, wanted in (("bfloat16", "none-autocast"), ("float16", "none-scaler")):
        folder = study(tmp_path / dtype, near, dtype=dtype, scaled=True)
        shown = report.write(folder)
        assert f"Train with {wanted}: " in shown
        reasons = json.loads((folder / "report" / "report.json").read_text())["answer"]["goals"][0]
        left_out = [text for text in reasons["reasons"] if "has a GradScaler besides" in text]
        assert len(left_out) == (dtype == "bfloat16")


def test_the_answer_says_for_which_cells_it_is_open_whether_the_score_is_safe(
    tmp_path: Path,
) -> None:
    folder = study(tmp_path, seeds=2, ask="[time, accuracy]", lost={NONE_AUTOCAST: 0.003})
    answer = report.write(folder).partition("\n")[0]
    assert "Whether the mean IoU is safe is still open for none-autocast" in answer


def test_training_rounds_end_when_the_scores_are_known_whatever_the_times_are(
    tmp_path: Path,
) -> None:
    close = {**SECONDS, NONE_SCALER: 1.005}
    folder = study(tmp_path, close, noise=0.04, rounds=3, seeds=5, ask="[time, accuracy]")
    assert not report.timing(folder, "best").settled
    assert report.settled(folder)


def test_a_study_that_stopped_before_its_scores_does_not_say_that_none_were_asked(
    tmp_path: Path,
) -> None:
    shown = report.write(study(tmp_path, ask="[time, accuracy]"))
    assert "times alone" not in shown
    assert "Train with none-autocast" not in shown  # it is the fastest


def test_a_study_of_scores_alone_ends_when_they_are_known_whatever_the_times_are(
    tmp_path: Path,
) -> None:
    close = {**SECONDS, NONE_SCALER: 1.005}
    assert report.settled(study(tmp_path / "known", close, rounds=0, seeds=5, ask="[accuracy]"))
    lost = {NONE_SCALER: 0.005}
    open_ = study(tmp_path / "open", close, rounds=0, seeds=2, ask="[accuracy]", lost=lost)
    assert not report.settled(open_)


def test_pairs_of_a_cell_that_failed_keep_no_other_cell_in_a_study_of_all_pairs(
    tmp_path: Path,
) -> None:
    near = {**SECONDS, DDP_AUTOCAST: 2.63}
    folder = study(tmp_path, near, noise=0.008)
    before = report.timing(folder, "all").cells
    path = folder / "timing" / "5" / "ddp-autocast" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed", "error": "e"}))
    after = report.timing(folder, "all").cells
    assert "ddp-fp32" in before
    assert "ddp-fp32" not in after
