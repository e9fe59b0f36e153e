"""The answer: which runs count, what they say, and that the recommendation agrees with them."""

import json
import random
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.decision import decide, left_of_best
from ninefold.answer.grouping import groups
from ninefold.answer.leads import lead
from ninefold.answer.next_steps import NextSteps
from ninefold.answer.notes import notes
from ninefold.answer.reasons import reasons as reasons_of
from ninefold.answer.reasons import trains
from ninefold.answer.rounds import is_unfinished
from ninefold.answer.runs import Point, Run
from ninefold.answer.study import against
from ninefold.answer.study_facts import (
    FAILED_RUN,
    OTHER,
    SHORT_WEIGHTS,
    UNSCALED,
    WITHIN,
    StudyFacts,
)
from ninefold.errors import ConfigError
from ninefold.report import read, write
from ninefold.report.data.conditions import conditions
from ninefold.report.data.csv_files import read_records
from ninefold.report.data.environment import gather
from ninefold.report.data.recording import Recording, find_recording
from ninefold.report.loop_settings import CAST, settings
from ninefold.report.render.results import results
from ninefold.study_record import StudyRecord
from tests.report import golden
from tests.report.made import (
    EMPTY,
    SECONDS,
    TIMED,
    answer_of,
    built,
    entry,
    evidence,
    failure,
    in_turns,
    numerics_of,
    report_of,
    result,
    runs_of,
    sweep,
    whole,
)
from tests.report.studies import (
    CELLS,
    DDP,
    DDP_AUTOCAST,
    DP,
    NONE,
    NONE_AUTOCAST,
    NONE_SCALER,
)


@pytest.mark.parametrize("name", golden.STUDIES)
def test_the_report_of_a_study_is_the_one_that_is_written_down(tmp_path, name):
    do = "run python -m tests.report.golden, and read the difference"
    written = golden.FOLDER / f"{name}.json"
    assert golden.text_of(golden.STUDIES[name](tmp_path / name)) == written.read_text(), do


def test_runs_that_stopped_early_at_different_epochs_stand_in_one_table():
    runs = [replace(run, epochs=3 + (run.seed or 0), planned_epochs=30) for run in runs_of(SECONDS)]
    [group] = groups(runs)
    assert group.title == "convnet on digits, batch 64, 30 epochs"
    assert len(group.runs) == len(runs)


def test_what_another_study_set_is_never_averaged_with_it():
    runs = [run for study in ("a", "b", None) for run in whole(runs_of({PLAIN: 5.0}, study=study))]
    runs.append(replace(runs[0], seed=9, status="failed", epochs=None))
    titles = {group.title: len(group.runs) for group in groups(runs)}
    common = "convnet on digits, batch 64, 1 epoch"
    assert titles == {
        f"{common}, experiments=a": 7, f"{common}, experiments=b": 6, common: 6,
    }  # fmt: skip


def test_the_folder_of_several_studies_is_refused(tmp_path):
    for name in ("one", "other"):
        sweep(tmp_path / name, result(), rounds=[entry(0, ["runs/0_none_fp32"])])
    with pytest.raises(ConfigError, match=r"holds studies and is none itself; .* such as .*other"):
        write(tmp_path)
    assert not (tmp_path / "report").exists()


def test_curves_are_the_evaluations_of_the_runs(tmp_path):
    sweep(tmp_path, result(), result("dp"))
    lines = [
        {"step": 5, "epoch": 0.5, "loss": 1.5},
        {"step": 10, "epoch": 1.0, "test_loss": 0.4, "test_score": 0.5, "seconds": 2.5},
        {"step": 20, "epoch": 2.0, "test_loss": None, "test_score": 0.75},
    ]
    damaged = [
        f'{{"epoch": 1, "step": 1, "test_score": {each}' for each in ("[", "1e400}", "2e15}")
    ]
    text = "\n".join([*map(json.dumps, lines), *damaged])
    (tmp_path / "runs" / "0_none_fp32" / "metrics.jsonl").write_text(text)
    write(tmp_path)
    points = read_records(tmp_path / "report" / "curves.csv", Point)
    assert [(p.epoch, p.step, p.seconds, p.score, p.loss) for p in points] == [
        (1.0, 10, 2.5, 0.5, 0.4), (2.0, 20, None, 0.75, None)
    ]  # fmt: skip
    assert {point.folder for point in points} == {"runs/0_none_fp32"}


