"""The answer: which runs count, what they say, and that the recommendation agrees with them."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ninefold.errors import ConfigError
from ninefold.report import settled, standings, write
from ninefold.report.answer.answer import build, evidence_of
from ninefold.report.answer.caveats import caveats
from ninefold.report.answer.evidence import Evidence, gather_evidence
from ninefold.report.answer.host import bound_by_host
from ninefold.report.answer.pairs import Pairs
from ninefold.report.answer.recommend import Recommendation, excluded, is_settled, recommend
from ninefold.report.answer.tree import Speedup
from ninefold.report.answer.wording import UNFINISHED, sentence
from ninefold.report.answer.wording import reasons as reasons_of
from ninefold.report.data.cell import PLAIN, Cell
from ninefold.report.data.cells import groups
from ninefold.report.data.curves import Point, read_curves
from ninefold.report.data.overlay import overlay_text
from ninefold.report.data.recording import Recording, gather_recording
from ninefold.report.data.rounds import is_unfinished
from ninefold.report.data.runs import Run, read_csv
from ninefold.report.render.heat import panels
from ninefold.report.stats.measures import SECONDS as SECONDS_PER_EPOCH
from ninefold.study_record import StudyRecord
from tests import conftest
from tests.conftest import Shell
from tests.report.studies import (
    CELLS,
    DDP,
    DDP_AUTOCAST,
    DP,
    DP_AUTOCAST,
    NONE,
    NONE_AUTOCAST,
)
from tests.report.test_report import facts_of, failure, result, sweep, table_of


def study(folder: Path, *results: dict, **facts: Any) -> Path:
    """A sweep with facts of its study; `{n}` in them stands for the folder of the n-th run."""
    names = [f"runs/{n}_{run['parallel']}_{run['amp']}" for n, run in enumerate(results)]
    text = json.dumps({"wall_seconds": 1.0, "runs": len(results), **facts})
    for number, name in enumerate(names):
        text = text.replace(f"{{{number}}}", name)
    return sweep(folder, *results, **json.loads(text))


def entry(number: int, runs: list[str], **changes: Any) -> dict[str, Any]:
    """A round of sweep.json."""
    return {
        "round": number, "attempt": 0, "seed": number, "part": 0, "drift": 0.0, "drifted": False,
        "counted": True, "runs": runs, **changes,
    }  # fmt: skip


def test_runs_that_do_not_count_are_listed_and_enter_no_figure(tmp_path: Path) -> None:
    slow = {"train_seconds": 900.0, "notes": ["a note of a slow run"]}
    study(
        tmp_path, result(**slow), result(**slow), result(), result(**slow), result(**slow),
        rounds=[entry(0, ["{1}"], drifted=True, counted=False), entry(0, ["{2}"], attempt=1)],
        burn_in="{0}", superseded=["{3}"],
    )  # fmt: skip
    (tmp_path / "runs" / "4_none_fp32").rename(tmp_path / "superseded")
    attempt = tmp_path / "max_batch" / "0_none-fp32" / "64"
    attempt.mkdir(parents=True)
    (attempt / "result.json").write_text(json.dumps(result()))
    write(tmp_path)
    text = (tmp_path / "report" / "table.md").read_text()
    assert "| none | 2.00 (×1.00) |" in text
    assert "5 runs, 5 ok; 4 not counted; 1 seed per cell" in text
    assert "a note of a slow run" not in text
    for folder, why in (
        ("runs/0_none_fp32", "the burn-in"), ("runs/1_none_fp32", "the machine drifted"),
        ("runs/3_none_fp32", "superseded"), ("superseded", "in no round"),
    ):  # fmt: skip
        assert f"(`{folder}`): {why}" in text.replace("it is ", "")
    assert "max_batch" not in text
    [counted] = [run for run in read_csv(tmp_path / "report" / "runs.csv") if run.counts]
    assert (counted.round, counted.attempt, counted.part) == (0, 1, 0)


def test_what_a_study_resumed_after_a_change_measured_is_a_group_of_its_own(tmp_path: Path) -> None:
    study(
        tmp_path, result(), result(seed=1, train_seconds=40.0),
        rounds=[entry(0, ["{0}"]), entry(1, ["{1}"], part=1)],
    )  # fmt: skip
    write(tmp_path)
    text = (tmp_path / "report" / "table.md").read_text()
    assert text.count("### Seconds per epoch") == 2
    assert "10 epochs, part 2\n" in text


def test_runs_that_stopped_early_at_different_epochs_stand_in_one_table() -> None:
    runs = [replace(run, epochs=3 + (run.seed or 0), planned_epochs=30) for run in runs_of(SECONDS)]
    [group] = groups(runs)
    assert group.title == "convnet on digits, batch 64, 30 epochs"
    assert len(group.runs) == len(runs)


def test_what_another_study_set_is_never_averaged_with_it() -> None:
    runs = [run for study in ("a", "b", None) for run in runs_of({PLAIN: 5.0}, study=study)]
    runs.append(replace(runs[0], seed=9, status="failed", epochs=None))
    titles = {group.title: len(group.runs) for group in groups(runs)}
    common = "convnet on digits, batch 64, 1 epoch"
    assert titles == {
        f"{common}, experiments=a": 7, f"{common}, experiments=b": 6, common: 6,
    }  # fmt: skip


def test_the_folder_of_several_studies_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        study(tmp_path / name, result(), rounds=[entry(0, ["{0}"])])
    with pytest.raises(ConfigError, match=r"holds studies and is none itself; .* such as .*other"):
        write(tmp_path)
    assert not (tmp_path / "report").exists()


def test_curves_are_the_evaluations_of_the_runs(tmp_path: Path) -> None:
    sweep(tmp_path, result(), result("dp"))
    lines = [
        {"step": 5, "epoch": 0.5, "loss": 1.5},
        {"step": 10, "epoch": 1.0, "test_loss": 0.4, "test_accuracy": 0.5, "seconds": 2.5},
        {"step": 20, "epoch": 2.0, "test_loss": None, "test_accuracy": 0.75},
    ]
    damaged = ["[", "1e400}", "1" + 400 * "0" + "}"]
    text = "\n".join([*map(json.dumps, lines), *(f'{{"epoch": 1, "step": 1, "test_accuracy": {each}'
                                                 for each in damaged)])  # fmt: skip
    (tmp_path / "runs" / "0_none_fp32" / "metrics.jsonl").write_text(text)
    write(tmp_path)
    points = read_curves(tmp_path / "report" / "curves.csv")
    assert [(p.epoch, p.step, p.seconds, p.accuracy, p.loss) for p in points] == [
        (1.0, 10, 2.5, 0.5, 0.4), (2.0, 20, None, 0.75, None)
    ]  # fmt: skip
    assert {point.folder for point in points} == {"runs/0_none_fp32"}


EMPTY = StudyRecord()
SECONDS = {NONE: 5.0, NONE_AUTOCAST: 4.0, DDP: 3.0, DDP_AUTOCAST: 2.0}


def runs_of(
    seconds: Mapping[Cell, float],
    accuracy: Mapping[Cell, float] | None = None,
    seeds: int = 6,
    noise: float = 0.005,
    draw: int = 0,
    spread: float = 0.05,
    **changes: Any,
) -> list[Run]:
    """Runs of made-up cells: seconds per epoch, and percent that a cell's accuracy is off."""
    chance = random.Random(draw)
    found = []
    for seed in range(seeds):
        common = chance.gauss(80, 0.4)
        for cell, base in seconds.items():
            parallel, amp, _ = cell
            replicas = 1 if parallel != "ddp" else 2
            points = common + (accuracy or {}).get(cell, 0.0) + chance.gauss(0, spread)
            found.append(Run(
                folder=f"{cell}_{seed}", status="ok", dataset="digits", model="convnet",
                parallel=parallel, amp=amp, seed=seed, replicas=replicas,
                devices=["cpu"] * replicas, batch_size=64, epochs=1, accuracy=points / 100,
                train_seconds=base * chance.gauss(1, noise), images_per_second=1000 / base,
                **{**facts_of(parallel, amp, replicas), **changes},
            ))  # fmt: skip
    return found


