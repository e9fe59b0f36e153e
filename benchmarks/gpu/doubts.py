"""The part `doubts`: what reading the code for a GPU left open, by worth.

`means` says what may no longer be said where a figure is another. Before all comes whether it runs:
smoke/machine, smoke/default and smoke/tests.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from statistics import median

from benchmarks.gpu.check import Check, Expectation, Figures, ends_with
from benchmarks.gpu.race import READY, answer, process, race
from benchmarks.gpu.session import Session, read
from benchmarks.gpu.study import SHORT, SMALLEST, studied
from benchmarks.gpu.timings import SILENT, contestant, figures, over

CLOCKED = {"ResNet-18": ("amp=bf16", 256), "ConvNet 8x8": ("amp=fp32", 64)}
IDLE = (4, 14)  # cells that wait beside one that trains


def clock(session: Session) -> Figures:
    found: Figures = {}
    for net, (amp, batch) in CLOCKED.items():
        overrides = contestant(session, net, net, amp, SILENT, batch=batch).overrides
        steps = session.size(300, 10)
        found[net] = session.call("clock", overrides=overrides, steps=steps)["ratio"]
    return found


def turns(session: Session) -> Figures:
    """A heavy cell for 40 s, and in turns with light ones: power, clocks and heat."""
    made = [
        contestant(session, f"{net} {amp}", net, f"amp={amp}", SILENT, batch=256)
        for net, amp in (("ResNet-18", "bf16"), ("ResNet-18", "fp32"), ("ConvNet 8x8", "fp32"))
    ]
    found = race(session, *([each] for each in made), rounds=session.size(15, 1))
    overrides = made[0].overrides
    alone = session.call("long", overrides=overrides, lasts=session.size(40, 0.1))
    in_turns = 1e3 * median(found[made[0].name])
    return {
        **figures(found),
        "a turn's step over a long run's": in_turns / alone["ms"],
        "watts of the long run": alone.get("watts"),
    }


def graph(session: Session) -> Figures:
    """A recorded step with and without sampled steps; the largest batch, trained for 12 steps."""
    net, on = "ConvNet 8x8", "graph=true"
    group = [
        contestant(session, "graph", net, on),
        contestant(session, "graph, sampled", net, on, "clock.sample=20"),
        contestant(session, "no graph", net),
        contestant(session, "raw graph", net, kind="raw_graph"),
    ]
    pairs = (("graph, sampled", "graph"), ("graph", "no graph"), ("graph", "raw graph"))
    found = figures(race(session, group, rounds=session.size(7, 1)), *pairs)
    full = ("amp=bf16", "model=resnet18", "dataset=synthetic", "dataset.train_count=32768")
    job = (*session.size(full, (*SMALLEST, "device=cpu")), on)
    folder = session.new_folder()
    command = ("-m", "ninefold.finders", "what=batch_size", *job, f"hydra.run.dir={folder}")
    session.command(*command, limit=200, folder=folder)
    batch = read(folder / "batch_size.json").get("batch_size", 64)
    done = session.train(*job, f"batch_size={batch}", "max_steps=12", "logger=quiet")
    return {**found, "largest batch": batch, "exit code": done.code}


def files(session: Session) -> Figures:
    """JPEG files in turns and in a whole run, and by twice as many threads."""
    root, count = session.scratch / "jpegs", session.size(2000, 80)
    session.call("jpegs", folder=str(root), count=count, processes=min(16, os.cpu_count() or 1))
    tiny = ("model=convnet", "dataset.shape=[3,32,32]", "model.net.width=8", "batch_size=16")
    job = (
        "dataset=folder", f"dataset.root={root}", "dataset.classes=4", "checkpoint.every=null",
        *session.size(("model=resnet18", "model.net.stem=imagenet"), tiny),
    )  # fmt: skip
    found: Figures = {}
    for workers in (8, 16):
        options = ("amp=bf16", "epochs=2", f"loader.workers={workers}", "logger=quiet")
        result = session.train(*job, *options, limit=120).result
        found[f"{workers} threads"] = result.get("images_per_second")
        found.setdefault("an epoch", (result.get("epoch_seconds") or [None])[-1])
    if found["8 threads"] and found["16 threads"]:
        found["16 threads over 8"] = found["16 threads"] / found["8 threads"]
    time_of = session.size(("study.time_budget=0.7",), SHORT)
    asked = ("parallel=none", "amp=bf16,fp32", "study.ask=[time]", "loader.workers=8")
    report = studied(session, "-m", *job, *asked, *time_of)
    each = report.get("seconds an epoch", {}).get("none-bf16")
    if each and found["an epoch"]:
        found["an epoch in turns over one of a whole run"] = each / found["an epoch"]
    return {**found, "exit code": report["exit code"]}


def neighbors(session: Session) -> Figures:
    """Steps alone, and beside cells that are ready and wait, each with a group of NCCL."""
    found: Figures = {}
    nets = ("ConvNet 8x8", "ResNet-18")
    train = [contestant(session, net, net) for net in nets]
    for count in (0, *session.size(IDLE, (1,))):
        idle = [[contestant(session, f"{n}", nets[0], "parallel=ddp")] for n in range(count)]
        with ExitStack() as stack:
            groups = [stack.enter_context(process(session, each)) for each in [*idle, train]]
            ready = [answer(session, group, READY) for group in groups]
            assert all(ready), "a cell could not be built"
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
        "clock",
        "Does the inner clock measure what CUDA's own events measure?",
        clock,
        [Expectation(net, 0.99, 1.01, means="the inner clock is wrong") for net in CLOCKED],
        seconds=30,
    ),
    Check(
        "turns",
        "Is a turn's step that of a long run, whose power and heat are others?",
        turns,
        [
            Expectation(
                "a turn's step over a long run's", 0.98, 1.02, unit="×",
                means="a turn is no long run's step: turns must be longer on a GPU",
            ),
            Expectation("watts of the long run", unit="W"),
        ],
        seconds=90,
    ),
    Check(
        "graph",
        "What does a recorded step gain as users run it, and does the largest batch survive it?",
        graph,
        [
            Expectation(
                over("graph, sampled", "graph"), high=1.03, unit="×",
                means="sampled steps are timed with a recorded run's",
            ),
            Expectation(
                over("graph", "no graph"), high=0.5, unit="×", means="a graph does not halve a step"
            ),
            Expectation(over("graph", "raw graph"), high=1.25, unit="×"),
            Expectation("largest batch"),
            ends_with(means="the largest batch that is found does not train"),
        ],
        seconds=110,
    ),
    Check(
        "files",
        "Do turns pay for the files that they read?",
        files,
        [
            ends_with(),
            Expectation(
                "an epoch in turns over one of a whole run", 0.95, 1.05, unit="×",
                means="a turn gets batches that were read in others' turns, or pays for theirs",
            ),
            Expectation("8 threads", unit="images/s"),
            Expectation(
                "16 threads over 8", 0.74, 0.94, unit="×",
                means="published: 16 workers are 16 % slower than 8; explain it",
            ),
        ],
        seconds=90,
    ),
    Check(
        "tf32",
        "Is fp32 IEEE, and tf32 TF32, by value?",
        lambda session: session.call("tf32"),
        [
            *(
                Expectation(
                    f"{amp}: a {what} keeps it", among=(amp == "fp32",),
                    means=f"amp={amp} is not what it is called",
                )
                for amp in ("fp32", "tf32")
                for what in ("product", "convolution")
            ),
            Expectation("torch's default: a product keeps it"),
            Expectation("torch's default: a convolution keeps it"),
        ],
        seconds=20,
    ),
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
        ],
        seconds=90,
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
