"""Timing in turns: what its rounds show, what is still measured, and what the report says."""

import random
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from ninefold import report
from ninefold.answer import study as answer
from ninefold.answer.cell import Cell
from ninefold.answer.rounds import count_turns
from ninefold.report.data.recording import read_runs
from ninefold.report.data.runs import run_of_result
from ninefold.report.tree import Report
from ninefold.study.plan import PlannedCell
from ninefold.study.record import StudyFolder
from ninefold.study.screen import Screen
from ninefold.study.timing import Timing
from ninefold.tournament.contestant import Look
from ninefold.tournament.rounds import Tournament
from tests.report.made import change, entry, result, sweep, take_turns, write_result
from tests.report.studies import DDP, DDP_AUTOCAST, DP, NONE, NONE_AUTOCAST, NONE_SCALER

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
    stretched: Mapping[Cell, float] | None = None,
    behind: Mapping[Cell, float] | None = None,
    ended: str | None = "rounds",
    scaled: bool = False,
    **changes: Any,
) -> Path:
    """A study with timing rounds, and with runs that were trained as a whole.

    stays: the rounds that a cell took part in, if not all
    lost: the share of the score that a cell loses
    seeds: of training runs; their clock is off by 50 %, up or down
    stretched: seconds of a step of a cell in a long stretch, over those in its turns
    behind: the share of a cell's steps that its GPU is behind in
    ended: why the timing rounds ended; None: they were interrupted
    scaled: whether cells named scaler have a GradScaler
    """
    chance = random.Random(1)
    timed, trained = list[dict](), list[dict]()
    for number in range(rounds):
        common = chance.gauss(1, 0.03)
        for cell, base in seconds.items():
            if number < (stays or {}).get(cell, rounds):
                step = common * base * chance.gauss(1, noise) / 22
                turns = [step * chance.gauss(1, 0.01) for _ in range(5)]
                timed.append(result(
                    cell.parallel, cell.amp, number, turns=5, turn_seconds=turns, steps=44,
                    epochs=2.0, planned_epochs=10, train_seconds=44 * fmean(turns),
                    epoch_seconds=[],
                    **({"stretch_seconds": stretched[cell] * fmean(turns) * chance.gauss(1, 0.004)}
                       if cell in (stretched or {}) else {}),
                    **({"gpu_behind": behind[cell]} if behind else {}),
                    **({"grad_scaler": cell.amp == "scaler"} if scaled else {}), **changes,
                ))  # fmt: skip
    for seed in range(seeds):
        common = chance.gauss(0.8, 0.004)
        for cell, base in seconds.items():
            score = common - (lost or {}).get(cell, 0.0) + chance.gauss(0, 0.0005)
            trained.append(result(
                cell.parallel, cell.amp, seed, score=score, score_name="mean IoU",
                train_seconds=10 * base * chance.uniform(0.5, 1.5), **changes,
            ))  # fmt: skip
    return sweep(
        folder, *trained, timing=take_turns(folder, *timed), timing_ended=ended,
        settings={"study": {"ask": ask.strip("[]").split(", ")}},
        planned_cells=[{"parallel": cell.parallel, "amp": cell.amp} for cell in seconds],
    )  # fmt: skip


def read(folder: Path) -> Report:
    """What is told of a study, as objects."""
    return report.read(folder, "python train.py").report


def look(folder: Path, pairs: str) -> Look:
    """What the timing rounds of a study have shown."""
    return answer.look_at(*read_runs(folder), pairs)


def test_a_clear_best_cell_settles_a_study_that_asks_for_the_best(tmp_path):
    state = look(study(tmp_path), "best")
    assert (state.decided, state.left, state.named) == (True, [], "none-autocast")


def test_where_none_may_be_named_cells_are_measured_until_each_pair_is_decided(tmp_path):
    near = {NONE_AUTOCAST: 1.0, DDP_AUTOCAST: 1.01}
    short = {"dtype": "float16", "grad_scaler": False}
    state = look(study(tmp_path / "near", near, noise=0.06, **short), "best")
    assert (state.decided, state.named, len(state.left)) == (False, None, 2)
    far = {NONE_AUTOCAST: 1.0, DDP_AUTOCAST: 4.0}
    assert look(study(tmp_path / "far", far, noise=0.001, **short), "best").decided