def evidence(
    runs: Sequence[Run], points: Sequence[Point] = (), numerics: Mapping[str, Any] | None = None,
    **report: Any,
) -> Evidence:  # fmt: skip
    """What runs come to."""
    [group] = groups(runs)
    return gather_evidence(group, points, StudyRecord(settings={"report": report}), numerics)


def fastest(known: Evidence) -> Recommendation:
    return recommend(known)[0]


def reasons(known: Evidence) -> str:
    return " ".join(reasons_of(fastest(known)))


def test_the_fastest_cell_whose_accuracy_is_safe_is_recommended() -> None:
    found = fastest(evidence(runs_of(SECONDS)))
    assert found.cell == DDP_AUTOCAST
    assert sentence(found).startswith(
        "ddp-autocast: 1.99 s per epoch, with more than 99.9 % confidence within 2 % of the "
        "fastest safe cell; 0.399 times none-"
    )
    assert sentence(found).endswith("its accuracy is safe.")
    assert is_settled(found)


def test_a_faster_cell_that_loses_accuracy_is_named_and_not_recommended() -> None:
    known = evidence(runs_of(SECONDS, {DDP_AUTOCAST: -1.5}))
    assert fastest(known).cell == DDP
    assert "ddp-autocast is faster, 0.66" in reasons(known)
    assert "but its accuracy is worse than none-fp32's: -1.48 points." in reasons(known)


def test_a_faster_cell_that_is_not_shown_safe_is_named_with_what_would_settle_it() -> None:
    known = evidence(runs_of({NONE: 5.0, DDP: 2.0}, spread=0.8))
    found = fastest(known)
    assert found.cell == NONE
    assert "ddp-fp32 is faster" in reasons(known)
    assert "but not shown safe: " in reasons(known)
    assert "would settle it." in reasons(known)
    assert found.open == [DDP]
    assert not is_settled(found)


def test_of_cells_that_tie_the_simplest_is_recommended() -> None:
    found = fastest(evidence(runs_of({**SECONDS, DDP: 2.001, NONE_AUTOCAST: 2.002})))
    assert found.cell == NONE_AUTOCAST
    assert found.tied == [DDP, DDP_AUTOCAST]


