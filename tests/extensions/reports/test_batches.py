"""Batch sizes are compared by how soon each reaches the same score, not by the time of an epoch."""

from pathlib import Path
from typing import Any

import pytest

from ninefold.answer.answer import Answer
from ninefold.answer.runs import Point
from ninefold.report.data.recording import Recording
from tests.extensions.reports.made import STEPS, run, timed
from tests.report.made import built

SEEDS = 5
NOISE = [0.99, 1.0, 1.01, 0.995, 1.005]  # of a round, in all of its runs
OWN = [0.998, 1.0, 1.002, 0.999, 1.001]  # of a run
SLOW = [0.5, 0.7, 0.8, 0.9]
PLAIN = ("fp32", 64, 10.0, SLOW)

Setting = tuple[str, int, float, list[float]]  # amp, batch, seconds an epoch, score after each


def answer(
    *settings: Setting,
    turns: int = SEEDS,
    seeds: int = SEEDS,
    copy: float = 0.0,
    copied: int = SEEDS,
    apart: bool = False,
    fails: int | None = None,
) -> Answer:
    """The answer of a study with these settings; its training runs are 50 % off.

    turns: its timing rounds. seeds: of its training runs.
    copy: times as long as none, dp takes for its work. copied: in so many rounds.
    apart: whether all settings but the first have another learning rate.
    fails: the place of a setting of which a run failed.
    """
    runs, points = [], []
    for number, (amp, batch, per_epoch, scores) in enumerate(settings):
        changes: Any = {"overrides": ["optimizer.lr=0.01"]} if apart and number else {}
        step = per_epoch / (STEPS * 64 / batch)
        for seed in range(SEEDS):
            off = [1.5, 0.5][(seed + number) % 2]
            accuracy = scores[-1] + 0.001 * seed
            status = "failed" if (number, seed) == (fails, SEEDS - 1) else "ok"
            trained = run(
                "none", amp, seed, step * off, batch, score=accuracy, status=status, **changes
            )
            if seed < seeds:
                runs.append(trained)
            points += [
                Point(
                    trained.folder, epoch, epoch, epoch * off * per_epoch, score + 0.001 * seed, 0
                )
                for epoch, score in enumerate(scores, 1)
            ]
            own = step * NOISE[seed] * OWN[(seed + number) % SEEDS]
            if seed < turns:
                runs.append(timed("none", amp, seed, own, batch, **changes))
            if seed < min(turns, copied) and copy and number == 0:
                slower = {"replicas": 1, "no_op": True}
                runs.append(timed("dp", amp, seed, own * (copy + seed / 50), batch, **slower))
    study = {"ask": ["time", "score"], "time_budget": 3}
    sweep = {
        "settings": {"study": study},
        "command": "train.py",
        "timing": [{"round": number} for number in range(turns)],
    }
    return built(Recording(runs, {"sweep": sweep}, points, [], Path("mine"))).answer


def test_the_larger_batch_that_reaches_the_score_first_is_named():
    found = answer(
        PLAIN,
        ("autocast", 64, 6.0, SLOW),
        ("autocast", 128, 5.0, [0.4, 0.6, 0.8, 0.9]),
        ("fp32", 128, 9.0, [0.4, 0.6, 0.8, 0.9]),
    )
    assert (
        found.lead == "Use none, autocast with batch 128: it reaches the score 2.00 times as soon."
    )
    assert (found.cell, found.decided) == ("none, autocast with batch 128", True)
    assert found.train is None
    assert found.reasons[0] == "The score to reach is 89.70 % test accuracy."
    assert "2.00 times as soon as none, fp32 with batch 64 (9" in found.reasons[-1]
    assert any(line.startswith("none, fp32 with batch 128: 9.00 s") for line in found.reasons)