def test_before_the_first_timing_round_all_cells_are_to_be_measured(tmp_path):
    state = look(study(tmp_path, rounds=0), "best")
    assert state == Look(decided=False)


def test_cells_that_cannot_be_the_best_are_measured_no_further(tmp_path):
    near = {**SECONDS, NONE_SCALER: 1.01, NONE: 1.01, DP: 1.01}
    state = look(study(tmp_path, near, rounds=4, noise=0.06), "best")
    assert not state.decided
    # dp-fp32 is the control of none-fp32 and stays as long as that one does.
    assert state.left == ["none-fp32", "none-autocast", "none-scaler", "dp-fp32"]


def test_a_resumed_study_leaves_out_who_was_eliminated_at_the_last_look(tmp_path, monkeypatch):
    near = {**SECONDS, NONE_SCALER: 1.01, NONE: 1.01, DP: 1.01}
    left = look(study(tmp_path / "look", near, rounds=4, noise=0.06), "best").left
    gone = {DDP: 4, DDP_AUTOCAST: 4}
    record = StudyFolder.open(study(tmp_path / "now", near, 5, 0.06, gone, ended=None))
    record.timing_looks, record.timing_seconds = {3: 0.3, 4: 0.4}, 60.0
    record.settings["study"] |= {"pairs": "best", "turns": "auto", "time_budget": 3}
    cells = [PlannedCell({"parallel": cell.parallel, "amp": cell.amp}, ()) for cell in near]
    plan: Any = SimpleNamespace(timed=cells)
    timing = Timing(plan, record, Screen(), lambda *_: None)
    monkeypatch.setattr(Tournament, "run", lambda _: None)
    timing.run()
    assert {*timing.names} == {*left}
    assert record.timing_looks == {3: 0.3, 4: 0.4}  # no level was spent


def test_open_cells_are_measured_further_though_they_lack_a_key_that_is_swept(tmp_path):
    near = {**SECONDS, NONE: 1.01}
    folder = study(tmp_path, near, rounds=4, noise=0.06)
    key, values = "parallel.bucket_cap_mb", ("1", "25")
    for path in folder.glob("timing/*/ddp-*/result.json"):
        change(path, overrides=[f"{key}=1"])
    cells = [
        {"parallel": cell.parallel, "amp": cell.amp, **own}
        for cell in near
        for own in ([{key: value} for value in values] if cell.parallel == "ddp" else [{}])
    ]
    change(folder / "sweep.json", swept={key: values}, planned_cells=cells)
    state = look(folder, "best")
    assert {"none-fp32", "none-autocast"} <= {*state.left}


def test_a_study_that_asks_for_all_pairs_goes_on_with_the_cells_of_open_ones(tmp_path):
    near = {**SECONDS, DDP_AUTOCAST: 2.63}
    state = look(study(tmp_path, near, noise=0.03), "all")
    assert {"ddp-fp32", "ddp-autocast"} <= set(state.left)
    assert (state.decided, "none-autocast" in state.left) == (False, False)


def test_a_cell_with_a_worse_score_is_not_named_and_those_behind_it_are_in_again(tmp_path):
    close = {**SECONDS, NONE_SCALER: 1.3, DDP_AUTOCAST: 1.305}
    alone = look(study(tmp_path / "time", close, rounds=4, noise=0.02), "best")
    assert (alone.named, alone.decided) == ("none-autocast", True)
    both = study(
        tmp_path / "both", close, rounds=4, noise=0.02, lost={NONE_AUTOCAST: 0.1}, seeds=5,
        ask="[time, score]",
    )  # fmt: skip
    state = look(both, "best")
    assert state.named in ("none-scaler", "ddp-autocast")
    assert not state.decided
    assert state.left == ["none-scaler", "ddp-autocast"]