def test_what_a_safe_cell_is_faster_than_is_not_recommended_though_it_ties_with_the_best() -> None:
    runs = runs_of({NONE: 5.0, DDP: 4.5, DDP_AUTOCAST: 4.4})
    wild = [
        replace(run, train_seconds=(2.5, 7.0, 4.0, 3.0, 6.0, 3.0)[run.seed or 0])
        if run.cell == DDP_AUTOCAST else run
        for run in runs
    ]  # fmt: skip
    found = fastest(evidence(wild))
    assert found.cell == DDP
    assert "ddp-autocast has the lowest mean" in " ".join(reasons_of(found))


def test_a_copy_is_not_recommended_over_what_it_copies() -> None:
    seconds = {NONE: 5.0, DP: 3.5, NONE_AUTOCAST: 3.0}
    known = evidence(runs_of(seconds, steps=1000))
    assert fastest(known).cell == NONE_AUTOCAST
    assert excluded(DP, known) is not None
    assert not known.comparison.controls[0].held
    said = caveats(known, EMPTY)[0]
    assert "The A/A control did not hold: dp-fp32 does the same work as none-fp32" in said
    assert " ms a step less. " in said
    [slow] = caveats(evidence(runs_of({**seconds, DP: 5.2}, steps=10**5)), EMPTY)
    assert " µs a step more. Some µs a step are the cost of dp's wrapper itself" in slow


def on_gpu(seconds: Mapping[str, float], steps: int) -> Evidence:
    return evidence([
        replace(run, devices=["NVIDIA H200"] * len(run.devices))
        for run in runs_of(seconds, steps=steps)
    ])  # fmt: skip


def test_on_a_gpu_a_copy_of_short_steps_is_no_control_and_the_report_says_why() -> None:
    seconds = {NONE: 5.0, DP: 5.5, NONE_AUTOCAST: 4.9}
    known = on_gpu(seconds, steps=10**4)  # of 0.5 ms, to which the wrapper adds a tenth
    assert known.comparison.controls == []
    verdicts = {(pair.first, pair.second): pair.verdict for pair in known.comparison.seconds}
    assert verdicts[NONE, DP] == "slower"
    assert verdicts[NONE, NONE_AUTOCAST] == "faster"  # no floor hides it
    assert excluded(DP, known) is not None
    (said,) = caveats(known, EMPTY)
    assert said == (
        "dp-fp32 repeats the work of none and is no A/A control here: on a GPU DataParallel itself "
        "takes up to 0.1 ms of a step, which is 0.5 ms long. Longer steps, as of a larger batch, "
        "would make it one."
    )
    both = on_gpu({**seconds, DP_AUTOCAST: 5.5}, steps=10**4)
    (said,) = caveats(both, EMPTY)
    assert said.startswith("dp-fp32 and dp-autocast repeat the work of none and are no A/A control")


def test_on_a_gpu_a_copy_of_long_steps_is_a_control() -> None:
    seconds = {NONE: 5.0, DP: 5.0, NONE_AUTOCAST: 4.9}
    known = on_gpu(seconds, steps=100)
    assert [(c.first, c.second) for c in known.comparison.controls] == [(NONE, DP)]
    assert caveats(known, EMPTY) == []
    assert len(evidence(runs_of(seconds, steps=10**4)).comparison.controls) == 1  # on a CPU


def test_a_copy_that_is_no_control_of_times_computes_the_same_scores() -> None:
    """So two rounds with equal scores are enough to show it, as for every copy."""
    runs = [
        replace(run, devices=["NVIDIA H200"], accuracy=0.8 + 0.01 * (run.seed or 0))
        for run in runs_of({NONE: 5.0, DP: 5.5, NONE_AUTOCAST: 4.9}, seeds=2,
                           steps=10**4)
    ]  # fmt: skip
    known = evidence(runs)
    assert known.safe[DP] == "safe"
    assert known.safe[NONE_AUTOCAST] == "not enough runs"


def test_the_memory_that_ddp_takes_beside_the_allocator_of_a_gpu_is_a_caveat() -> None:
    runs = runs_of({NONE: 5.0, DDP: 4.0}, peak_memory_bytes=[2**30])
    gpus = [
        replace(run, devices=["NVIDIA H200"] * (run.replicas or 1), backend="nccl") for run in runs
    ]
    said = "The peak memory of a GPU is that of PyTorch's allocator"
    assert [any(said in each for each in caveats(evidence(of), EMPTY)) for of in (gpus, runs)] == [
        True, False,
    ]  # fmt: skip


def test_a_gpu_that_holds_more_than_the_others_is_a_caveat() -> None:
    """As the first one of DataParallel, which gathers outputs and gradients."""
    runs = [
        replace(run, devices=["NVIDIA H200"] * 2, peak_memory_bytes=[2**30 * (1 + dp), 2**30])
        for run in runs_of({NONE: 5.0, DP: 4.0})
        for dp in [run.parallel == "dp"]
    ]
    said = [each for each in caveats(evidence(runs), EMPTY) if each.startswith("Memory is spread")]
    assert said == [
        "Memory is spread unevenly, and the fullest GPU limits the batch: GPU 0 of dp-fp32 holds 2 "
        "times what the one with the least does (2.00 and 1.00 GiB)."
    ]


