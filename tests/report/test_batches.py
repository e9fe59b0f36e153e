"""Batch sizes are compared by how soon each reaches the same score, not by the time of an epoch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ninefold.report.answer.answer import build, evidence_of
from ninefold.report.answer.tree import Answer
from ninefold.report.data.recording import gather_recording
from tests.report.test_hosts import environment
from tests.report.test_report import result

SEEDS = 5
NOISE = [0.99, 1.0, 1.01, 0.995, 1.005]  # of a seed, in all of its runs
OWN = [0.998, 1.0, 1.002, 0.999, 1.001]  # of a run


def study(
    folder: Path,
    *settings: tuple[str, int, float, list[float]],
    host: Callable[[int], str] = lambda batch: "a",
    **changes: Any,
) -> Answer:
    """The answer of a study with these (amp, batch, seconds per epoch, score after each epoch).

    host: of the runs with a batch size.
    """
    for number, (amp, batch, per_epoch, scores) in enumerate(settings):
        for seed in range(SEEDS):
            run = folder / "runs" / f"{amp}_{batch}_{seed}"
            run.mkdir(parents=True)
            seconds = per_epoch * NOISE[seed] * OWN[(seed + number) % SEEDS]
            content = result(
                amp=amp,
                seed=seed,
                batch_size=batch,
                epochs=len(scores),
                accuracy=scores[-1] + 0.001 * seed,
                train_seconds=seconds * len(scores),
                epoch_seconds=[seconds] * len(scores),
                environment=environment([host(batch)]),
                **changes,
            )
            (run / "result.json").write_text(json.dumps(content))
            lines = [
                {
                    "epoch": epoch,
                    "step": epoch,
                    "seconds": seconds * epoch,
                    "test_accuracy": score + 0.001 * seed,
                    "test_loss": 0.1,
                }
                for epoch, score in enumerate(scores, 1)
            ]
            (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    facts = {"settings": {"study": {"ask": ["time", "accuracy"]}}}
    (folder / "sweep.json").write_text(json.dumps(facts))
    recording = gather_recording(folder)
    assert recording is not None
    return build(recording, evidence_of(recording)).answer


SLOW = [0.5, 0.7, 0.8, 0.9]
PLAIN = ("fp32", 64, 10.0, SLOW)


def test_the_larger_batch_that_reaches_the_score_first_is_named(tmp_path: Path) -> None:
    answer = study(
        tmp_path,
        PLAIN,
        ("autocast", 64, 6.0, SLOW),
        ("autocast", 128, 5.0, [0.4, 0.6, 0.8, 0.9]),
        ("fp32", 128, 9.0, [0.4, 0.6, 0.8, 0.9]),
    )
    assert answer.lead == (
        "Use none, autocast with batch 128: it reaches the score 2 times as soon."
    )
    assert (answer.cell, answer.decided) == ("none, autocast with batch 128", True)
    assert answer.reasons[0] == "The score to reach is 89.70 % test accuracy."
    assert "0.500 times that of none, fp32 with batch 64 (95 % interval 0.49" in answer.reasons[-1]
    assert any(line.startswith("none, fp32 with batch 128: 9.00 s") for line in answer.reasons)


def test_a_faster_epoch_that_learns_less_is_not_the_answer(tmp_path: Path) -> None:
    """The advice as it is often given: an epoch of large batches takes less time."""
    answer = study(tmp_path, PLAIN, ("autocast", 512, 2.0, [0.2, 0.4, 0.6, 0.7]))
    assert answer.lead == "Keep batch 64: no faster epoch always reaches the score."
    assert any("reached the score in 0 of 5 runs" in line for line in answer.reasons)


def test_a_batch_whose_epoch_takes_longer_is_not_for_the_same_time(tmp_path: Path) -> None:
    answer = study(tmp_path, PLAIN, ("autocast", 128, 11.0, [0.95] * 4))
    assert answer.lead == "Keep batch 64: an epoch of any larger batch takes longer."


def test_a_slower_one_is_told_with_its_ratio(tmp_path: Path) -> None:
    answer = study(tmp_path, ("fp32", 64, 10.0, [0.5, 0.9, 0.9, 0.9]), ("autocast", 128, 9.0, SLOW))
    assert answer.lead == "Keep batch 64: no larger one reaches the score sooner."
    assert "none, autocast with batch 128 takes 1.80" in answer.reasons[-1]


def test_a_smaller_batch_may_be_the_answer_and_the_largest_of_each_cell_is_marked(
    tmp_path: Path,
) -> None:
    card = study(
        tmp_path,
        PLAIN,
        ("autocast", 128, 5.0, SLOW),
        ("autocast", 256, 4.0, [0.2, 0.4, 0.6, 0.7]),
        ("autocast", 512, 12.0, SLOW),
    )
    assert card.cell == "none, autocast with batch 128"
    (line,) = [line for line in card.reasons if "the largest batch for the same time" in line]
    assert line.startswith("none, autocast with batch 256: 4.0")


def test_times_of_different_hosts_are_not_compared(tmp_path: Path) -> None:
    answer = study(
        tmp_path,
        PLAIN,
        ("autocast", 128, 5.0, [0.4, 0.6, 0.8, 0.9]),
        host=lambda batch: "a" if batch == 64 else "b",
    )
    assert (answer.cell, answer.decided) == (None, False)
    assert "a time that cannot be compared" in answer.reasons[-1]


def test_the_same_time_is_no_answer(tmp_path: Path) -> None:
    answer = study(tmp_path, PLAIN, ("autocast", 256, 10.1, SLOW))
    assert answer.lead == "Keep batch 64: no larger one reaches the score sooner."
    assert "none, autocast with batch 256 takes 1.01" in answer.reasons[-1]


def test_a_study_of_one_batch_size_or_of_other_settings_answers_on_speed(tmp_path: Path) -> None:
    assert "times as fast" in study(tmp_path / "one", PLAIN, ("autocast", 64, 5.0, SLOW)).lead
    folder = tmp_path / "other"
    study(folder, PLAIN)
    other = study(folder, ("fp32", 128, 5.0, SLOW), overrides=["optimizer.lr=0.01"])
    assert "batch" not in other.lead


def test_below_the_noise_floor_no_batch_size_is_named(tmp_path: Path) -> None:
    larger = ("autocast", 128, 5.0, [0.4, 0.6, 0.8, 0.9])
    assert study(tmp_path / "passed", PLAIN, larger).decided
    folder = tmp_path / "failed"
    study(folder, PLAIN, larger)
    for seed in range(SEEDS):  # dp does the same work as none, and took 2.5 times as long
        content = json.loads((folder / "runs" / f"fp32_64_{seed}" / "result.json").read_text())
        content |= {"parallel": "dp", "train_seconds": (2.5 + seed / 50) * content["train_seconds"]}
        (copy := folder / "runs" / f"dp_64_{seed}").mkdir()
        (copy / "result.json").write_text(json.dumps(content | {"replicas": 1, "no_op": True}))
    recording = gather_recording(folder)
    assert recording is not None
    answer = build(recording, evidence_of(recording)).answer
    assert answer.lead == "Not decided: none, autocast with batch 128 may reach the score sooner."