def reasons(known: StudyFacts) -> str:
    return " ".join(reasons_of(decide(known)))


def test_the_verdict_of_a_row_is_against_the_recommended_one_as_the_answer_is():
    runs = runs_of({NONE: 5.0, DDP: 2.0, NONE_AUTOCAST: 2.5, DDP_AUTOCAST: 2.001})
    found = report_of(runs)
    assert found.answer.lead == "Use ddp, fp32: 2.48 times as fast as none, fp32."
    table = results(found.groups[0])
    titles = [column.title for column in table.columns]
    verdict, speedup = titles.index("vs best"), titles.index("speedup, 95 % interval")
    words = {row[0].text: row[verdict].word for row in table.rows}
    assert {name: word and word.text for name, word in words.items()} == {
        "ddp, fp32": "use this", "ddp, autocast": "as fast", "none, autocast": "slower",
        "none, fp32": "slower",
    }  # fmt: skip
    assert all(row[speedup].word is None for row in table.rows)
    undecided = report_of(runs_of({NONE: 5.0, DDP: 2.0, NONE_AUTOCAST: 2.05}, noise=0.06))
    assert undecided.answer.lead.startswith("Not decided")
    cells = {cell.cell: cell.against for cell in undecided.groups[0].cells}
    assert cells == {NONE: "slower", DDP: "open", NONE_AUTOCAST: "open"}


def test_what_is_left_out_is_not_called_slower_while_nothing_is_named():
    seconds = {NONE: 5.0, DDP: 4.98, NONE_AUTOCAST: 3.0}
    runs = [run for run in runs_of(seconds, noise=0.05) if run.timed]
    short = {"dtype": "float16", "grad_scaler": False}
    found = decide(evidence([
        replace(run, **short if run.cell == NONE_AUTOCAST else {}) for run in runs
    ]))  # fmt: skip
    assert (found.decided, found.facts.excluded(NONE_AUTOCAST)) == (False, UNSCALED)
    assert against(found, NONE_AUTOCAST) == "faster"


def test_a_copy_of_what_was_not_measured_is_a_candidate_whose_times_are_to_be_decided():
    runs = [run for run in runs_of({DP: 5.0, DDP: 4.9}, noise=0.2, no_op=None) if run.timed]
    known = evidence([replace(run, no_op=run.parallel == "dp") for run in runs])
    assert not decide(known).decided
    assert set(left_of_best(known)[1]) == {DP, DDP}


def test_slower_and_out_is_who_the_interval_of_the_pair_shows_to_be_it():
    for draw in range(40):
        runs = runs_of({NONE: 5.0, DDP: 7.0}, seeds=3, noise=0.15, draw=draw)
        found = decide(evidence([run for run in runs if run.timed]))
        [other] = {NONE, DDP} - {found.named}
        speed = found.facts.speedup(other, found.named)
        shown = speed.high is not None and speed.high < 1
        assert (against(found, other) == "slower") == (other not in found.may_be) == shown


NEAR = {**SECONDS, DDP: 2.001, NONE_AUTOCAST: 2.002}


@pytest.mark.parametrize(
    ("seconds", "accuracy", "changes", "said", "reason"),
    [
        ({NONE: 5.0, NONE_AUTOCAST: 3.0}, {}, {},
         "Use one process in autocast: 1.67 times as fast as fp32.",
         "It is 1.67 times as fast as none, fp32"),
        ({NONE: 5.0, DDP: 3.0}, {DDP: -2.0}, {},
         "Use one process in fp32: nothing acceptable is more than 2 % faster.",
         "ddp, fp32 is faster, but its accuracy is worse: -1.98 points."),
        ({NONE: 5.0, DDP: 8.0}, {DDP: -2.0}, {}, "Use one process in fp32: all others are slower.",
         "none, fp32 takes 4.99 s"),
        ({NONE: 5.0}, {}, {},
         "No other configuration was measured under the same conditions as none, fp32.", "4.98 s"),
        ({NONE: 5.0, DDP: 2.0}, {}, {"spread": 0.8},
         "Not decided: whether ddp, fp32 keeps accuracy is open.", "keeps accuracy"),
        ({NONE: 5.0, DDP: 2.0, NONE_AUTOCAST: 2.1}, {}, {"spread": 0.8},
         "Not decided: accuracy of 2 configurations is still open.", "Still possible"),
        (SECONDS, {DDP_AUTOCAST: -1.5}, {}, "Use ddp, fp32: 1.66 times as fast as none, fp32.",
         "ddp, autocast is faster, but its accuracy is worse: -1.48 points."),
        (NEAR, {}, {"noise": 0.002},
         "Use one process in autocast: 2.49 times as fast as fp32.",
         "It is 2.49 times as fast as none, fp32"),  # of cells that tie the simplest is named
    ],
)  # fmt: skip
def test_the_answer_says_which_configuration_and_why(seconds, accuracy, changes, said, reason):
    found = decide(evidence(runs_of(seconds, accuracy, **changes)))
    assert lead(found) == said
    assert reason in " ".join(reasons_of(found))
    assert found.decided is (not said.startswith("Not decided"))
    assert bool(found.unscored) is not found.decided  # as only scores are open here
    rivals = found.decided and len(found.candidates) > 1
    assert ("% confidence." in " ".join(reasons_of(found))) is rivals