@pytest.mark.parametrize(
    ("settings", "lead", "said"),
    [
        ([PLAIN, ("autocast", 512, 2.0, [0.2, 0.4, 0.6, 0.7])],  # the advice as often given
         "Keep batch 64: no faster epoch always reaches the score.",
         "reached the score in 0 of 5 runs"),
        ([PLAIN, ("autocast", 128, 11.0, [0.95] * 4)],
         "Keep batch 64: an epoch of every larger one compared takes longer.", "11.0 s per epoch"),
        ([("fp32", 64, 10.0, [0.5, 0.9, 0.9, 0.9]), ("autocast", 128, 9.0, SLOW)],
         "Keep batch 64: no larger one reaches the score sooner.",
         "none, autocast with batch 128 reaches the score 0.56 times"),
        ([PLAIN, ("autocast", 256, 10.1, SLOW)],
         "Keep batch 64: no larger one reaches the score sooner.",
         "none, autocast with batch 256 reaches the score 0.99 times"),
        ([PLAIN, ("autocast", 256, 10.1, [0.5, 0.7, 0.8945, 0.9])],  # two seeds are there sooner
         "Not decided: none, autocast with batch 256 may reach the score sooner.",
         "none, autocast with batch 256 reaches the score 1.11 times"),
        ([PLAIN, ("autocast", 128, 5.0, SLOW), ("autocast", 256, 4.0, [0.2, 0.4, 0.6, 0.7]),
          ("autocast", 512, 12.0, SLOW)],
         "Use none, autocast with batch 128: it reaches the score 2.00 times as soon.",
         "none, autocast with batch 256: 4.0"),
    ],
)  # fmt: skip
def test_what_counts_is_the_score_per_second(settings, lead, said):
    found = answer(*settings)
    assert found.lead == lead
    assert any(said in line for line in found.reasons)


@pytest.mark.parametrize(
    ("seeds", "turns", "advice"), [(3, 5, "seed=0,1,2,3,4"), (3, 3, "study.time_budget=3")]
)
def test_seeds_that_differ_by_chance_decide_nothing_and_where_they_are_few_more_are_advised(
    seeds, turns, advice
):
    lucky = ("fp32", 128, 9.9, [0.5, 0.8945, 0.9, 0.9])  # 3, 3 and 2 epochs to the score
    found = answer(PLAIN, lucky, seeds=seeds, turns=turns)
    assert found.lead == "Not decided: none, fp32 with batch 128 may reach the score sooner."
    assert found.surer is not None
    assert found.surer.command == f"python train.py study.resume=mine {advice}"


def test_a_cell_that_is_no_setting_takes_no_answer_from_the_others():
    larger = ("autocast", 128, 5.0, SLOW)
    assert answer(PLAIN, larger, copy=1.0, copied=1).lead == answer(PLAIN, larger).lead


def test_whole_runs_have_their_seconds_and_no_verdict():
    found = answer(PLAIN, ("autocast", 128, 5.0, SLOW), turns=0)
    assert found.lead == "No verdict on batch sizes: times were not interleaved."
    assert (found.cell, found.decided) == (None, False)
    assert found.reasons[1].endswith("s to the score.")
    assert "times as soon" not in found.reasons[-1]


def test_after_two_timing_rounds_nobody_is_told_what_to_use():
    found = answer(PLAIN, ("autocast", 128, 5.0, SLOW), turns=2)
    assert found.lead == "Too few rounds to tell which batch to use."
    assert not found.decided


def test_a_study_of_one_batch_size_or_of_other_settings_has_another_answer():
    assert "times as fast" in answer(PLAIN, ("autocast", 64, 5.0, SLOW)).lead
    other = answer(PLAIN, ("fp32", 128, 5.0, SLOW), apart=True)
    assert other.lead.endswith("have the best accuracy: 90.20 %.")


def test_a_batch_of_which_a_run_failed_is_left_out_and_not_told_to_be_slower():
    larger = ("autocast", 128, 5.0, SLOW), ("fp32", 128, 11.0, SLOW)
    found = answer(PLAIN, *larger, fails=1)
    assert found.lead == "Keep batch 64: an epoch of every larger one compared takes longer."
    assert found.reasons[-1] == ("Left out, as a run of it failed: none, autocast with batch 128.")


def test_below_the_noise_floor_no_batch_size_is_named():
    slower = answer(PLAIN, ("autocast", 128, 11.0, SLOW), copy=2.5)
    assert slower.lead == "Not decided: an epoch of a larger batch may take no longer."
    assert not slower.decided
    larger = ("autocast", 128, 5.0, [0.4, 0.6, 0.8, 0.9])
    assert answer(PLAIN, larger).decided
    found = answer(PLAIN, larger, copy=2.5)  # dp does the same work as none
    assert found.lead == "Not decided: none, autocast with batch 128 may reach the score sooner."