def test_two_timing_rounds_decide_nothing_and_three_a_factor(tmp_path):
    far = {**SECONDS, NONE_SCALER: 2.0, DDP_AUTOCAST: 2.2}
    two = study(tmp_path / "two", far, rounds=2)
    for state in (look(two, "best"), look(two, "all")):
        assert (state.decided, len(state.left)) == (False, len(far))
    answer = read(two).answer
    assert answer.lead == "Too few rounds to tell: none, autocast is the fastest so far."
    assert (answer.decided, answer.train) == (False, None)
    lossy = study(tmp_path / "lossy", far, rounds=2, lost={NONE_AUTOCAST: 0.1}, seeds=5,
                  ask="[time, score]")  # fmt: skip
    lead = read(lossy).answer.lead
    assert lead == "Too few rounds to tell: none, scaler is the fastest acceptable one so far."
    answer = read(study(tmp_path / "three", far, rounds=3)).answer
    assert answer.lead.startswith("Use one process in autocast: 2.0")


def test_times_are_of_timing_rounds_and_scores_of_training_runs(tmp_path):
    folder = study(tmp_path, seeds=3, ask="[time, score]", stays={DDP: 3})
    [group] = read(folder).groups
    of = {
        (str(cell.cell), key): cell.measures[key]
        for cell in group.cells for key in ("seconds", "score")
    }  # fmt: skip
    assert [of[each].n for each in (("none-fp32", "seconds"), ("ddp-fp32", "seconds"))] == [6, 3]
    assert of["none-fp32", "score"].n == 3
    # Training clocks are 50 % off.
    means = [of[cell, "seconds"].mean or 0.0 for cell in ("none-autocast", "none-fp32")]
    assert means[0] / means[1] == pytest.approx(0.5, 0.02)


def test_a_timing_run_that_failed_is_listed_as_one_and_its_cell_is_not_named(tmp_path):
    folder = study(tmp_path)
    path = folder / "timing" / "5" / "none-autocast" / "result.json"
    change(path, status="failed", error="e", turns=None)
    state = look(folder, "best")
    assert state.named == "none-scaler"
    assert sum(run.turns == 0 for run in read_runs(folder)[0]) == 1


def test_every_turn_that_counts_counts_alike_in_the_time_of_a_process():
    """Training pays for slow steps, too; `train_seconds` may be another mean of the turns."""
    run = run_of_result({
        "folder": "timing/0/ddp-fp32", "status": "ok", "turns": 4, "steps": 22, "epochs": 2.0,
        "turn_seconds": [2.8, 1.0, 1.2, 9.0], "turn_others": [0.0, 0.02, 0.0, 0.4],
        "batch_size": 64, "train_seconds": 22 * 1.1, "no_op": False,
    })  # fmt: skip
    count_turns([run])
    assert run.counted_seconds == pytest.approx(22 * 5 / 3)
    assert run.throughput == pytest.approx(64 * 3 / 5)
    assert [turn.left_out for turn in run.taken] == [None, None, None, "other programs"]


def test_cells_that_wait_for_the_host_are_compared_by_their_long_stretches(tmp_path):
    stretched = {cell: 0.8 if cell == DDP else 1.0 for cell in SECONDS}
    behind = {cell: 0.1 if cell == DDP else 0.9 for cell in SECONDS}
    by_turns = read(study(tmp_path / "turns", SECONDS, stretched=stretched)).groups[0]
    found = read(
        study(tmp_path / "alone", SECONDS, stretched=stretched, behind=behind, phase_seconds={})
    )
    [group] = found.groups
    first, alone = (each.comparison.pair(NONE, DDP) for each in (by_turns, group))
    assert alone.speedup == pytest.approx(first.speedup / 0.8, rel=0.02)
    others = NONE, NONE_AUTOCAST
    assert group.comparison.pair(*others).speedup == by_turns.comparison.pair(*others).speedup
    assert any("up to 10 % too small" in text for text in found.answer.caveats)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([0.0, 0.05, 0.0, 0.02, 0.0], ""),
        ([0.3, 0.05, 0.0, 0.02, 0.0], "20 % of the turns were disturbed and left out."),
        (
            [0.3, 0.25, 0.4, 0.02, 0.0],
            "These are times under load: other programs used 25 % of the CPU, in most turns.",
        ),
        (
            [0.6, 0.65, 0.7, 0.62, 0.6],
            "These times say little about the machine alone: other programs used 62 % of the CPU",
        ),
    ],
)
def test_each_state_of_the_machine_has_its_sentence(tmp_path, others, said):
    answer = read(study(tmp_path, turn_others=others)).answer
    assert said in " ".join(answer.caveats)
    assert ("of the turns" in " ".join(answer.caveats)) == ("of the turns" in said)
    assert answer.lead.startswith("Under load: ") == ("say little" in said)