def test_a_copy_that_alone_was_measured_is_compared_with_nothing():
    timed = [run for run in runs_of({DP: 5.0}, no_op=True) if run.timed]
    said = "No other configuration was measured under the same conditions as dp, fp32."
    assert lead(decide(evidence(timed))) == said


def test_where_all_others_repeat_the_work_of_one_the_answer_says_so():
    untimed = replace(evidence(runs_of({NONE: 5.0})), copies={NONE_AUTOCAST: NONE})
    timed = evidence(runs_of({NONE: 5.0, DP: 5.0}))
    for found in (untimed, timed):
        said = "Use one process in fp32: all others only repeat its work."
        assert lead(decide(found)) == said


def test_whole_runs_answer_on_scores_and_claim_nothing_on_times():
    answer = answer_of(whole(runs_of({NONE: 5.0, NONE_AUTOCAST: 4.0, DP: 5.0, DDP: 3.0})))
    assert answer.lead == "All 2 other configurations keep accuracy."
    assert (answer.cell, answer.chance, answer.train) == (None, None, None)
    assert answer.reasons == []
    assert any(
        "not interleaved: study.ask=[time] compares speed" in said for said in answer.caveats
    )
    off = {DDP: -2.0, NONE_AUTOCAST: -0.45}
    known = whole(runs_of({NONE: 5.0, NONE_AUTOCAST: 4.0, DDP: 3.0}, off, spread=0.2))
    assert evidence(known).comparison.seconds == []
    answer = answer_of(known)
    assert answer.lead == "Accuracy: lost by 1, still open for 1 of 2 configurations."


def test_what_is_not_decided_has_no_confidence_and_no_command_that_trains():
    runs = runs_of({NONE: 5.0, DDP: 4.9, NONE_AUTOCAST: 5.1}, noise=0.1)
    answer = answer_of(runs)
    assert answer.lead == "Not decided: 3 of 3 configurations may be the fastest."
    assert (answer.decided, answer.chance, answer.train) == (False, None, None)
    assert not any("confidence" in reason for reason in answer.reasons)


def test_what_all_that_may_be_the_fastest_share_is_named_before_the_rest_is_decided():
    seconds = {NONE: 5.0, NONE_AUTOCAST: 3.0, DDP_AUTOCAST: 2.95}
    assert (
        answer_of(runs_of(seconds, noise=0.05)).lead
        == "Use autocast. Not decided: one process or ddp."
    )
    answer = answer_of(runs_of({NONE: 5.0, DDP: 3.0, DDP_AUTOCAST: 2.95}, noise=0.05))
    assert answer.lead == "Use ddp. Not decided: fp32 or autocast."
    assert (answer.decided, answer.train) == (False, None)


def test_a_copy_is_never_named_and_stands_in_no_table_and_no_plot():
    runs = runs_of({NONE: 5.0, DP: 4.0, NONE_AUTOCAST: 3.0}, steps=1000)
    report = report_of(runs)
    assert report.answer.cell == NONE_AUTOCAST
    [group] = report.groups
    assert [str(cell.cell) for cell in group.shown] == ["none-fp32", "none-autocast"]
    assert not any("dp" in reason for reason in report.answer.reasons)
    control, floor = group.check
    assert control.startswith("A/A test failed: dp does the work of none here and is 1.25")
    assert "something else changes the times" in control
    assert "no difference of time below 2" in floor


