"""When a step of a compared command ends on a device: by events, and without a wait for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ninefold.bench.command import INJECT, Command
from ninefold.bench.held import HeldCommand
from ninefold.bench.measurements import Measurements
from ninefold.bench.notes import notes
from ninefold.bench.rounds import Bench
from ninefold.bench.turns import MARKS, Taken
from ninefold.diff.compare import recording
from ninefold.tournament import neighbors
from ninefold.waits import poll_until
from tests.conftest import Shell

BEGIN = """
import itertools
import torch

model, teacher = (torch.nn.Linear(8, 8, device="cuda") for _ in range(2))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.ones(4, 8, device="cuda")


def step():
    optimizer.zero_grad()
    (model(x) - teacher(x)).square().mean().backward()
    optimizer.step()
"""
TEACHER = f"""{BEGIN}
waits, wait = [], torch.cuda.synchronize
torch.cuda.synchronize = lambda *given: (waits.append(given), wait(*given))
with open("waits", "w", buffering=1) as file:
    while True:
        teacher.eval()
        step()
        print(len(waits), file=file)
"""
STREAMS = f"""{BEGIN}
sides = [torch.cuda.Stream(), torch.cuda.Stream()]
for side in itertools.cycle(sides):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
"""
GRAPH = f"""{BEGIN}
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
while True:
    graph.replay()
"""
ON_A_CPU = """
import torch

weight = torch.zeros(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
while True:
    weight.sum().backward()
    optimizer.step()
    print(torch.cuda.is_initialized(), file=open("initialized", "a"))
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], HeldCommand]]:
    """Starts a script, which then waits behind its first step."""
    held = list[HeldCommand]()

    def start(text: str) -> HeldCommand:
        (tmp_path / "train.py").write_text(text)
        command = Command(f"{sys.executable} train.py", "A", tmp_path)
        kept = tmp_path / "kept"
        held.append(HeldCommand(command, 0, kept, {*MARKS}, recording=recording(5)))
        poll_until(held[0].arrived, interval=0.01)
        return held[0]

    yield start
    for each in held:
        each.close()


@pytest.mark.gpu
def test_a_script_with_a_teacher_in_each_step_waits_for_its_gpu_once_a_turn(
    started: Callable[[str], HeldCommand], tmp_path: Path
) -> None:
    held = started(TEACHER)
    held.train(0, 20)  # after which it is known that what marks a step is part of it
    before = len((tmp_path / "waits").read_text().split())
    assert held.train(3, 20).seconds > 0
    waits = (tmp_path / "waits").read_text().split()[before:]
    assert len(waits) >= 20
    assert len({*waits}) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("text", [STREAMS, GRAPH], ids=["streams", "graph"])
def test_a_step_on_other_streams_or_in_a_graph_ends_where_the_device_has_done_it(
    text: str, started: Callable[[str], HeldCommand]
) -> None:
    held = started(text)
    held.train(0, 6, records=True)  # a graph that is captured meanwhile is left alone
    for number in range(1, 4):
        assert held.train(2, 10).seconds > 0
        assert held.steps >= 12 * number


@pytest.mark.gpu
def test_what_computes_on_a_cpu_never_begins_to_use_cuda(
    started: Callable[[str], HeldCommand], tmp_path: Path
) -> None:
    held = started(ON_A_CPU)
    held.train(2, 10)
    assert {*(tmp_path / "initialized").read_text().split()} == {"False"}


class Xpu:
    """torch with an accelerator that is not CUDA: two devices, the second takes 3 s a step."""

    def __init__(self) -> None:
        self.ends = [0.0, 0.0]
        unused = SimpleNamespace(is_initialized=lambda: False)
        self.cuda, self.Event = unused, self.event
        self.accelerator = SimpleNamespace(
            current_accelerator=lambda: "xpu", current_stream=lambda number: number
        )

    def get_device_module(self, kind: str) -> Any:
        return SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 3,
            memory_reserved=lambda number: int(number < 2),
        )

    def event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace()
        event.record = lambda number: setattr(event, "end", self.ends[number])
        event.elapsed_time = lambda after: 1000 * (after.end - event.end)
        return event


def test_steps_on_an_accelerator_last_as_long_as_its_slowest_device_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(INJECT)
    devices, torch = import_module("ninefold_bench_devices"), Xpu()
    monkeypatch.setitem(sys.modules, "torch", torch)
    used = devices.Devices()
    moments = [used.now()]
    for number in range(2):
        torch.ends = [torch.ends[0] + 1, torch.ends[1] + 3 + number]
        moments.append(used.now())
    assert used.between(moments) == [3, 4]


JAX = """
class Array:
    is_ready = staticmethod(lambda: False)


class tree_util:
    tree_leaves = staticmethod(lambda found: [found, None])
"""


def test_a_step_that_returns_before_jax_has_computed_it_is_refused(shell: Shell) -> None:
    (shell.folder / "jax.py").write_text(JAX)
    (shell.folder / "steps.py").write_text("import jax\n\ndef step():\n    return jax.Array()\n")
    (shell.folder / "train.py").write_text("import steps\n\nwhile True:\n    steps.step()\n")
    command = f"{sys.executable} train.py"
    done = shell.run("-m", "ninefold", "bench", "--step=steps:step", command, command, code=2)
    assert "its step returns before jax has computed it" in done.stderr
    assert done.stderr.endswith("end the step with jax.block_until_ready, or --whole\n")


def test_clocks_that_a_limit_held_down_are_told_in_one_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons = iter([0x4, 0x1, 0x44])
    driver = SimpleNamespace(nvmlDeviceGetCurrentClocksEventReasons=lambda gpu: next(reasons))
    monkeypatch.setattr(neighbors, "nvml_of", lambda uuid: (driver, uuid))
    found = Measurements([Command("true", "A"), Command("true", "B")])
    bench = Bench(found, Path("kept"))
    alive = SimpleNamespace(name="A", steps=1, told={"cuda": True}, hellos=[{"gpus": ["one"]}] * 2)
    for _ in range(3):
        bench.note(alive, Taken())  # type: ignore[arg-type]
    (said,) = [line for line in notes(found, found.times()) if "clocks" in line]
    assert said.startswith("On the GPU, in 2 turns it ran at its power limit, ")
    assert said.endswith("; in 1 turn heat or a brake of its power held its clocks down.")