def test_where_nothing_else_was_measured_one_round_beside_other_programs_is_enough(tmp_path):
    alone = study(tmp_path, {NONE: 5.0}, rounds=1, turn_others=[0.7] * 5)
    answer = read(alone).answer
    assert answer.lead == (
        "No other configuration was measured under the same conditions as none, fp32."
    )
    assert answer.decided
    assert answer.train


def test_what_is_told_of_left_out_turns_is_of_those_of_all_groups_as_is_what_counts(tmp_path):
    for number, (place, size) in product(range(2), enumerate((32, 64, 128))):
        busy = [0.5 if number == 0 and turn in (3, 4, 5) else 0.0 for turn in range(8)]
        write_result(tmp_path / f"timing/{number}/batch-{size}", result(
            seed=number, batch_size=size, turns=8, turn_others=busy,
            turn_seconds=[1e-4 * size] * 8,
            turn_begins=[100 * number + 3 * turn + place for turn in range(8)],
        ))  # fmt: skip
    rounds = [entry(n, [f"timing/{n}/batch-{size}" for size in (32, 64, 128)]) for n in range(2)]
    sweep(tmp_path, timing=rounds)
    found = report.read(tmp_path, "python train.py")
    left = [turn.left_out for run in found.recording.runs for turn in run.taken if turn.left_out]
    assert left == ["other programs"] * 9
    assert [group.turns_left_out for group in found.report.groups] == [9 / 48] * 3
    assert "19 % of the turns were disturbed and left out." in " ".join(found.report.answer.caveats)
    assert "without 19 % of the turns, which were disturbed" in (found.picture or "")


def test_after_one_round_of_one_turn_an_interval_is_not_known_yet(tmp_path):
    runs = [result(*cell[:2], train_seconds=10 * took) for cell, took in SECONDS.items()]
    [group] = read(sweep(tmp_path, *runs, turns=True)).groups
    assert {(pair.verdict, pair.low) for pair in group.comparison.seconds} == {("open", None)}
    assert group.comparison.control.low is None
    assert group.check[0].startswith("A/A test inconclusive (interval not known yet): ")


def test_a_gradscaler_without_float16_is_never_recommended_over_its_autocast_twin(tmp_path):
    near = {**SECONDS, NONE_SCALER: 0.9}
    for dtype, wanted in (("bfloat16", NONE_AUTOCAST), ("float16", NONE_SCALER)):
        answer = read(study(tmp_path / dtype, near, dtype=dtype, scaled=True)).answer
        assert answer.cell == wanted
        left_out = [text for text in answer.reasons if "only float16 needs a GradScaler" in text]
        assert len(left_out) == (dtype == "bfloat16")


def test_pairs_of_a_cell_that_failed_keep_no_other_cell_in_a_study_of_all_pairs(tmp_path):
    near = {**SECONDS, DDP_AUTOCAST: 2.63}
    folder = study(tmp_path, near, noise=0.03)
    before = look(folder, "all").left
    change(folder / "timing" / "5" / "ddp-autocast" / "result.json", status="failed", error="e")
    after = look(folder, "all").left
    assert "ddp-fp32" in before
    assert "ddp-fp32" not in after
