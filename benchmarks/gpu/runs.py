"""What the checks of the part `smoke` run, and what they take from it. See smoke.py."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from benchmarks.gpu.check import Figures, first_bad
from benchmarks.gpu.session import ROOT, Done, Session, read

BATCHES = ("dataset=synthetic", "logger=quiet", "checkpoint.every=null")
MARK = "pytest.mark.gpu"
PRECISIONS = ("fp32", "autocast", "scaler", "tf32", "bf16")
ASKS_FOR_CUDA = """
import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Sequential):
    def __init__(self, channels=1, classes=10, width=8):
        super().__init__(nn.Flatten(), nn.Linear(64 * channels, classes))
"""


def small(session: Session) -> tuple[str, ...]:
    """An epoch of 50 steps on random images, in a dry run of 2."""
    counts = session.size((3200, 512, 64), (8, 4, 4))
    sizes = (f"dataset.train_count={counts[0]}", f"dataset.test_count={counts[1]}")
    return (*BATCHES, *sizes, f"batch_size={counts[2]}", "epochs=1")


def machine(session: Session) -> Figures:
    """The facts about this machine; they are in the record of each part."""
    found = session.call("machine")
    return {
        "GPUs": found["gpu_names"],
        "compute capability": found["capability"],
        "bfloat16": found["bfloat16"],
        "cuDNN": found["cudnn"],
        "NCCL": found["nccl"],
        "can compile": found["compiles"],
    }


def default(session: Session) -> Figures:
    epochs = (f"epochs={session.size(10, 2)}",)
    done = session.train(*epochs)
    found, codes = done.result, [done.code]
    figures = described(done)
    if session.gpus:
        twin = session.train(*epochs, "device=cpu")
        codes.append(twin.code)
        if found and twin.result:
            apart = 100 * (found["accuracy"] - twin.result["accuracy"])
            figures["accuracy, less the CPU's"] = abs(apart)
    return {**figures, "exit code": first_bad(*codes)}


def described(done: Done) -> Figures:
    """What result.json says of a run's device and measurements."""
    found = done.result
    if not found:
        return {}
    return {
        "accuracy": found["accuracy"],
        "devices": found["devices"],
        "phases": len(found["phase_seconds"]),
        "peak memory": max(found["peak_memory_bytes"], default=0) / 1e6,
        "from launch to result": found["total_seconds"],
        "images per second": found["images_per_second"],
    }


def nets(session: Session) -> Figures:
    resnet = session.train("model=resnet18", *small(session))
    pixels = session.size((), ("model.input_size=64",))
    alexnet = session.train("model=alexnet", "amp=scaler", *small(session), *pixels)
    return {
        "exit code": first_bad(resnet.code, alexnet.code),
        "dtype with a GradScaler": alexnet.result.get("dtype"),
    }


def cells(session: Session) -> Figures:
    folder = session.new_folder()
    length = session.size("epochs=2", "max_steps=2")
    done = session.train(
        "-m", "parallel=none,dp,ddp", f"amp={','.join(PRECISIONS)}", length, "logger=quiet",
        f"hydra.sweep.dir={folder}", folder=folder, limit=240,
    )  # fmt: skip
    found = [read(file) for file in folder.glob("*/result.json")]
    ok = [result for result in found if result["status"] == "ok"]
    return {
        "exit code": done.code,
        "cells that ended well": len(ok),
        "dtypes of autocast and scaler": sorted(
            {result["dtype"] for result in ok if result["amp"] in ("autocast", "scaler")}
        ),
        "cells in TF32": sorted({result["amp"] for result in ok if result["tf32"]}),
        "cells that say that they repeat none": sum(
            any("no-op on" in note for note in result["notes"])
            for result in ok
            if result["parallel"] == "dp"
        ),
        "points of accuracy between cells": spread([100 * each["accuracy"] for each in ok]),
    }


def spread(values: list[float]) -> float | None:
    return max(values) - min(values) if values else None


def user_module(session: Session) -> Figures:
    folder = session.new_folder()
    folder.mkdir()
    (folder / "asks_for_cuda.py").write_text(ASKS_FOR_CUDA)
    options = ("model.net._target_=asks_for_cuda.Net", "epochs=1", "logger=quiet")
    return {"exit code": session.train(*options, path=folder).code}


