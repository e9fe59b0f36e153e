"""The part `doubts`: what reading the code for a GPU left open, by worth. `beside` goes on with it.

`means` says what may no longer be said where a figure is another. Before all comes whether it runs:
smoke/machine, smoke/default and smoke/tests.
"""

from __future__ import annotations

import os
from dataclasses import replace
from statistics import median

from benchmarks.gpu.check import Check, Expectation, Figures, ends_with, first_bad
from benchmarks.gpu.race import race
from benchmarks.gpu.session import Session
from benchmarks.gpu.study import SHORT, studied
from benchmarks.gpu.timings import SILENT, contestant, over

CLOCKED = {"ResNet-18": ("amp=bf16", 256), "ConvNet 8x8": ("amp=fp32", 64)}
CLOCKS = ("events", "torch.utils.benchmark")
SLICES = (0.1, 0.3)  # seconds: study.turn, and what it would be on a GPU if that is too short
FILES = {
    "ResNet-18": ("model=resnet18", "model.net.stem=imagenet"),
    "AlexNet": ("model=alexnet",),
}


def clock(session: Session) -> Figures:
    found: Figures = {}
    for net, (amp, batch) in CLOCKED.items():
        overrides = contestant(session, net, net, amp, SILENT, batch=batch).overrides
        steps = session.size(300, 10)
        said = session.call("clock", overrides=overrides, steps=steps)
        found |= {over(net, by): said[by] for by in CLOCKS}
    return found


def turns(session: Session) -> Figures:
    """A heavy cell for 40 s, and in turns of two lengths with others: power, clocks and heat."""
    cells = [
        contestant(session, f"{net} {amp}", net, f"amp={amp}", SILENT, batch=256)
        for net, amp in (("ResNet-18", "bf16"), ("ResNet-18", "fp32"), ("ConvNet 8x8", "fp32"))
    ]
    lasts = session.size((40, 2, 2), (0.1, 0.1, 0.1))
    alone = [
        session.call("long", overrides=each.overrides, lasts=seconds)
        for each, seconds in zip(cells, lasts, strict=True)
    ]
    heavy, long = cells[0].name, alone[0]
    found: Figures = {key: long.get(key) for key in ("watts", "trace")}
    for end in ("second", "5 s"):
        found[f"the first {end} over the end"] = long[f"ms of the first {end}"] / long["ms"]
    for slice_ in SLICES:
        made = [
            replace(each, steps=max(2, round(1e3 * slice_ / said["ms"])))
            for each, said in zip(cells, alone, strict=True)
        ]
        raced = race(session, *([each] for each in made), rounds=session.size(15, 1))
        found[in_turns(slice_)] = 1e3 * median(raced[heavy]) / long["ms"]
    return found


def in_turns(slice_: float) -> str:
    return over(f"a turn of {slice_} s", "a long run, a step")


<<<<<<< HEAD
def graph(session: Session) -> Figures:
    """A recorded step with and without sampled steps; the largest batch, trained for 12 steps."""
    net, on = "ConvNet 8x8", "graph=true"
    group = [
        contestant(session, "graph", net, on),
        contestant(session, "graph, sampled", net, on, "clock.sample=20"),
        contestant(session, "no graph", net),
        contestant(session, "no graph, sampled", net, "clock.sample=20"),
        contestant(session, "raw graph", net, kind="raw_graph"),
    ]
    pairs = (
        ("graph, sampled", "graph"), ("graph", "no graph"), ("graph", "raw graph"),
        ("no graph, sampled", "no graph"),
    )  # fmt: skip
    found = figures(race(session, group, rounds=session.size(7, 1)), *pairs)
    for name, more in (("reserved with a graph", (on,)), ("reserved without", ())):
        overrides = contestant(session, name, "ResNet-18", "amp=bf16", *more).overrides
        found[name] = session.call("long", overrides=overrides, lasts=0.1).get("MiB")
    full = ("amp=bf16", "model=resnet18", "dataset=synthetic", "dataset.train_count=32768")
    job = (*session.size(full, (*SMALLEST, "device=cpu")), on)
    folder = session.new_folder()
    command = ("-m", "ninefold", "finders", "what=batch_size", *job, f"hydra.run.dir={folder}")
    session.command(*command, limit=200, folder=folder)
    batch = read(folder / "batch_size.json").get("batch_size", 64)
    done = session.train(*job, f"batch_size={batch}", "max_steps=12", "logger=quiet")
    return {**found, "largest batch": batch, "exit code": done.code}