@pytest.mark.parametrize(("more", "told"), [(1.2, False), (1.5, True)])
def test_a_process_that_clearly_holds_more_than_the_others_is_a_caveat(
    more: float, told: bool
) -> None:
    runs = [
        replace(run, devices=["cpu"] * 2, peak_memory_bytes=[2**30, int(2**30 * more)])
        for run in runs_of({NONE: 5.0, DDP: 4.0})
        if run.parallel == "ddp" or run.peak_memory_bytes is not None
    ]
    said = [each for each in caveats(evidence(runs), EMPTY) if "of ddp-fp32 holds" in each]
    assert bool(said) == told
    assert not told or "process 1 of ddp-fp32 holds 1.5 times" in said[0]


@pytest.mark.parametrize(
    ("devices", "load", "told"),
    [
        (["NVIDIA H200"] * 2, [0.95, 0.6],
         "GPU 0 of dp-fp32 is at work 95% of the time, the idlest 60%"),
        (["NVIDIA H200"] * 2, [0.95, 0.9], None),
        (["cpu"] * 2, [0.8, 1.4],
         "process 1 of dp-fp32 takes 1.40 CPU seconds a second, the idlest 0.800"),
        (["cpu", "NVIDIA H200"], [0.8, 1.4], None),  # of two kinds: nothing to compare
        (["NVIDIA H200"] * 2, [], None),  # nothing measured it
    ],
)  # fmt: skip
def test_a_device_that_is_clearly_busier_than_the_others_is_a_caveat(
    devices: list[str], load: list[float], told: str | None
) -> None:
    runs = [
        replace(run, devices=devices, load=load) if run.parallel == "dp" else run
        for run in runs_of({NONE: 5.0, DP: 4.0})
    ]
    said = [each for each in caveats(evidence(runs), EMPTY) if each.startswith("Load is spread")]
    assert said == (
        [f"Load is spread unevenly, and the others wait for the busiest: {told}."] if told else []
    )


def test_a_goal_on_times_heeds_a_control_that_failed_and_memory_does_not() -> None:
    seconds = {NONE: 5.0, DP: 7.5, NONE_AUTOCAST: 4.9}
    runs = runs_of(seconds, peak_memory_bytes=(2**30,))
    points = [Point(run.folder, 1.0, 1, run.train_seconds, 0.9, None) for run in runs]
    [time, target, memory] = recommend(evidence(runs, points, target=0.8))
    assert (time.cell, target.cell, memory.cell) == (NONE, None, NONE)
    assert sentence(time).startswith("Not decided yet: train with none-fp32, the simplest of the 2")
    assert "as a control did not hold" in " ".join(reasons_of(time))
    assert "a control did not hold" in sentence(target)


def test_memory_that_is_the_same_to_the_byte_in_every_round_is_shown_to_differ() -> None:
    runs = [
        replace(run, peak_memory_bytes=[2**30 if run.amp == "fp32" else 2**29])
        for run in runs_of({NONE: 5.0, NONE_AUTOCAST: 4.0})
    ]
    found = recommend(evidence(runs))[-1]
    assert (found.goal.key, found.cell) == ("memory", NONE_AUTOCAST)
    assert "512 MiB, 0.500 times none-fp32's;" in sentence(found)
    assert reasons_of(found)[0] == "It is the same with each of 6 seeds."


def test_memory_to_the_byte_is_shown_to_differ_among_cells_whose_memory_varies() -> None:
    taken = {NONE: [1000] * 6, NONE_AUTOCAST: [970] * 6,
             DDP: [2000, 2300, 1800, 2100, 1700, 2200]}  # fmt: skip
    runs = [
        replace(run, peak_memory_bytes=[taken[run.cell][run.seed or 0] << 20])
        for run in runs_of({NONE: 5.0, NONE_AUTOCAST: 4.0, DDP: 6.0})
    ]
    found = recommend(evidence(runs))[-1]
    assert found.cell == NONE_AUTOCAST
    assert "970 MiB, 0.970 times none-fp32's;" in sentence(found)


def test_what_does_better_and_was_left_out_is_named() -> None:
    runs = runs_of({NONE: 5.0, DDP: 2.0})
    found = fastest(evidence([*runs, replace(runs[1], seed=7, status="failed")]))
    assert found.cell == NONE
    assert sentence(found).endswith("; only ddp-fp32, left out, is shown to do better.")


def test_the_command_asks_for_what_the_overlay_does_not_repeat() -> None:
    overlay = {
        "choices": {"amp": "fp32"}, "values": {}, "left_out": ["dataset.root", "$(rm x)"],
        "taken_away": ["optimizer.fused", "'; rm x"],
    }  # fmt: skip
    known = evidence(runs_of({PLAIN: 5.0}))
    recording = Recording(known.group.runs, {"overlays": {str(PLAIN): overlay}}, [], [])
    answer = build(recording, [known], recommend(known)).answer
    assert answer.train is not None
    assert answer.train.endswith(" experiments=recommended dataset.root=VALUE '~optimizer.fused'")
    assert any("needs values for dataset.root" in caveat for caveat in answer.caveats)


def test_a_cells_ratio_is_one_number_wherever_it_stands() -> None:
    known = evidence(runs_of(SECONDS, noise=0.2))
    for pair in known.comparison.seconds:
        if pair.first == PLAIN:
            assert known.relative(SECONDS_PER_EPOCH)[pair.second] == (pytest.approx(pair.estimate))


