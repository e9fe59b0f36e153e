"""The part `beside`: what idle neighbors, a stop, a full queue and a profile do to a step's time.

It goes on with what the part `doubts` asks.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from statistics import median

from benchmarks.gpu.check import Check, Expectation, Figures, ends_with
from benchmarks.gpu.race import READY, answer, process
from benchmarks.gpu.session import Session
from benchmarks.gpu.timings import contestant, over

IDLE = (4, 14)  # cells that wait beside one that trains
MEMORIES = (8, 24, 80)  # GB of cards


def neighbors(session: Session) -> Figures:
    """Steps alone, and beside cells that are ready and wait, each with a group of NCCL."""
    found: Figures = {}
    used: list[float] = []
    nets = ("ConvNet 8x8", "ResNet-18")
    train = [contestant(session, net, net) for net in nets]
    for count in (0, *session.size(IDLE, (1,))):
        idle = [[contestant(session, f"{n}", nets[0], "parallel=ddp")] for n in range(count)]
        with ExitStack() as stack:
            groups = [stack.enter_context(process(session, each)) for each in [*idle, train]]
            ready = [answer(session, group, READY) for group in groups]
            assert all(ready), "a cell could not be built"
            said = session.call("context")
            used.append(said["used"])
            found.setdefault("a context", said["context"])
            for net in nets:
                each = []
                for _ in range(session.size(8, 2)):
                    groups[-1].connection.send(net)
                    each.append(answer(session, groups[-1], READY))
                found[f"{net} beside {count}"] = 1e3 * median(each[1:])
        for net in nets:
            found[over(f"{net} beside {count}", "alone")] = (
                found[f"{net} beside {count}"] / found[f"{net} beside 0"]
            )
    found["a cell that waits"] = each_takes = (used[-1] - used[0]) / count
    for memory in MEMORIES:
        found[f"such cells on {memory} GB"] = int(memory * 1024 // max(each_takes, 1))
    return found


def stopped(session: Session) -> Figures:
    """ddp waits for 20 s, is stopped for 15 and goes on."""
    wait, pause = session.size((20, 15), (0.1, 0.1))
    made = contestant(session, "ddp", "ResNet-18", "parallel=ddp")
    with process(session, [made]) as group:
        assert answer(session, group, READY), "it could not be built"
        each = []
        for turn in range(3):
            if turn == 1:
                time.sleep(wait)
            if turn == 2:
                assert group.process.pid is not None
                os.kill(group.process.pid, signal.SIGSTOP)
                time.sleep(pause)
                os.kill(group.process.pid, signal.SIGCONT)
            group.connection.send(made.name)
            each.append(answer(session, group, READY))
    return {"a turn after a stop over one before": each[-1] / each[0]}


def waits(session: Session) -> Figures:
    """A net of more kernels than a stream takes, at a batch that fills the GPU; and a profile."""
    batch = session.size(256, 4)
    job = contestant(session, "", "densenet201", "amp=bf16", batch=batch).overrides
    job = (*job, f"max_steps={session.size(100, 4)}", "checkpoint.every=null", "logger=quiet")
    plain, profiled = (session.train(*job, f"profile={on}") for on in ("false", "true"))
    found = plain.result
    seconds, behind = found.get("train_seconds"), found.get("gpu_behind")
    figures: Figures = {"exit code": plain.code, "load": (found.get("load") or [None])[0]}
    if behind is not None:
        figures["share of steps that the GPU is behind with"] = behind
    if seconds and profiled.result:
        figures["profiled over not"] = profiled.result["train_seconds"] / seconds
    return figures


CHECKS = [
    Check(
        "neighbors",
        "Are steps slower beside cells that wait?",
        neighbors,
        [
            Expectation(
                over(f"{net} beside {count}", "alone"), high=1.01, unit="×",
                means="what differs is not the cell alone: idle cells cost time",
            )
            for count in IDLE
            for net in ("ConvNet 8x8", "ResNet-18")
        ]
        + [Expectation(name, unit="MiB") for name in ("a context", "a cell that waits")]
        + [Expectation(f"such cells on {memory} GB") for memory in MEMORIES],
        seconds=120,
    ),
    Check(
        "stopped",
        "Does a group of NCCL go on after it was idle and stopped?",
        stopped,
        [
            Expectation(
                "a turn after a stop over one before", 0.9, 1.1, unit="×",
                means="a process on a GPU cannot be stopped between its turns",
            )
        ],
        seconds=60,
    ),
    Check(
        "waits",
        "Is a net of many kernels that fills the GPU said to wait for the host?",
        waits,
        [
            ends_with(),
            Expectation("load", low=0.9, means="this batch does not fill the GPU: no answer"),
            Expectation(
                "share of steps that the GPU is behind with", low=0.5,
                means="the report says that this net waits for the host; it does not",
            ),
            Expectation(
                "profiled over not", high=1.03, unit="×", means="a profile slows later steps down"
            ),
        ],
        seconds=75,
    ),
]  # fmt: skip