def on_gpu(seconds: Mapping[str, float], steps: int) -> StudyFacts:
    return evidence([
        replace(run, devices=["NVIDIA H200"] * len(run.devices))
        for run in runs_of(seconds, steps=steps, noise=0.002)
    ])  # fmt: skip


def test_on_a_gpu_a_copy_is_a_control_where_its_steps_are_long():
    seconds = {NONE: 5.0, DP: 5.0, NONE_AUTOCAST: 4.9}
    control = on_gpu(seconds, steps=100).comparison.control
    assert control is not None
    assert control.pairs == [(NONE, DP)]
    assert evidence(runs_of(seconds, steps=10**4)).comparison.control is not None  # on a CPU
    seconds[DP] = 5.5
    known = on_gpu(seconds, steps=10**4)  # of 0.5 ms, to which the wrapper adds a tenth
    assert known.comparison.control is None
    verdicts = {(pair.first, pair.second): pair.verdict for pair in known.comparison.seconds}
    assert verdicts[NONE, DP] == "slower"
    assert verdicts[NONE, NONE_AUTOCAST] == "faster"  # no floor hides it
    assert known.excluded(DP) is not None


def test_the_control_that_was_asked_for_is_one_of_short_steps_too():
    """Unlike dp it has no wrapper that takes time."""
    control = Cell("control", "fp32")
    runs = [
        replace(run, devices=["NVIDIA H200"], max_processes=1, no_op=run.parallel == "control")
        for run in runs_of({NONE: 5.0, control: 5.0, NONE_AUTOCAST: 4.9}, steps=10**4)
    ]
    found = evidence(runs).comparison.control
    assert found is not None
    assert found.pairs == [(NONE, control)]


def test_one_configuration_alone_is_told_as_such_whatever_its_strategy():
    longer = [replace(run, epochs=2) for run in runs_of({NONE: 5.0}, seeds=3)]
    for more in ([], longer):  # those are never compared with these
        said = answer_of([*runs_of({DDP: 3.0}), *more]).lead
        assert said == "No other configuration was measured under the same conditions as ddp, fp32."
    [first, *others] = runs_of({DDP: 3.0})
    failed = answer_of([replace(first, status="diverged"), *others])
    assert failed.lead == "No answer: ddp, fp32 has a run that ended as diverged."
    assert failed.reasons == ["Fix what failed and run it again."]
    running = answer_of([replace(first, status="unfinished"), *others])
    assert running.lead == "No answer yet: the study is not finished."


def test_of_times_alone_nobody_is_told_to_lose_a_score_or_that_the_baseline_failed():
    runs = [run for run in runs_of({NONE: 5.0, DDP: 3.0}) if run.timed]
    failed = [replace(run, status="failed") if run.round == 0 else run for run in runs]
    answer = answer_of(failed)
    assert answer.lead == "No answer: each configuration has a run that ended as failed."
    assert answer.reasons == ["Fix what failed and run it again."]


def test_a_configuration_with_few_rounds_of_its_own_has_too_few_to_tell():
    runs = runs_of({NONE: 5.0, DDP: 4.9}, noise=0.1)
    few = [run for run in runs if run.parallel == "none" or not run.timed or run.round < 2]
    known = evidence(few)
    assert against(decide(known), DDP) == "open"


def test_a_copy_that_is_no_control_of_times_computes_the_same_scores():
    """So two rounds with equal scores are enough to show it, as for every copy."""
    runs = runs_of({NONE: 5.0, DP: 5.5, NONE_AUTOCAST: 4.9}, seeds=2, steps=10**4)
    alike = [
        replace(run, devices=["NVIDIA H200"], score=run.score and 0.8 + 0.01 * (run.seed or 0))
        for run in runs
    ]
    known = evidence(alike)
    assert known.safe[DP] == "safe"
    assert known.safe[NONE_AUTOCAST] == "open"


GPUS = ["NVIDIA H200"] * 2