def test_reasons_say_what_the_sentence_does_not() -> None:
    for seconds in (SECONDS, {**SECONDS, DDP_AUTOCAST: 3.01}, {**SECONDS, NONE: 1.0}):
        found = fastest(evidence(runs_of(seconds)))
        said = set(sentence(found).rstrip(".").replace(";", ",").split(", "))
        for reason in reasons_of(found):
            assert not said & set(reason.rstrip(".").replace(";", ",").split(", ")), reason
            assert not reason.startswith(f"{found.cell}:")


def test_the_alternative_that_is_worse_keeps_nothing_open() -> None:
    runs = runs_of({NONE: 5.0, DDP: 5.0}, {DDP: -2.0}, noise=0.1)
    found = fastest(evidence(runs))
    assert found.cell == NONE
    assert is_settled(found)


def test_a_cell_with_a_failed_run_is_not_recommended() -> None:
    runs = runs_of(SECONDS)
    known = evidence([replace(runs[3], status="diverged"), *runs[:3], *runs[4:]])
    assert fastest(known).cell == DDP
    assert "ddp-autocast is left out: a run of it ended as diverged." in reasons(known)


def test_a_cell_that_computes_something_else_is_not_recommended() -> None:
    row = {"cell": DDP_AUTOCAST, "verdict": "not the same", "sentence": "Its update is twice."}
    known = evidence(runs_of(SECONDS), numerics={"rows": [row]})
    assert fastest(known).cell == DDP
    assert "do not compute the same. Its update is twice." in reasons(known)


@pytest.mark.parametrize(
    ("cells", "remedy"),
    [
        ([DDP_AUTOCAST], "parallel.sync_batchnorm=true"),
        ([Cell("split", "fp32")], "parallel.chunks=1"),
        (
            [DDP_AUTOCAST, Cell("split", "fp32")],
            "parallel.chunks=1 or parallel.sync_batchnorm=true",
        ),
    ],
)
def test_batch_norm_of_parts_is_said_with_what_uses_the_whole_batch(
    cells: list[Cell], remedy: str
) -> None:
    rows = [{"cell": cell, "verdict": "not the same", "by_design": True} for cell in cells]
    runs = runs_of({**SECONDS, Cell("split", "fp32"): 5.0})
    runs = [replace(run, chunks=4 if run.parallel == "split" else None) for run in runs]
    said = caveats(evidence(runs, numerics={"rows": rows}), EMPTY)
    assert any(f"({remedy} uses the whole batch)" in each for each in said)


@pytest.mark.parametrize("seeds", [1, 2])
def test_with_too_few_runs_the_answer_is_that_and_what_to_run(seeds: int) -> None:
    close = {NONE: 5.0, DDP: 4.9, DDP_AUTOCAST: 5.1}
    found = fastest(evidence(runs_of(close, seeds=seeds, noise=0.05)))
    assert found.cell == NONE
    assert not found.decided
    assert sentence(found).startswith(
        "Not decided yet: train with none-fp32, the simplest of the 3 cells that may be the fastest"
    )
    assert "seeds" in " ".join(reasons_of(found))
    assert not is_settled(found)


@pytest.mark.parametrize("draw", range(40))
def test_a_recommendation_agrees_with_the_verdicts_whatever_the_numbers(draw: int) -> None:
    chance = random.Random(draw)
    seconds = {cell: chance.choice([2, 2.02, 2.5, 4]) for cell in CELLS if chance.random() < 0.8}
    seconds[PLAIN] = 3.0
    off = {name: chance.choice([0.0, 0.0, -0.4, -2.0]) for name in seconds if name != PLAIN}
    runs = runs_of(
        seconds, off, seeds=chance.choice([1, 2, 3, 5, 8]), draw=draw,
        noise=chance.choice([0.002, 0.02, 0.1]), peak_memory_bytes=(2**28,),
    )  # fmt: skip
    runs = [replace(run, status="failed") if chance.random() < 0.01 else run for run in runs]
    known = evidence(runs)
    for found in recommend(known):
        if found.cell is None:
            assert "ot enough runs" in sentence(found) or "No answer" in sentence(found)
            assert found.open
            continue
        assert known.safe[found.cell] == "safe"
        assert excluded(found.cell, known) is None
        assert str(found.cell) in sentence(found)
        if found.goal.key != "seconds":
            continue
        pairs = Pairs(known.comparison)
        for other in known.cells:
            verdict = pairs.verdict(found.cell, other)
            if verdict == "faster" and known.safe[other] == "safe":
                assert "no safe cell" not in sentence(found)
            if verdict == "faster" and excluded(other, known) is None:
                assert known.safe[other] != "safe", (found.cell, other)
                assert any(f"{other} is faster" in reason for reason in reasons_of(found))
            assert (other in found.tied) <= (verdict == "tie" and other != found.cell)
        settled_now = all(
            pairs.verdict(found.cell, other) in ("slower", "tie") or known.safe[other] == "worse"
            for other in known.cells
            if excluded(other, known) is None
        )
        assert settled_now or found.decided or not is_settled(found)


