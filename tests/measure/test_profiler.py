"""A profile tells of a run, and what bounds it, without touching it."""

import gzip
import json
from types import SimpleNamespace

import pytest
import torch

from ninefold.engine.parallel import RankContext
from ninefold.measure import profiler
from ninefold.measure.profiler import BLIND, Profile, bound

HERE = RankContext(rank=0, world_size=1, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("data", "compute", "communication", "cause"),
    [
        (0.60, 0.9, 0.0, "data:"),
        (0.05, 0.9, 0.1, "the device:"),
        (0.05, 0.3, 0.1, "the host:"),
        (0.05, 0.2, 0.7, "communication "),
        (0.00, 0.0, 0.0, "the host:"),
    ],
)
def test_a_run_is_bound_by_what_takes_most_of_a_step(data, compute, communication, cause):
    sentence = bound(data, compute, communication)
    assert sentence.startswith(f"The run is bound by {cause}")
    shares = [int(part.split()[1].rstrip("%")) for part in sentence.split("(")[1].split(", ")]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert shares == sorted(shares, reverse=True)


def event(name: str, start: float, end: float, annotation: bool = False) -> SimpleNamespace:
    """As torch.profiler gives them for a CPU; times are microseconds."""
    times = SimpleNamespace(start=start, end=end)
    kind = torch.autograd.DeviceType.CPU
    return SimpleNamespace(
        name=name, time_range=times, device_type=kind, is_user_annotation=annotation
    )


def test_the_shares_of_a_step_are_those_of_its_events(tmp_path):
    profile = Profile(tmp_path, HERE)
    profile.see([
        event("batch", 0, 20, annotation=True),
        event("aten::div", 5, 20),
        event("training step", 20, 120, annotation=True),
        event("aten::mm", 20, 60),
        event("autograd::engine::evaluate_function: AddmmBackward0", 30, 110),
        event("gloo:all_reduce", 50, 90, annotation=True),
    ])  # fmt: skip
    found = (profile.data, profile.compute, profile.communication)
    assert found == pytest.approx((20 / 120, 40 / 100, 30 / 100))


def test_a_profile_finds_the_costly_operation_and_its_share_and_writes_a_trace(tmp_path):
    matrix = torch.randn(600, 600)
    taken = 0

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        nonlocal taken
        taken += 1
        for _ in range(10):
            torch.mm(matrix, matrix)

    profile = Profile(tmp_path / "profile", HERE)
    profile.record(iter([(matrix, matrix)] * 20), step)
    assert taken == profiler.STEPS + 1
    first = next(line for line in profile.table.splitlines() if "aten::" in line).split()
    assert (first[0], first[-1]) == ("aten::mm", str(10 * profiler.STEPS))
    assert profile.compute > 0.5
    assert profile.communication == 0
    with gzip.open(tmp_path / "profile" / "rank0.pt.trace.json.gz") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"aten::mm", "batch", "training step"} <= names
    assert (tmp_path / "profile" / "table.txt").read_text() == profile.table


@pytest.mark.parametrize(("device", "blind"), [("cuda:0", True), ("cpu", False)])
def test_a_profile_without_kernels_of_the_gpu_does_not_say_what_bounds_a_run(
    tmp_path, device, blind
):
    found = Profile(tmp_path, RankContext(0, 1, torch.device(device)))
    found.see(())
    *_, said = found.summary({})
    assert (said == BLIND) is blind