@pytest.mark.parametrize(
    ("of_none", "of_ddp", "said"),
    [
        ({}, {"devices": GPUS}, "on cpu or 2 × NVIDIA H200"),
        ({"devices": GPUS[:1]}, {"devices": GPUS}, "on 2 × NVIDIA H200"),
        ({}, {"devices": [*GPUS, "cpu"]}, "on cpu or 2 × NVIDIA H200 and cpu"),
        ({"devices": GPUS[:1], "on_hosts": [1]}, {"devices": GPUS * 8, "on_hosts": [1, 2]},
         "on 2 hosts, with up to 16 × NVIDIA H200 a run"),
        ({"on_hosts": [1]}, {"on_hosts": [1, 2]}, "on 2 hosts, each with cpu"),
    ],
)  # fmt: skip
def test_conditions_tell_devices_of_one_run_from_those_of_several(of_none, of_ddp, said):
    runs = [replace(run, **of_ddp) for run in runs_of({DDP: 3.0})]
    runs = [replace(run, **of_none) for run in runs_of({NONE: 5.0})] + runs
    assert said in conditions(runs, gather(runs, [], {}))


@pytest.mark.parametrize(
    ("epochs", "said", "command"),
    [
        (0.04, "0.04 epochs", "add epochs=N max_steps=null"),
        (4.348, "4.3 epochs", "add epochs=N max_steps=null"),
        (1, "1 epoch", "add epochs=N"),
    ],
)
def test_the_length_of_runs_is_said_alike_and_with_the_keys_that_set_it(epochs, said, command):
    runs = runs_of({NONE: 5.0}, planned_epochs=epochs)
    runs = [replace(run, epochs=epochs) for run in runs]
    assert said in conditions(runs, gather(runs, [], {}))
    assert said in groups(runs)[0].title
    assert trains(evidence(runs)) == [f"It trains for {said}: {command} for a longer run."]


def test_a_report_without_its_study_prints_the_words_of_the_answer_alone():
    answer = answer_of(runs_of({PLAIN: 5.0, DDP: 9.0}))
    assert (answer.train, answer.trains) == ("parallel=none amp=fp32", [])


def test_the_alternative_that_is_worse_keeps_nothing_open():
    found = decide(evidence(runs_of({NONE: 5.0, DDP: 5.0}, {DDP: -2.0}, noise=0.1)))
    assert (found.named, found.unscored) == (NONE, [])


def test_a_cell_that_failed_or_computes_something_else_is_not_recommended():
    runs = runs_of(SECONDS)
    lost = evidence([replace(runs[3], status="diverged"), *runs[:3], *runs[4:]])
    other = evidence(runs, numerics_of(DDP_AUTOCAST, sentence="Its update is twice."))
    for known, said in (
        (lost, "ddp, autocast is left out: a run of it ended as diverged."),
        (other, "do not compute the same. Its update is twice."),
    ):
        assert decide(known).named == DDP
        assert said in reasons(known)


@pytest.mark.parametrize("status", ["preempted", "unfinished"])
def test_a_run_that_was_interrupted_takes_no_configuration_from_the_answer(status):
    def without_last_seed(runs):
        last = [run for run in runs if run.cell == DDP and not run.timed][-1]
        return [replace(run, status=status, score=None) if run is last else run for run in runs]

    seconds = {NONE: 5.0, DDP: 3.0}
    runs = without_last_seed(runs_of(seconds, seeds=1) + runs_of(seconds, seeds=6)[12:])
    found = decide(evidence(runs))  # without any score
    assert (found.decided, found.unscored) == (False, [DDP])
    assert lead(found) == "Not decided: whether ddp, fp32 keeps accuracy is open."
    several = without_last_seed(runs_of(seconds))
    assert decide(evidence(several)).named == DDP  # its complete seeds count
    assert answer_of(whole(several)).lead == "Ddp, fp32 keeps accuracy."
    failed = replace(whole(several)[1], status="failed", seed=9)
    assert evidence([*several, failed]).excluded(DDP) == FAILED_RUN


def test_a_configuration_that_ties_and_whose_score_is_open_leaves_nothing_faster():
    runs = runs_of({NONE: 5.0, DDP: 5.0}, noise=0.002, spread=0.8)
    found = decide(evidence(runs))
    assert found.decided
    assert lead(found) == "Use one process in fp32: nothing acceptable is more than 2 % faster."


def test_a_baseline_that_was_not_run_is_not_told_to_have_failed():
    answer = answer_of(whole(runs_of({DDP: 5.0, DDP_AUTOCAST: 4.0})))
    assert answer.lead == "No answer yet: none, fp32 was not run."
    timed = [replace(run, score=None) for run in runs_of({DDP: 5.0, DDP_AUTOCAST: 4.0})]
    assert answer_of(timed).lead == "No answer yet: none, fp32 was not run."