def test_the_way_to_a_target_ends_with_the_epoch_that_reaches_it() -> None:
    runs = runs_of({NONE: 5.0, DDP: 3.0}, seeds=2)
    curve = [(1.0, 5.0, 0.5), (2.0, 10.0, 0.75), (3.0, 15.0, 0.76)]
    points = [
        Point(run.folder, epoch, int(epoch), seconds, accuracy, None)
        for run in runs if run.folder != "ddp-fp32_1" for epoch, seconds, accuracy in curve
    ]  # fmt: skip
    known = evidence(runs, points, target=0.74)
    assert known.to_target is not None
    assert known.values(known.to_target)[NONE] == {0: 10.0, 1: 10.0}
    assert known.short == {DDP: "1 of 2 runs"}
    assert DDP not in known.of_goal("to_target")


def test_without_a_target_it_is_the_baselines_accuracy_less_the_margin() -> None:
    runs = [replace(run, accuracy=0.8) for run in runs_of({NONE: 5.0, DDP: 3.0})]
    assert evidence(runs, margin=2.0).target == pytest.approx(78.0)


def test_a_cell_is_data_bound_if_a_tenth_of_its_steps_goes_into_batches() -> None:
    for data, bound in ((1.0, True), (0.4, False)):
        runs = runs_of({PLAIN: 5.0}, phase_seconds={"data": data, "forward": 4.0})
        assert evidence(runs).waits_for_data(PLAIN) is bound
    assert not evidence(runs_of({PLAIN: 5.0})).waits_for_data(PLAIN)


def test_a_speedup_is_compared_with_the_number_of_devices_and_a_cpu_counts_as_one() -> None:
    runs = runs_of({NONE: 5.0, DDP: 4.0})
    assert evidence(runs).speedup(DDP) == Speedup(1.25, ideal=1, devices=1)
    gpus = [replace(run, devices=["H", "H"]) if run.parallel == "ddp" else run for run in runs]
    assert evidence(gpus).speedup(DDP) == Speedup(1.25, ideal=2, devices=2)


def test_times_pair_by_round_where_a_seed_comes_again() -> None:
    runs = [
        Run(folder=f"{seed}{n}", status="ok", parallel="none", amp="fp32", seed=seed, round=n,
            accuracy=0.5, epochs=1, train_seconds=1.0 + n)
        for n, seed in enumerate((0, 1, 0))
    ]  # fmt: skip
    known = evidence(runs)
    assert known.accuracy == {PLAIN: {0: 50.0, 1: 50.0}}
    assert known.of_goal("seconds")[PLAIN] == {0: 1.0, 1: 2.0, 2: 3.0}


def read_report(folder: Path) -> dict[str, Any]:
    write(folder)
    content = json.loads((folder / "report" / "report.json").read_text())
    assert isinstance(content, dict)
    return content


def test_report_json_holds_what_the_report_says(tmp_path: Path) -> None:
    noise = {"none": (3, 0, 1, 2), "dp": (0, 2, 3, 1), "ddp": (0, 1, 0, 1)}  # hundredths
    results = [
        result(parallel, "fp32", seed, train_seconds=seconds + noise[parallel][seed] / 100,
               accuracy=0.9 + seed / 1000, energy_joules=50.0, energy_source="nvml")
        for seed in range(4) for parallel, seconds in (("none", 20.0), ("dp", 20.0), ("ddp", 10.0))
    ]  # fmt: skip
    lost = [failure("ddp", "scaler"), result(train_seconds=99.0)]
    numbers = iter(range(100))
    study(
        tmp_path, *results, *lost, study="nine_way", command="python train.py",
        rounds=[entry(n, [f"{{{next(numbers)}}}" for _ in range(3)]) for n in range(4)]
        + [entry(4, ["{12}"], drifted=True)],
        burn_in="{13}", looks=3, settings={
            "report": {"margin": 1.0, "same": 0.1, "target": None}, "study": {"drift": 0.2},
        },
        max_batch={"none-fp32": {"batch_size": 4096, "fails_at": 8192, "why": "x"}},
    )  # fmt: skip
    report = read_report(tmp_path)
    assert report["format"] == 1
    assert report["settings"] == {
        "margin": 1.0, "same": 0.1, "level": 0.05, "looks": 3, "target": pytest.approx(89.15),
        "confidence": pytest.approx(98.33, abs=0.01), "drift": 0.2,
    }  # fmt: skip
    assert report["answer"]["goals"][0]["cell"] == "ddp-fp32"
    assert report["answer"]["sentence"].startswith("Train with ddp-fp32: 1.00 s per epoch")
    assert any(
        "drifted in round 5, in each attempt" in caveat for caveat in report["answer"]["caveats"]
    )
    [group] = report["groups"]
    cells = {cell["cell"]: cell for cell in group["cells"]}
    assert list(cells) == ["none-fp32", "dp-fp32", "ddp-fp32", "ddp-scaler"]
    assert cells["ddp-scaler"]["status"] == "failed"
    assert cells["ddp-scaler"]["measures"]["seconds"] is None
    seconds = cells["none-fp32"]["measures"]["seconds"]
    assert seconds["values"] == pytest.approx({"0": 2.003, "1": 2.0, "2": 2.001, "3": 2.002})
    assert (seconds["n"], seconds["relative"]) == (4, 1.0)
    assert cells["none-fp32"]["measures"]["energy"]["mean"] == 5.0
    assert cells["none-fp32"]["measures"]["max_batch"]["mean"] == 4096
    assert cells["none-fp32"]["measures"]["memory"]["mean"] == 200 * 2**20
    kinds = {measure["key"]: measure for measure in group["measures"]}
    assert list(kinds) == [
        "seconds", "throughput", "accuracy", "memory", "energy", "to_target", "max_batch"
    ]  # fmt: skip
    assert kinds["to_target"]["why_not"] == "No run reached it, or none recorded when."
    assert [control["held"] for control in group["controls"]] == [True]
    assert len(group["pairs"]["seconds"]) == 3
    assert [entry["drifted"] for entry in group["rounds"]] == [False] * 4 + [True]
    assert [run["why"] for run in report["runs"] if not run["counted"]] == [
        "the burn-in: it warms the machine up"
    ]
    assert len(report["runs"]) == 14


