"""A run that was stopped and resumed ends bitwise where the uninterrupted run does."""

import pytest

from tests.conftest import Shell, result
from tests.faults.runs import (
    PER_EPOCH,
    STEPS,
    again,
    fault,
    finished,
    fired,
    job,
    last_step,
    leftovers,
    reference,
    state_hash,
)

# Where the run is told to stop: phase and number of the injector, steps then taken at most.
POINTS = {
    "first step": ("step", 1),
    "mid-epoch": ("step", 3),
    "last step": ("step", STEPS),
    "first of an epoch": ("step", PER_EPOCH + 1),
    "validation": ("validation", 4),
    "accumulation": ("step", 9),  # the first half of the fifth batch
}
# Every point with one process and two; every precision and number of workers with several points.
CASES = [
    ("none", "fp32", "first step", 0), ("none", "bf16", "mid-epoch", 2),
    ("none", "fp16", "last step", 0), ("none", "bf16", "first of an epoch", 0),
    ("none", "fp32", "validation", 2), ("none", "fp16", "accumulation", 2),
    ("ddp2", "fp16", "first step", 2), ("ddp2", "fp32", "mid-epoch", 0),
    ("ddp2", "bf16", "last step", 2), ("ddp2", "fp16", "first of an epoch", 2),
    ("ddp2", "fp16", "validation", 0), ("ddp2", "bf16", "accumulation", 2),
]  # fmt: skip


def interrupt(shell: Shell, options: list[str], strategy: str, phase: str, number: int) -> None:
    """Run until SIGUSR1 reaches one process (under ddp not the one that writes), in mid-run."""
    mark = shell.folder / f"mark-{phase}-{number}"
    rank = 1 if strategy == "ddp2" else 0
    env = fault(f"usr1_rank{rank}", phase, rank, number, mark)
    done = shell.train(*options, env=env, code=75)
    assert done.stderr.count("\n") == 1
    assert fired(mark) == 1


@pytest.mark.parametrize(
    ("strategy", "precision", "point", "workers"),
    [*(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[:-1]), CASES[-1]],
)
def test_a_stopped_run_ends_as_without_it(shell, references, strategy, precision, point, workers):
    options = job(strategy, precision, *(["accumulate=2"] if point == "accumulation" else []))
    phase, number = POINTS[point]
    run = shell.folder / "run"
    loading = [*options, f"loader.workers={workers}"]
    interrupt(shell, [*loading, f"hydra.run.dir={run}"], strategy, phase, number)
    stopped_at = last_step(run)
    if phase == "step":  # nothing is lost, and it stops with the step that runs or the next
        taken = (number + 1) // 2 if point == "accumulation" else number
        assert taken <= stopped_at <= taken + (strategy == "ddp2")
    whole = finished(shell, references, again(run), options)
    assert result(run)["steps"] == STEPS
    assert state_hash(run) == state_hash(whole)
    assert not leftovers(run)


@pytest.mark.slow
def test_a_run_stopped_twice_in_an_epoch_ends_where_the_uninterrupted_one_does(shell, references):
    options, run = job("ddp2", "fp16"), shell.folder / "run"
    interrupt(shell, [*options, f"hydra.run.dir={run}"], "ddp2", "step", 7)
    first = last_step(run)
    interrupt(shell, again(run), "ddp2", "step", 2)  # the second of this launch
    assert first < last_step(run) < 2 * PER_EPOCH
    shell.train(*again(run), code=0)
    assert state_hash(run) == state_hash(reference(references, options))


EXTRAS = {
    # An average of the weights and a plateau are in tests/promises/test_every_project.py.
    "patience-none": ("none", ["patience=2", "epochs=30"], 10),
    "best-ddp2": ("ddp2", ["optimizer=adamw", "epochs=6"], 20),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTRAS)
def test_what_goes_along_with_the_weights_is_resumed_as_exactly(shell, references, name):
    strategy, extra, number = EXTRAS[name]
    options, run = job(strategy, "fp32", *extra), shell.folder / "run"
    interrupt(shell, [*options, f"hydra.run.dir={run}"], strategy, "step", number)
    shell.train(*again(run), code=0)
    whole = reference(references, options)
    assert state_hash(run) == state_hash(whole)
    if name.startswith("patience"):
        assert number < result(run)["steps"] < 30 * PER_EPOCH, "it did not stop early"
        assert result(run)["planned_epochs"] == 30