def in_fp16(accuracy: Mapping[Cell, float] | None = None) -> list[Run]:
    """The runs of three precisions on a GPU, of which the one without a GradScaler is fastest."""
    seconds = {NONE: 5.0, NONE_AUTOCAST: 3.0, NONE_SCALER: 3.2}
    return [
        replace(
            run,
            devices=["NVIDIA H200"],
            dtype="float32" if run.cell == NONE else "float16",
            grad_scaler=run.cell == NONE_SCALER,
        )
        for run in runs_of(seconds, accuracy, noise=0.002)
    ]


def test_float16_without_a_grad_scaler_is_named_only_where_scores_or_numerics_allow_it():
    timed = [run for run in in_fp16() if run.timed]
    known = evidence(timed)
    assert decide(known).named == NONE_SCALER
    assert known.excluded(NONE_AUTOCAST) == UNSCALED
    assert "Not named without a score: small gradients of float16 underflow" in reasons(known)
    alone = decide(evidence([run for run in timed if run.cell == NONE_AUTOCAST]))
    assert lead(alone).startswith("No answer: float16 without a GradScaler is judged beside fp32")
    for verdict, named in ((WITHIN, NONE_AUTOCAST), (OTHER, NONE_SCALER)):
        found = numerics_of(NONE_AUTOCAST, verdict=verdict, sentence="It underflows.")
        assert decide(evidence(timed, found)).named == named
    assert decide(evidence(in_fp16())).named == NONE_AUTOCAST
    assert decide(evidence(in_fp16({NONE_AUTOCAST: -2.0}))).named == NONE_SCALER


def test_replicas_of_a_loss_that_is_no_mean_are_not_named_as_the_same_training_faster():
    runs = [
        replace(run, mean_loss=False if run.replicas == 2 else None) for run in runs_of(SECONDS)
    ]
    known = evidence([run for run in runs if run.timed])
    assert decide(known).named == NONE_AUTOCAST
    in_parts = [replace(run, mean_loss=False, replicas=1) for run in runs]  # of micro-batches alone
    assert decide(evidence([run for run in in_parts if run.timed])).named == DDP_AUTOCAST
    told = [said for said in notes(known) if "not the mean of the losses" in said]
    assert len(told) == 1
    assert "ddp, fp32; ddp, autocast train on other gradients than one process does" in told[0]
    assert decide(evidence(runs)).named == DDP_AUTOCAST  # its scores are safe
    by_loss = [replace(run, score_name="loss", score_margin=0.5) for run in runs]
    assert decide(evidence(by_loss)).named == NONE_AUTOCAST  # and its score is of other batches


@pytest.mark.parametrize("draw", range(20))
def test_the_answer_agrees_with_the_verdicts_whatever_the_numbers(draw):
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
    found = decide(known)
    said, sure = lead(found), known.settings.level
    assert len(said.split()) <= 14
    assert ("Not decided" in said or "o few" in said or "No answer" in said) is not found.decided
    assert not found.decided or found.chance is None or found.chance >= 1 - sure
    if found.named is None:
        return
    assert known.safe[found.named] == "safe"
    assert known.excluded(found.named) is None
    for other in known.cells:
        verdict = known.verdict(found.named, other)
        if verdict == "faster" and known.excluded(other) is None:
            assert known.safe[other] != "safe", (found.named, other)
            assert any(f"{known.label(other)} is faster" in each for each in reasons_of(found))
    assert ("times as fast" in said) <= (known.verdict(PLAIN, found.named) == "faster")


def test_the_way_to_a_target_ends_with_the_epoch_that_reaches_it():
    runs = runs_of({NONE: 5.0, DDP: 3.0}, seeds=2)
    curve = [(1.0, 5.0, 0.5), (2.0, 10.0, 0.75), (3.0, 15.0, 0.76)]
    points = [
        Point(run.folder, epoch, int(epoch), seconds, accuracy, None)
        for run in runs if run.folder != "ddp-fp32_1" for epoch, seconds, accuracy in curve
    ]  # fmt: skip
    settings = {**TIMED, "report": {"target": 0.74}}
    recording = Recording(runs, {"sweep": {"settings": settings}}, points, [])
    [group] = built(recording).groups
    assert group.cells[0].measures["to_target"].values == {"0": 10.0, "1": 10.0}