def test_of_a_search_the_best_trials_have_tables_and_all_are_listed() -> None:
    runs = [
        Run(folder=f"{n}", status="ok", dataset="digits", model="convnet", parallel="none",
            amp="fp32", seed=0, batch_size=64, epochs=1, accuracy=0.5 + n % 12 / 100,
            train_seconds=2.0, overrides=[f"optimizer.lr={n}"])
        for n in range(12)
    ]  # fmt: skip
    text = table_of(Recording(runs, {}, (), ()))
    assert text.count("### Seconds per epoch") == 8
    assert "12 conditions were run. The tables above are of 8 of them" in text
    listed = text.split("## All conditions")[1]
    places = [listed.index(f"optimizer.lr={n} ") for n in reversed(range(12))]
    assert places == sorted(places)


def test_a_study_that_was_stopped_says_so_and_how_to_resume(tmp_path: Path) -> None:
    stopped = {**failure("none", "fp32"), "status": "preempted", "batch_size": 64}
    study(
        tmp_path, result("none", "autocast"), result("ddp"), stopped,
        rounds=[entry(0, ["{0}", "{1}", "{2}"])],
        swept={"parallel": ["none", "ddp"], "amp": ["fp32", "autocast"], "seed": ["0", "1"]},
        planned_rounds=2,
        planned_cells=[
            {"parallel": parallel, "amp": amp}
            for parallel in ("none", "ddp") for amp in ("fp32", "autocast")
        ],
    )  # fmt: skip
    recording = gather_recording(tmp_path)
    assert recording is not None
    found = evidence_of(recording)
    report = build(recording, found, recommend(found[0]))
    assert report.answer.sentence.endswith(f"has no run that ended well. {UNFINISHED}")
    assert UNFINISHED in report.answer.caveats
    fields = {field.place: field for _, row in panels(report.groups[0])[0].rows for field in row}
    assert (fields["none-fp32"].words, fields["ddp-autocast"].words) == ("preempted", "not run")


def test_a_study_is_unfinished_until_each_round_has_each_run_and_each_run_its_end() -> None:
    done = {"swept": {"amp": ["fp32", "bf16"]}, "rounds": [entry(0, ["a", "b"])],
            "planned_rounds": 1, "planned_cells": [{"amp": "fp32"}, {"amp": "bf16"}]}  # fmt: skip
    runs = [
        Run(folder=folder, status=status)
        for folder, status in (("a", "ok"), ("b", "failed"), ("old", "preempted"))
    ]
    assert not is_unfinished(StudyRecord.of(done), runs)
    assert not is_unfinished(EMPTY, runs)
    assert is_unfinished(StudyRecord.of(done), [Run(folder="a", status="unfinished")])
    assert is_unfinished(StudyRecord.of({**done, "rounds": [entry(0, ["a"])]}), runs)
    assert is_unfinished(StudyRecord.of({**done, "planned_rounds": 2}), runs)
    auto = {"settings": {"study": {"repeats": "auto"}}, "planned_rounds": 20}
    assert not is_unfinished(StudyRecord.of({**done, **auto}), runs)
    no_longer_planned = {**done, "rounds": [*done["rounds"], entry(1, ["c"])]}
    assert not is_unfinished(StudyRecord.of(no_longer_planned), runs)


def test_each_group_has_its_own_largest_batches_and_what_is_not_known_of_them() -> None:
    whole_set = {"status": "whole_set", "why": "any"}
    failed = {"status": "failed", "why": "error: device=x: lost; a; b"}
    runs = [
        replace(run, overrides=[f"optimizer.lr={rate}"])
        for rate in ("0.1", "0.01") for run in runs_of({PLAIN: 5.0, DDP: 3.0}, seeds=1)
    ]  # fmt: skip
    sizes = {
        f"{PLAIN} optimizer.lr=0.1": {"batch_size": 4096, "fails_at": 8192, "why": "memory=a: b"},
        "ddp-fp32 optimizer.lr=0.1": {"batch_size": 20000, "fails_at": None, **whole_set},
        "ddp-fp32 optimizer.lr=0.01": {"batch_size": None, "fails_at": None, **failed},
    }  # fmt: skip
    sweep = {"swept": {"optimizer.lr": ["0.1", "0.01"], "parallel": ["none", "ddp"]},
             "max_batch": sizes}  # fmt: skip
    recording = Recording(runs, {"sweep": sweep}, [], [])
    found = evidence_of(recording)
    shown = {}
    for group in build(recording, found, recommend(found[0])).groups:
        last = panels(group)[-1]
        fields = {field.place: field for _, row in last.rows for field in row}
        shown[group.variant] = fields["none-fp32"], fields["ddp-fp32"], last
    plain, more, panel = shown["optimizer.lr=0.1"]
    assert (plain.mean, plain.why) == ("4096", "")
    assert (more.mean[-3:], more.why, more.relative) == ("000", "or more", "")
    assert "the limit is not known" in panel.about
    plain, lost, _ = shown["optimizer.lr=0.01"]
    assert (plain.words, lost.words) == ("not known", "device=x: lost")


