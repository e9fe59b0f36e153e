"""What limits an answer: each row of the table is reached, by an example that it is true of."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ninefold.answer.notes import NOTES, notes
from ninefold.answer.study_facts import StudyFacts
from ninefold.result import AS_FLOAT32, ON_GPU
from ninefold.stats.verdicts import Timings
from ninefold.tournament.taken import Counted, TakenTurn
from tests.report.made import EMPTY, evidence, numerics_of, runs_of, whole
from tests.report.studies import DDP, DP, NONE

GPU = ["NVIDIA H200"]
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


def of_numerics(by_design: bool) -> Callable[[], StudyFacts]:
    found = numerics_of(DDP, by_design=by_design)
    return lambda: evidence(runs_of({NONE: 5.0, DDP: 4.0}), numerics=found)


# Of each row of the table, in its order, evidence that it speaks of.
EXAMPLES = [
    of_runs(mean_loss=False),
    of_runs(notes=[f"{ON_GPU}other programs computed there."]),
    of_runs(devices=GPU),
    lambda: evidence(
        [replace(run, devices=GPU) for run in runs_of({NONE: 5.0, DP: 5.5}, steps=10**4)]
    ),
    of_runs(trained=False),
    lambda: evidence([run for run in runs_of({NONE: 5.0, DDP: 4.0}) if run.timed or run.seed == 0]),
    scored(score_name="RMSE", score_unit="m", score_better="less"),
    in_full(),
    in_full(on_hosts=[1, 2]),
    of_study(timing_groups=2),
    of_turns(others=0.3, disturbed=0.8),
    lambda: replace(
        of_runs()(), timings=[Timings({NONE: dict.fromkeys(range(6), 1.0), DDP: {0: 1.0}})]
    ),
    of_runs(notes=[AS_FLOAT32]),
    of_study(untimed={"dp-fp32": "none-fp32"}),
    of_numerics(by_design=False),
    of_numerics(by_design=True),
    of_runs(status="failed"),
    of_runs(phase_seconds=PHASES),
    of_runs(devices=GPU, dtype="float32", tf32_convolutions=False),
    of_runs(resident_bytes=100),
    of_runs(backend="nccl", peak_memory_bytes=[1]),
    of_runs(devices=GPU * 2, peak_memory_bytes=[2, 1]),
    of_runs(devices=GPU * 2, load=[1.0, 0.5]),
    of_runs(devices=GPU, gpu_behind=0.1),
    of_runs(random_inputs=True),
]


@pytest.mark.parametrize("row", range(len(NOTES)))
def test_every_row_of_the_table_has_an_example_that_it_speaks_of(row: int) -> None:
    sentences = NOTES[row].sentences(EXAMPLES[row]())
    assert len(sentences) == 1
    assert sentences[0].endswith(".")


def test_a_study_without_any_of_these_has_no_note() -> None:
    assert notes(of_runs()()) == []