def test_weights_in_bfloat16_are_named_only_where_scores_allow_it():
    runs = [
        replace(run, weights="bfloat16" if run.cell == NONE_AUTOCAST else "float32")
        for run in runs_of({PLAIN: 5.0, NONE_AUTOCAST: 3.0}, noise=0.002)
    ]
    known = evidence([run for run in runs if run.timed])
    assert known.excluded(NONE_AUTOCAST) == SHORT_WEIGHTS
    assert decide(known).named == PLAIN
    assert "Not named without a score: a small update is lost" in reasons(known)
    assert settings(known, NONE_AUTOCAST).code[: len(CAST)] == [*CAST]
    assert decide(evidence(runs)).named == NONE_AUTOCAST


def test_a_memory_format_that_is_part_of_a_speedup_is_among_the_lines_for_ones_own_loop():
    line = "model.to(memory_format=torch.channels_last)  # and the inputs"
    for of_fp32, told in (("contiguous_format", True), ("channels_last", False)):
        runs = [
            replace(run, memory_format=of_fp32 if run.cell == PLAIN else "channels_last")
            for run in runs_of({PLAIN: 5.0, NONE_AUTOCAST: 3.0})
        ]
        found = evidence(runs)
        assert (line in settings(found, NONE_AUTOCAST).code) is told
        assert line not in settings(found, PLAIN).code


def test_a_study_that_was_stopped_has_the_command_that_resumes_it(tmp_path):
    stopped = {**failure("none", "fp32"), "status": "preempted", "batch_size": 64}
    sweep(
        tmp_path, result("none", "autocast"), result("ddp"), stopped,
        rounds=[entry(0, ["runs/0_none_autocast", "runs/1_ddp_fp32", "runs/2_none_fp32"])],
        command="python train.py -m amp=fp32,autocast hydra.sweep.dir=x",
        swept={"parallel": ["none", "ddp"], "amp": ["fp32", "autocast"], "seed": ["0", "1"]},
        planned_rounds=2,
        planned_cells=[
            {"parallel": parallel, "amp": amp}
            for parallel in ("none", "ddp") for amp in ("fp32", "autocast")
        ],
    )  # fmt: skip
    recording, _ = find_recording(tmp_path)
    answer = built(replace(recording, folder=Path("outputs/mine"))).answer
    assert answer.lead == "No answer yet: none, fp32 has no run that ended well."
    assert answer.surer is not None
    assert answer.surer.command == "python train.py study.resume=outputs/mine"


def test_what_is_open_after_the_last_timing_round_has_a_command_that_adds_to_it():
    runs = [
        replace(in_turns(run), folder=run.folder, counted=True)
        for run in runs_of({NONE: 5.0, DDP: 4.9, NONE_AUTOCAST: 5.1}, noise=0.1)
    ]
    rounds = [entry(n, [run.folder for run in runs if run.round == n]) for n in range(6)]
    sweep = {
        "command": "ninefold train experiments=mine dataset.root=... study.resume=x",
        "timing": rounds,
        "settings": {"study": {"ask": ["time"], "time_budget": 3}}, "timing_ended": "budget",
        "timing_seconds": 180.0,
    }  # fmt: skip
    surer = answer_of(runs, Path("outputs/a b"), sweep=sweep).surer
    assert surer is not None
    assert shlex.split(surer.command)[2:] == ["study.resume='outputs/a b'", "study.time_budget=6"]
    assert surer.minutes == 3
    assert answer_of(runs, sweep=sweep).surer is None  # of a recording, nothing goes on
    ended = {**sweep, "timing_ended": "rounds"}
    assert answer_of(runs, Path("x"), sweep=ended).surer is None
    # The answer of an extension may be open where it is decided which is the fastest.
    for why, more in (("budget", True), ("decided", False)):
        steps = NextSteps(StudyRecord.of({**sweep, "timing_ended": why}), "x", False)
        assert (steps.of_time(evidence(runs)) is not None) == more