def compiled(session: Session) -> Figures:
    plain = session.train(*small(session), "compile=true", limit=150)
    options = ("compile.mode=reduce-overhead", "parallel=ddp", "amp=bf16")
    graphs = session.train(*small(session), *options, limit=150)
    return {
        "exit code": first_bad(plain.code, graphs.code),
        "compiling": plain.result.get("compile_seconds"),
        "compiling, with graphs, ddp, bf16": graphs.result.get("compile_seconds"),
        "outputs that a replay overwrote": "overwritten by a subsequent run" in graphs.output,
    }


def profile(session: Session) -> Figures:
    net = session.size(("model=resnet18", "amp=bf16"), ("model=convnet",))
    more = ("profile=true", "numerics=3")
    done = session.train(*small(session), *net, *more)
    bound = done.line("The run is bound by")
    folder = done.folder
    return {
        "exit code": done.code,
        "bound by": bound.partition("bound by the ")[2].partition(":")[0] or bound,
        "its line": bound,
        "trace": any((folder / "profile").glob("*.json.gz")),
        "first steps recorded": (folder / "numerics.npz").exists(),
    }


def resume(session: Session) -> Figures:
    """In a ResNet-18: all of its operators have deterministic kernels."""
    net = session.size("resnet18", "convnet")
    counts = session.size((1280, 64, 27), (32, 8, 5))
    job = (
        f"model={net}", "dataset=synthetic", f"dataset.train_count={counts[0]}",
        f"batch_size={counts[1]}", "dataset.test_count=16", "dataset.flip=true", "dataset.crop=4",
        "epochs=3", "deterministic=true", "amp=scaler", "logger=quiet",
    )  # fmt: skip
    whole, part = session.train(*job), session.train(*job, f"max_steps={counts[2]}")
    rest = session.train(f"resume={part.folder}", "max_steps=null", folder=part.folder)
    code = first_bad(whole.code, part.code, rest.code)
    if code:
        return {"exit code": code}
    folders = {"one": str(whole.folder), "other": str(part.folder)}
    return {"exit code": 0, **session.call("same_weights", **folders)}


def deterministic(session: Session) -> Figures:
    done = session.train("deterministic=true", "epochs=1", "logger=quiet")
    return {"exit code": done.code, "what it says": done.error or "nothing"}


def signals(session: Session) -> Figures:
    count = session.size(64000, 1600)
    job = (
        "dataset=synthetic", f"dataset.train_count={count}", "epochs=100000", "logger=quiet",
        "log_every=10", "checkpoint.every=null",
    )  # fmt: skip
    first = session.train(*job, watch=stop_after_steps, limit=60)
    steps = saved_step(first)
    more = (f"resume={first.folder}",)
    second = session.train(*more, watch=stop_after_steps, folder=first.folder, limit=60)
    return {
        "exit codes": [first.code, second.code],
        "steps between the signals": saved_step(second) - steps,
    }


def stop_after_steps(process: subprocess.Popen[str], folder: Path) -> None:
    """Send SIGTERM once the run in `folder` has logged some steps more than it has now."""
    file, end = folder / "metrics.jsonl", time.monotonic() + 45

    def lines() -> int:
        return len(file.read_text().splitlines()) if file.exists() else 0

    before = lines()
    while process.poll() is None and time.monotonic() < end and lines() < before + 3:
        time.sleep(0.1)
    process.terminate()


def saved_step(done: Done) -> int:
    """The step at which a run says that it is saved; -1 if it does not."""
    words = done.line("it is saved at step").partition("saved at step ")[2].split()
    return int(words[0]) if words else -1