def test_settled_and_the_figures_so_far_need_no_report(tmp_path: Path) -> None:
    sweep(tmp_path, result(), result("ddp", train_seconds=10.0))
    assert not settled(tmp_path)
    assert [(row.cell, row.seconds, row.ratio, row.time) for row in standings(tmp_path)] == [
        ("none-fp32", "2.00", "", ""), ("ddp-fp32", "1.00", "×0.500", "")
    ]  # fmt: skip
    assert not (tmp_path / "report").exists()
    for seed in (1, 2, 3):
        for parallel, seconds in (("none", 20.0), ("ddp", 10.0)):
            run = tmp_path / "runs" / f"{parallel}{seed}"
            run.mkdir()
            content = result(parallel, seed=seed, train_seconds=seconds + seed / 100)
            (run / "result.json").write_text(json.dumps(content))
    assert settled(tmp_path)
    plain, faster = standings(tmp_path)
    assert (plain.runs, plain.seconds, plain.time) == (4, "2.00 ± 0.00", "")
    assert (faster.ratio, faster.time) == ("×0.500", "faster")


def test_an_overlay_repeats_nothing_that_names_a_path_or_something_to_call() -> None:
    values = {
        "optimizer": {"lr": 0.5, "_target_": "os.system"},
        "dataset": {"root": "/home/annabel", "limit": "${oc.env:N}"},
        "hydra": {"run": {"dir": "x"}}, "scheduler": {"T_max": "${rm:x}"},
    }  # fmt: skip
    text = overlay_text({"choices": {"amp": "fp32"}, "values": values}, ["why\n- x: y"], "train")
    assert text is not None
    assert text.startswith("# @package _global_\n# why - x: y\n")
    assert yaml.safe_load(text) == {
        "defaults": [{"override /amp": "fp32"}], "optimizer": {"lr": 0.5},
        "dataset": {"limit": "${oc.env:N}"},
    }  # fmt: skip
    bad = {"choices": {"amp": "fp32\nx: y"}, "values": {}}
    assert overlay_text(bad, [], "train") is None


def test_the_recommended_overlay_trains_as_the_run_that_it_recommends(shell: Shell) -> None:
    done = shell.train(
        "-m", "seed=3", "epochs=2", "dataset.limit=300", "optimizer=sgd", "optimizer.lr=0.05",
        "~optimizer.weight_decay", "model.net.width=8", "scheduler=cosine", "numerics=1",
        "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = (
        "seed=3 epochs=2 dataset.limit=300 optimizer=sgd optimizer.lr=0.05 "
        "'~optimizer.weight_decay' model.net.width=8 scheduler=cosine parallel=none amp=fp32"
    )
    assert f"/train.py {words}\n" in done.stdout
    command = "train.py --config-dir sweep/report experiments=recommended '~optimizer.weight_decay'"
    path = shell.folder / "sweep" / "report" / "experiments" / "recommended.yaml"
    assert "takes no key away; the command does: optimizer.weight_decay." in path.read_text()
    overlay = yaml.safe_load(path.read_text())
    del overlay["defaults"]
    assert overlay == {
        "epochs": 2, "dataset": {"limit": 300}, "model": {"net": {"width": 8}},
        "optimizer": {"lr": 0.05},
    }  # fmt: skip
    again = shell.train(*shlex.split(command)[1:], "seed=3", "hydra.run.dir=again")
    assert again.returncode == 0, again.stderr
    [run] = (shell.folder / "sweep").glob("*_none_fp32_seed3")
    before, after = (conftest.result(folder) for folder in (run, shell.folder / "again"))
    assert (after["accuracy"], after["test_loss"]) == (before["accuracy"], before["test_loss"])


def test_a_cell_is_bound_by_the_host_if_its_gpu_is_done_soon_after_a_step_is_queued() -> None:
    """A step takes 10 ms: the GPU of one cell is half of a tenth of it behind, of another five."""
    runs = [
        replace(run, steps=int(100 * (run.train_seconds or 0)), devices=["H"],
                queued_seconds=0.0005 if run.amp == "autocast" else 0.05)
        for run in runs_of({PLAIN: 5.0, NONE_AUTOCAST: 5.5})
    ]  # fmt: skip
    known = evidence(runs)
    assert bound_by_host(known) == [NONE_AUTOCAST]
    (said,) = [line for line in caveats(known, EMPTY) if "the host" in line]
    assert said.startswith("none-autocast waits for the host: ")
    assert "graph=true" in said
    on_a_cpu = evidence(runs_of({PLAIN: 5.0}, steps=500))
    assert bound_by_host(on_a_cpu) == []
    phases = {"phase_seconds": {"data": 1.0, "forward": 4.0}}
    waiting = evidence(runs_of({PLAIN: 5.0}, steps=500, queued_seconds=0.0, **phases))
    assert bound_by_host(waiting) == []  # it is its data that it waits for
