"""What limits an answer: each row of the table is reached, by an example that it is true of."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ninefold.answer.cell import Cell
from ninefold.answer.notes import NOTES, Note, notes
from ninefold.answer.study_facts import StudyFacts
from ninefold.result import AS_FLOAT32, ON_GPU
from ninefold.stats.verdicts import Timings
from ninefold.tournament.taken import Counted, TakenTurn
from tests.report.made import EMPTY, evidence, numerics_of, runs_of, whole
from tests.report.studies import DDP, DP, NONE

GPU, GIB = ["NVIDIA H200"], 2**30
PHASES = {"data": 1.0, "forward": 4.0}


def of_runs(trained: bool = True, **changes: Any) -> Callable[[], StudyFacts]:
    """Facts of a small study with these fields in the runs of ddp. trained: with whole runs."""

    def made() -> StudyFacts:
        runs = [
            replace(run, **changes) if run.parallel == "ddp" else run
            for run in runs_of({NONE: 5.0, DDP: 4.0})
        ]
        return evidence(runs if trained else [run for run in runs if run.timed])

    return made


def scored(**score: Any) -> Callable[[], StudyFacts]:
    return lambda: evidence(runs_of({NONE: 5.0, DDP: 4.0}, **score))


def in_full(**changes: Any) -> Callable[[], StudyFacts]:
    """Facts of runs that were trained as a whole, and took no turns."""
    return lambda: evidence(whole(runs_of({NONE: 5.0, DDP: 4.0}, **changes)))


def of_study(**changes: Any) -> Callable[[], StudyFacts]:
    return lambda: replace(of_runs()(), sweep=replace(EMPTY, **changes))


def of_turns(disturbed: float = 0.0, **turn: Any) -> Callable[[], StudyFacts]:
    """Facts whose turns are all this one. disturbed: the share of them that is."""
    taken = TakenTurn(turn=0, seconds=1.0, steps=1, **turn)
    return lambda: replace(of_runs()(), turns=Counted([taken], disturbed))


def of_numerics(*cells: Cell, by_design: bool) -> Callable[[], StudyFacts]:
    """Facts of cells whose first steps are off."""
    runs = runs_of(dict.fromkeys((NONE, *cells), 4.0))
    split = [replace(run, chunks=4) if run.parallel == "split" else run for run in runs]
    return lambda: evidence(split, numerics=numerics_of(*cells, by_design=by_design))


# Of each row of the table, in its order, words of it and evidence that it speaks of.
EXAMPLES = {
    "so that ddp, fp32 trains on other gradients than one process does": of_runs(mean_loss=False),
    "During turns on a GPU: other programs computed there.": of_runs(
        notes=[f"{ON_GPU}other programs computed there."]
    ),
    "Runs used different devices": of_runs(devices=GPU),
    "DataParallel itself takes up to 0.1 ms of a step, which is 0.5 ms long": lambda: evidence(
        [replace(run, devices=GPU) for run in runs_of({NONE: 5.0, DP: 5.5}, steps=10**4)]
    ),
    "Only speed was compared": of_runs(trained=False),
    "Each accuracy is of one seed": lambda: evidence(
        [run for run in runs_of({NONE: 5.0, DDP: 4.0}) if run.timed or run.seed == 0]
    ),
    "No margin is set for the RMSE": scored(score_name="RMSE", score_unit="m", score_better="less"),
    "not interleaved: study.ask=[time] compares speed": in_full(),
    "not interleaved: runs on several hosts": in_full(on_hosts=[1, 2]),
    "they were timed in 2 groups": of_study(timing_groups=2),
    "other programs used 30 % of the CPU, in most turns": of_turns(others=0.3, disturbed=0.8),
    "ddp, fp32 could be timed undisturbed in 1 of 6 rounds.": lambda: replace(
        of_runs()(), timings=[Timings({NONE: dict.fromkeys(range(6), 1.0), DDP: {0: 1.0}})]
    ),
    "The float64 numbers of the dataset are taken as float32.": of_runs(notes=[AS_FLOAT32]),
    "dp-fp32 was not timed, as it only repeats the work of none-fp32.": of_study(
        untimed={"dp-fp32": "none-fp32"}
    ),
    "ddp, fp32 does not compute what none, fp32 does: it is another experiment": of_numerics(
        DDP, by_design=False
    ),
    "(parallel.chunks=1 or parallel.sync_batchnorm=true uses the whole batch)": of_numerics(
        DDP, Cell("split", "fp32"), by_design=True
    ),
    "Not every run ended well: ddp, fp32.": of_runs(status="failed"),
    "ddp, fp32 waits for data": of_runs(phase_seconds=PHASES),
    "amp=default measures it": of_runs(devices=GPU, dtype="float32", tf32_convolutions=False),
    "dataset.resident makes them agree": of_runs(resident_bytes=100),
    "The peak memory of a GPU is what tensors took": of_runs(backend="nccl", peak_memory_bytes=[1]),
    "GPU 0 of ddp, fp32 holds 2 times what the one with the least does (2.00 and 1.00": of_runs(
        devices=GPU * 2, peak_memory_bytes=[2 * GIB, GIB]
    ),
    "GPU 0 of ddp, fp32 is at work 100% of the time, the idlest 50%": of_runs(
        devices=GPU * 2, load=[1.0, 0.5]
    ),
    "ddp, fp32 waits for the host": of_runs(devices=GPU, gpu_behind=0.1),
    "their accuracy says nothing about a real dataset": of_runs(random_inputs=True),
}


@pytest.mark.parametrize(("note", "words"), [*zip(NOTES, EXAMPLES, strict=True)])
def test_every_row_of_the_table_has_an_example_that_it_speaks_of(note: Note, words: str) -> None:
    (sentence,) = note.sentences(EXAMPLES[words]())
    assert words in sentence
    assert sentence.endswith(".")


# What is short of the condition of a row, and so has not the words.
SHORT_OF = [
    ("spread unevenly", of_runs(devices=["cpu"] * 2, peak_memory_bytes=[2 * GIB, GIB])),
    ("spread unevenly", of_runs(devices=GPU * 2, load=[])),  # nothing measured it
    (
        "A/A control",
        lambda: evidence([replace(run, devices=GPU) for run in runs_of({NONE: 5.0, DP: 5.0})]),
    ),
    ("waits for", of_runs(phase_seconds={"data": 0.4, "forward": 4.0})),
    ("for the host", of_runs(devices=GPU, gpu_behind=0.1, phase_seconds=PHASES)),
    ("amp=default", of_runs(devices=GPU, dtype="float32", tf32_convolutions=None)),
    ("amp=default", of_runs(devices=["cpu"], dtype="float32", tf32_convolutions=False)),
    ("amp=default", of_runs(devices=GPU, dtype="float32", tf32=False, tf32_convolutions=True)),
    (
        "amp=default",  # one run measures it
        lambda: evidence(
            [
                replace(run, devices=GPU, dtype="float32", tf32_convolutions=number == 0)
                for number, run in enumerate(runs_of({NONE: 5.0, DDP: 4.0}))
            ]
        ),
    ),
    ("", of_runs()),
]


@pytest.mark.parametrize(("words", "made"), SHORT_OF)
def test_what_is_short_of_a_condition_has_no_note(words: str, made: Callable[[], Any]) -> None:
    assert [said for said in notes(made()) if words in said] == []