=======
>>>>>>> h3
def files(session: Session) -> Figures:
    """JPEG files in turns and in a whole run, and by twice as many threads."""
    root, count = session.scratch / "jpegs", session.size(2000, 80)
    session.call("jpegs", folder=str(root), count=count, processes=min(16, os.cpu_count() or 1))
    tiny = ("model=convnet", "dataset.shape=[3,32,32]", "model.net.width=8", "batch_size=16")
    found: Figures = {"exit code": 0}
    for net, options in FILES.items():
        job = (
            "dataset=folder", f"dataset.root={root}", "dataset.classes=4", "checkpoint.every=null",
            *session.size(options, tiny),
        )  # fmt: skip
        whole = None
        for workers in (8, 16) if net == "ResNet-18" else (8,):
            more = ("amp=bf16", "epochs=2", f"loader.workers={workers}", "logger=quiet")
            result = session.train(*job, *more, limit=120).result
            found[f"{net}, {workers} threads"] = result.get("images_per_second")
            whole = whole or (result.get("epoch_seconds") or [None])[-1]
        time_of = session.size(("study.time_budget=0.5",), SHORT)
        asked = ("parallel=none", "amp=bf16,fp32", "study.ask=[time]", "loader.workers=8")
        report = studied(session, "-m", *job, *asked, *time_of)
        found["exit code"] = first_bad(found["exit code"], report["exit code"])
        each = report.get("seconds an epoch", {}).get("none-bf16")
        if each and whole:
            found[over(f"{net}: an epoch in turns", "one of a whole run")] = each / whole
    one, other = (found.get(f"ResNet-18, {workers} threads") for workers in (16, 8))
    if one and other:
        found["16 threads over 8"] = one / other
    return found


def tf32(session: Session) -> Figures:
    found: Figures = session.call("tf32")
    default = found.get("torch's default: a step")
    for amp in ("fp32", "tf32") if default else ():
        found[over(amp, "torch's default")] = found[f"{amp}: a step"] / default
    return found


CHECKS = [
    Check(
        "clock",
        "Does the inner clock measure what CUDA's events and PyTorch's own timer measure?",
        clock,
        [
            Expectation(over(net, by), 0.99, 1.01, unit="×", means="the inner clock is wrong")
            for net in CLOCKED
            for by in CLOCKS
        ],
        seconds=45,
    ),
    Check(
        "turns",
        "Is a turn's step that of a long run, whose power and heat are others?",
        turns,
        [
            Expectation(
                in_turns(SLICES[0]), 0.98, 1.02, unit="×",
                means="a turn is no long run's step: on a GPU study.turn must be 0.3",
            ),
            Expectation(
                in_turns(SLICES[1]), 0.98, 1.02, unit="×",
                means="0.3 s are too short as well: heavy cells are compared by whole runs alone",
            ),
            Expectation(
                "the first second over the end", 0.98, 1.02, unit="×",
                means="a long stretch is no long run: it must take 5 s (STRETCH in turn_plan.py)",
            ),
            Expectation(
                "the first 5 s over the end", 0.98, 1.02, unit="×",
                means="heat takes longer than 5 s: no stretch shows it, and pages must say so",
            ),
            Expectation("watts", unit="W"),
            Expectation("trace"),
        ],
        seconds=140,
    ),
    Check(
        "files",
        "Do turns pay for the files that they read?",
        files,
        [
            ends_with(),
            *(
                Expectation(
                    over(f"{net}: an epoch in turns", "one of a whole run"), 0.95, 1.05, unit="×",
                    means="a turn gets batches that were read in others' turns, or pays for theirs",
                )
                for net in FILES
            ),
            *(Expectation(f"{net}, 8 threads", unit="images/s") for net in FILES),
            Expectation(
                "16 threads over 8", 0.74, 0.94, unit="×",
                means="published: 16 workers are 16 % slower than 8; explain it",
            ),
        ],
        seconds=180,
    ),
    Check(
        "tf32",
        "Is fp32 IEEE, and tf32 TF32, by value? Which is the nearer to PyTorch's default in speed?",
        tf32,
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
            Expectation(
                over("tf32", "torch's default"), 0.9, 1.1, unit="×",
                means="amp=tf32 is not what PyTorch does by default: the report may not say so",
            ),
            Expectation(over("fp32", "torch's default"), unit="×"),
        ],
        seconds=30,
    ),
]  # fmt: skip
