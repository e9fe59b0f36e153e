"""The part `several`: what two GPUs or more show, after smoke/several and smoke/failing_rank."""

from __future__ import annotations

import json

from benchmarks.gpu.check import Check, Expectation, Figures, ends_with, first_bad
from benchmarks.gpu.session import Done, Session
from benchmarks.gpu.study import studied
from benchmarks.gpu.timings import over

SHORT = ("epochs=1", "logger=quiet", "checkpoint.every=null")
STEPS = 20  # whose losses are compared


def sized(session: Session, model: str, batch: int) -> tuple[str, ...]:
    """An epoch of 100 steps on random images, each of a batch for every GPU."""
    whole = batch * session.gpus
    sizes = (f"batch_size={whole}", f"dataset.train_count={100 * whole}", "dataset.test_count=512")
    return ("dataset=synthetic", f"model={model}", "amp=bf16", *sizes, *SHORT)


def buffers(session: Session) -> Figures:
    net = ("model.net._target_=benchmarks.gpu.odd.Turned", f"batch_size={16 * session.gpus}")
    return {"exit code": session.train("parallel=ddp", *net, *SHORT).code}


def alike(session: Session) -> Figures:
    """The losses of dp and ddp beside none's: copies between GPUs that are broken show here."""
    job = (
        "amp=fp32", "optimizer=sgd", "optimizer.lr=0.01", "logger=jsonl", "log_every=1",
        f"max_steps={STEPS}", f"batch_size={16 * session.gpus}", "checkpoint.every=null",
    )  # fmt: skip
    done = {name: session.train(*job, f"parallel={name}") for name in ("none", "dp", "ddp")}
    found: Figures = {"exit code": first_bad(*(each.code for each in done.values()))}
    none = losses(done["none"])
    for name in ("dp", "ddp") if none else ():
        found[name] = max(abs(a - b) for a, b in zip(losses(done[name]), none, strict=True))
    return found


def losses(done: Done) -> list[float]:
    file = done.folder / "metrics.jsonl"
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
    return [line["loss"] for line in lines if "loss" in line][:STEPS]


def fsdp(session: Session) -> Figures:
    """AlexNet, spread and not: what gathering costs, and what it saves."""
    kept = "parallel.reshard_after_forward=false"
    ways = {"ddp": ("parallel=ddp",), "fsdp": ("parallel=fsdp",), "kept": ("parallel=fsdp", kept)}
    job = sized(session, "alexnet", 64)
    done = {name: session.train(*job, *way) for name, way in ways.items()}
    found: Figures = {"exit code": first_bad(*(each.code for each in done.values()))}
    for one, other in (("fsdp", "ddp"), ("fsdp", "kept")):
        a, b = done[one].result, done[other].result
        if a and b:
            found[over(one, other)] = b["images_per_second"] / a["images_per_second"]
            peaks = (max(each["peak_memory_bytes"], default=0) for each in (a, b))
            found[f"memory of {over(one, other)}"] = next(peaks) / max(next(peaks), 1)
    return found


def compiled(session: Session) -> Figures:
    """ResNet-18: the share of as many times none's speed, plain and compiled."""
    found: Figures = {"exit code": 0}
    for name, more in (("plain", ()), ("compiled", ("compile=true",))):
        one = sized(session, "resnet18", 256 // session.gpus)  # of one GPU a batch of its own
        each = [
            session.train(*job, *more, f"parallel={parallel}", limit=150)
            for parallel, job in (("none", one), ("ddp", sized(session, "resnet18", 256)))
        ]
        found["exit code"] = first_bad(found["exit code"], *(done.code for done in each))
        speeds = [done.result.get("images_per_second") for done in each]
        if all(speeds):
            found[name] = speeds[1] / speeds[0] / session.gpus
    if found.get("plain") and found.get("compiled"):
        found[over("compiled", "plain")] = found["compiled"] / found["plain"]
    return found


def alive(session: Session) -> Figures:
    """Six cells of all GPUs at once, each with its groups of NCCL."""
    swept = ("parallel=ddp,fsdp", "amp=fp32,tf32,bf16", "study.ask=[time]", "study.time_budget=1")
    return studied(session, "-m", *swept, f"batch_size={16 * session.gpus}", "logger=quiet")


def killed(session: Session) -> Figures:
    task = ("parallel=ddp", "task._target_=benchmarks.gpu.odd.Killed", "launch.grace=30")
    done = session.train(*task, *SHORT, f"batch_size={16 * session.gpus}", limit=80)
    return {"exit code": done.code, "from launch to the end": done.seconds, "line": done.error}


CHECKS = [
    Check(
        "buffers",
        "Does ddp send a buffer that is not contiguous?",
        buffers,
        [ends_with(gpus=2, means="ddp with such a buffer dies at its first evaluation")],
        seconds=20,
        gpus=2,
    ),
    Check(
        "alike",
        "Do dp and ddp learn what one GPU learns?",
        alike,
        [
            ends_with(gpus=2),
            *(
                Expectation(
                    name, high=1e-3, gpus=2,
                    means="they learn something else: are copies between these GPUs broken?",
                )
                for name in ("dp", "ddp")
            ),
        ],
        seconds=45,
        gpus=2,
    ),
    Check(
        "fsdp",
        "What does fsdp cost and save, and what of it is gathering for the backward pass?",
        fsdp,
        [
            ends_with(gpus=2),
            Expectation(over("fsdp", "ddp"), unit="×", gpus=2),
            Expectation(
                f"memory of {over('fsdp', 'ddp')}", high=0.9, unit="×", gpus=2,
                means="fsdp saves no memory: is it spread?",
            ),
            Expectation(over("fsdp", "kept"), unit="×", gpus=2),
            Expectation(f"memory of {over('fsdp', 'kept')}", unit="×", gpus=2),
        ],
        seconds=75,
        gpus=2,
    ),
    Check(
        "compiled",
        "Does compiled ddp lose what its all-reduce no longer hides?",
        compiled,
        [
            ends_with(gpus=2),
            Expectation("plain", unit="of as many times none's", gpus=2),
            Expectation(
                over("compiled", "plain"), 0.97, unit="×", gpus=2,
                means="the all-reduce of compiled ddp is exposed, as its note says",
            ),
        ],
        seconds=150,
        gpus=2,
    ),
    Check(
        "alive",
        "Can six cells of all GPUs be alive at once?",
        alive,
        [
            ends_with(gpus=2),
            Expectation(
                "cells that ended badly", among=([],), gpus=2,
                means="groups of NCCL run out of something: see the log",
            ),
        ],
        seconds=120,
        gpus=2,
    ),
    Check(
        "killed",
        "How soon does a command end when one rank is killed while its peers wait in NCCL?",
        killed,
        [
            ends_with(5, gpus=2, means="the rank that was killed is not the failure reported"),
            Expectation(
                "from launch to the end", high=20, unit="s", gpus=2,
                means="the peers are waited for until launch.grace",
            ),
            Expectation("line", gpus=2),
        ],
        seconds=40,
        gpus=2,
    ),
]  # fmt: skip