@pytest.mark.parametrize(("study", "own", "proposed"), [
    ({}, (0, 1, 2), "seed=0,1,2,3,4,5"),
    ({}, (42, 7, 43), "seed=42,7,43,44,45,46"),
    ({"rounds": 3}, (1, 2, 3), "seed=1,2,3,4,5,6 study.rounds=6"),
    ({"budget": 13}, (0, 1, 2), "seed=0,1,2,3,4,5"),
    ({"budget": 11}, (0, 1, 2), "seed=0,1,2,3,4,5 study.budget=null"),  # it would end them
])  # fmt: skip
def test_more_seeds_are_added_to_those_of_the_study_within_its_rounds_and_budget(
    study, own, proposed
):
    runs = whole(runs_of({NONE: 5.0, DDP: 4.9}, seeds=3, spread=1.0))
    runs = [replace(run, round=run.seed, seed=own[run.seed or 0], counted=True) for run in runs]
    made = [
        entry(n, [run.folder for run in runs if run.round == n], seed=seed)
        for n, seed in enumerate(own)
    ]
    sweep = {
        "command": "ninefold train experiments=mine seed=9 study.rounds=3", "rounds": made,
        "settings": {"study": {"ask": ["score"], **study}}, "planned_rounds": 3,
        "wall_seconds": 360.0,
    }  # fmt: skip
    surer = answer_of(runs, Path("mine"), sweep=sweep).surer
    assert surer is not None
    assert surer.command.endswith(f" study.resume=mine {proposed}")


def test_a_study_is_unfinished_until_each_round_has_each_run_and_each_run_its_end():
    cells = [{"parallel": "none", "amp": "fp32"}, {"parallel": "ddp", "amp": "bf16"}]  # not all
    done = {"swept": {"parallel": ["none", "ddp"], "amp": ["fp32", "bf16"]}, "planned_rounds": 1,
            "rounds": [entry(0, ["a", "b"])], "planned_cells": cells}  # fmt: skip
    runs = [
        Run(folder=folder, status=status)
        for folder, status in (("a", "ok"), ("b", "failed"), ("old", "preempted"))
    ]
    assert not is_unfinished(StudyRecord.of(done), runs)
    assert not is_unfinished(EMPTY, runs)
    assert is_unfinished(StudyRecord.of(done), [Run(folder="b", status="unfinished"), runs[0]])
    assert is_unfinished(StudyRecord.of(done), runs[:1])  # the folder of b is not yet written
    assert is_unfinished(StudyRecord.of({**done, "rounds": [entry(0, ["a"])]}), runs)
    assert is_unfinished(StudyRecord.of({**done, "planned_rounds": 2}), runs)
    no_longer_planned = {**done, "rounds": [*done["rounds"], entry(1, ["c"])]}
    assert not is_unfinished(StudyRecord.of(no_longer_planned), runs)


@pytest.mark.parametrize(("never", "open_", "lead", "ends"), [
    ([DDP], 0, "Accuracy: kept by 1 of 2 configurations.", True),
    ([DDP], 1, "Accuracy: still open for 1 of 2 configurations.", False),
    ([NONE], 1, "No answer yet: none, fp32 has no run that ended well.", True),
    ([NONE_AUTOCAST, DDP], 0, "No answer yet: nothing to compare accuracy with.", True),
])  # fmt: skip
def test_more_seeds_are_not_trained_for_a_cell_that_none_gives_a_score(
    tmp_path, never, open_, lead, ends
):
    results = [
        failure(cell.parallel, cell.amp, seed, batch_size=64, epochs=None)
        if cell in never
        else result(cell.parallel, cell.amp, seed, score=0.8 + open_ * seed * (cell != NONE) / 9)
        for seed in range(3)
        for cell in (NONE, NONE_AUTOCAST, DDP)
    ]
    names = [f"runs/{n}_{each['parallel']}_{each['amp']}" for n, each in enumerate(results)]
    rounds = [entry(n, names[3 * n : 3 * n + 3]) for n in range(3)]
    study = {"study": {"ask": ["score"], "rounds": 3}}
    sweep(tmp_path, *results, rounds=rounds, settings=study, command="train.py", planned_rounds=3)
    assert read(tmp_path, "train").report.answer.decided is (
        ends and not lead.startswith("No answer")
    )
    answer = built(find_recording(tmp_path)[0]).answer
    assert (answer.lead, answer.surer is None) == (lead, ends)
    assert all(f"{cell.parallel}, fp32: not known (open)." not in answer.reasons for cell in never)