def evaluate(session: Session) -> Figures:
    done = session.train("epochs=1", "logger=quiet", "amp=scaler")
    devices = ("cuda", "cpu") if session.gpus else ("cpu",)
    found, codes = [], [done.code]
    for device in devices:
        into = session.new_folder()
        options = (f"ckpt={done.folder}", f"device={device}", f"hydra.run.dir={into}")
        precision = () if device == "cuda" else ("amp=fp32",)
        ended = session.command(
            str(ROOT / "evaluate.py"), *options, *precision, limit=60, folder=into
        )
        codes.append(ended.code)
        found.append(read(into / "evaluation.json"))
    hits = [each["accuracy"] * each["count"] for each in found if each]
    return {
        "exit code": first_bad(*codes),
        "examples judged otherwise than on the CPU": spread(hits) if len(hits) == 2 else None,
    }


def launchers(session: Session) -> Figures:
    one = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    options = ("parallel=ddp", "epochs=1", "logger=quiet")
    torchrun = session.train(*options, launcher=one)
    figures: Figures = {"exit code": torchrun.code}
    if session.gpus:
        count = session.gpus + 1
        sizes = (f"parallel.processes={count}", f"batch_size={16 * count}")
        refused = session.train(*options, *sizes)
        figures["exit code of more processes than GPUs"] = refused.code
        figures["what it says"] = refused.error
    return figures


def memory(session: Session) -> Figures:
    job = (*BATCHES, "dataset.train_count=40000", "max_steps=2", "epochs=2")
    resnet = session.train(*job, "model=resnet18", "batch_size=40000")
    alexnet = session.train(*job, "model=alexnet", "batch_size=20000")
    return {
        "exit code of ResNet-18, batch 40,000": resnet.code,
        "what it says": resnet.error,
        "exit code of AlexNet, batch 20,000": alexnet.code,
        "what AlexNet says": alexnet.error or "nothing",
    }


def loader(session: Session) -> Figures:
    done = session.train(*small(session), "loader.workers=4", "dataset.resident=false")
    return {"exit code": done.code, "loader threads": done.result.get("loader_workers")}


def gpu_tests(root: Path) -> list[str]:
    """The test files of the repository in `root` that have tests for a GPU."""
    files = sorted(
        file for name in ("tests", "examples") for file in (root / name).rglob("test_*.py")
    )
    return [str(file) for file in files if MARK in file.read_text()]


def tests(session: Session) -> Figures:
    """Only files that have such tests: others import packages that a bare machine lacks."""
    options = ("-q", "-W", "default", "-p", "no:cacheprovider", "-m", "gpu", *gpu_tests(ROOT))
    done = session.command("-m", "pytest", *options, f"--rootdir={ROOT}", limit=240)
    last = next(iter(done.output.strip().splitlines()[-1:]), "")
    return {"exit code": done.code, "what pytest says": last}


def several(session: Session) -> Figures:
    """ddp over NCCL and dp over all GPUs: alike in what they learn, and ddp resumes exactly."""
    job = ("dataset=synthetic", "model=resnet18", "dataset.train_count=2560", "epochs=2",
           "logger=quiet", f"batch_size={64 * session.gpus}", "numerics=3")  # fmt: skip
    runs = {name: session.train(*job, f"parallel={name}") for name in ("none", "dp", "ddp")}
    exact = (*job, "parallel=ddp", "deterministic=true")
    whole, part = session.train(*exact), session.train(*exact, "max_steps=7")
    rest = session.train(f"resume={part.folder}", "max_steps=null", folder=part.folder)
    codes = [done.code for done in (*runs.values(), whole, part, rest)]
    figures: Figures = {
        "exit code": first_bad(*codes),
        "replicas of dp": runs["dp"].result.get("replicas"),
        "processes of ddp": runs["ddp"].result.get("processes"),
    }
    if not first_bad(*codes):
        folders = {"one": str(whole.folder), "other": str(part.folder)}
        figures |= session.call("same_weights", **folders)
    return figures


def failing_rank(session: Session) -> Figures:
    """How soon a command ends when one rank fails while its peers wait inside NCCL."""
    task = "task._target_=benchmarks.gpu.fails_alone.FailsAlone"
    options = ("parallel=ddp", task, "epochs=1", "logger=quiet", "launch.grace=30")
    done = session.train(*options, f"batch_size={16 * session.gpus}", limit=80)
    return {"exit code": done.code, "from launch to the end": done.seconds, "line": done.error}
