"""The part `rest`: checkpoints beside steps, decoding, what a long run keeps, the largest batch."""

from __future__ import annotations

import os

from benchmarks.gpu.check import Check, Expectation, Figures, ends_with, first_bad
from benchmarks.gpu.session import Session, read
from benchmarks.gpu.study import SMALLEST

WORKERS = ("0", "4", "auto")  # of loader.workers


def checkpoints(session: Session) -> Figures:
    """AlexNet's 733 MB with AdamW, at 64 pixels so that steps are short."""
    full = (
        "model=alexnet", "model.input_size=null", "dataset=synthetic", "dataset.shape=[3,64,64]",
        "dataset.train_count=3200", "batch_size=64",
    )  # fmt: skip
    tiny = ("dataset=synthetic", "dataset.train_count=64", "batch_size=16", "device=cpu")
    overrides = (*session.size(full, tiny), "dataset.test_count=64")
    sizes = session.size({"saves": 4, "steps": 20}, {"saves": 2, "steps": 1})
    return session.call("checkpoints", overrides=overrides, **sizes)


def folder(session: Session) -> Figures:
    """ResNet-18 on JPEG files at 224 pixels, read by some numbers of threads."""
    root = session.scratch / "jpegs"
    count = session.size(6400, 80)
    session.call("jpegs", folder=str(root), count=count, processes=min(16, os.cpu_count() or 1))
    found: Figures = {}
    tiny = ("dataset.shape=[3,32,32]", "model.net.width=8", "batch_size=16")
    net = session.size(("model=resnet18", "model.net.stem=imagenet", "amp=bf16"), tiny)
    for workers in session.size(WORKERS, WORKERS[:2]):
        done = session.train(
            "dataset=folder", f"dataset.root={root}", "dataset.classes=4", *net, "epochs=2",
            f"loader.workers={workers}", "logger=quiet", "checkpoint.every=null",
            limit=120,
        )  # fmt: skip
        result = done.result
        found["exit code"] = first_bad(found.get("exit code", 0), done.code)
        found[f"{workers} threads"] = result.get("images_per_second")
        found["threads that auto means"] = result.get("loader_workers")
    return found


def events(session: Session) -> Figures:
    """350,000 CUDA events, with a log point each 50 steps."""
    return session.call("events", steps=session.size(50000, 200), every=50)


def largest_batch(session: Session) -> Figures:
    full = ("amp=bf16", "model=resnet18", "dataset=synthetic", "dataset.train_count=32768")
    folder = session.new_folder()
    job = session.size(full, (*SMALLEST, "device=cpu"))
    command = ("-m", "ninefold", "finders", "what=batch_size", *job, f"hydra.run.dir={folder}")
    done = session.command(*command, limit=330, folder=folder)
    found = read(folder / "batch_size.json")
    return {
        "exit code": done.code,
        "largest batch": found.get("batch_size"),
        "searches that failed": int(found.get("status") == "failed"),
        "why": found.get("why"),
    }


CHECKS = [
    Check(
        "checkpoints",
        "What do checkpoints take from the steps?",
        checkpoints,
        [
            Expectation(
                "page-locked",
                among=(True,),
                means="the system refuses it: a save waits longer, and a note says so",
            ),
            Expectation("stall", unit="ms"),
            Expectation("a save that waits", unit="s"),
            Expectation(
                "stall over a save that waits",
                high=0.05,
                unit="×",
                means="the copy off the GPU is slow: is its memory pinned?",
            ),
            Expectation(
                "step during a write over one without",
                high=1.3,
                unit="×",
                means="writing takes time from the host that launches the steps",
            ),
        ],
        seconds=70,
    ),
    Check(
        "folder",
        "How many threads does it take to decode as fast as ResNet-18 trains at 224 pixels?",
        folder,
        [
            Expectation("exit code", among=(0,), gpus=0),
            *(Expectation(f"{workers} threads", unit="images/s") for workers in WORKERS),
            Expectation("threads that auto means"),
        ],
        seconds=120,
    ),
    Check(
        "events",
        "What does a long run keep of its timed phases?",
        events,
        [
            Expectation(
                "µs a timed step",
                high=200,
                unit="µs",
                means="timing the phases costs much: sample fewer steps (clock.sample)",
            ),
            Expectation(
                "MiB more",
                high=50,
                unit="MiB",
                gpus=0,
                means="events of timed steps are kept: a long run's memory grows",
            ),
            Expectation("steps whose phases are known"),
        ],
        seconds=20,
    ),
    Check(
        "largest_batch",
        "Is the largest batch found, and is every refusal about memory?",
        largest_batch,
        [
            ends_with(),
            Expectation("largest batch", gpus=0),
            Expectation(
                "searches that failed",
                high=0,
                gpus=0,
                means="the search met an error that it does not take for memory: see why",
            ),
            Expectation("why", gpus=0),
        ],
        seconds=90,
    ),
]
