"""The run that tests of faults stop, break and resume, and the hash of where it ends."""

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ninefold.checkpoint.store import Checkpoints, read
from ninefold.errors import CheckpointError
from tests.conftest import ROOT, Shell

STEPS, PER_EPOCH = 18, 6
# Not of conf/: a resumed run builds them only if its own command names them again.
TARGETS = ["model.net._target_=tests.faults.net.Net", "task._target_=tests.faults.inject.Task"]
RUN = [
    *TARGETS, "dataset=synthetic", "dataset.train_count=96", "dataset.test_count=40",
    "dataset.shape=[1,8,8]", "dataset.flip=true", "dataset.crop=1", "batch_size=16", "epochs=3",
    "optimizer=sgd", "scheduler=cosine", "scheduler.warmup=5", "clock.warmup=0", "clock.sample=0",
    "log_every=4", "logger=quiet", "deterministic=true", "checkpoint.every=2", "device=cpu",
    "ema=0.9", "ema_warmup=true",
]  # fmt: skip
STRATEGY = {
    "none": ["parallel=none", "threads=1"],
    "ddp2": ["parallel=ddp", "parallel.processes=2", "threads=2"],
}
PRECISION = {
    "fp32": ["amp=fp32"],
    "bf16": ["amp=autocast"],
    "fp16": ["amp=scaler", "amp.dtype=float16", "amp.growth_interval=4"],
}
# What depends on the clock and not on training.
TIMES = {"train_seconds", "evaluate_seconds", "epoch_seconds", "config"}
# Should anything be fetched after all, it is refused at once.
NO_NETWORK = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https")}


def job(strategy: str, precision: str, *changes: str) -> list[str]:
    """The run's overrides, with `changes` in the place of those of the same key."""
    given = [*RUN, *STRATEGY[strategy], *PRECISION[precision], *changes]
    return list({override.partition("=")[0]: override for override in given}.values())


def again(run: Path) -> list[str]:
    """What goes on with a run."""
    return [f"resume={run}", *TARGETS]


def last_step(run: Path) -> int:
    """The step of the newest checkpoint that verifies; 0 if none was ever written.

    The run may go on: files that were named a moment ago may have been replaced.
    """
    checkpoints = Checkpoints(run / "checkpoints", keep=2)
    while before := checkpoints.manifest():
        try:
            return int(read(checkpoints.newest())["step"])
        except CheckpointError as error:
            if error.allowed == "found none":  # the first one is listed before it is in its place
                return 0
            if checkpoints.manifest() == before:
                raise
    return 0


def state_hash(run: Path) -> str:
    """sha256 of all that a run has come to: its last and best checkpoints and its metrics."""
    content = read(run / "checkpoints" / "last.pt")
    assert content["optimizer"]["state"], "an empty optimizer state proves nothing"
    digest = hashlib.sha256()
    best = read(run / "checkpoints" / "best.pt")
    for tree in (content, best["model"]):
        for name, value in leaves(tree):
            digest.update(f"{name} {value}".encode())
    for line in (run / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        for key in ("examples_per_second", "seconds"):
            values.pop(key, None)
        digest.update(json.dumps(values, sort_keys=True).encode())
    return digest.hexdigest()


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, dtype, shape and bytes) of everything in a checkpoint, in the order of names."""
    if isinstance(tree, torch.Tensor):
        data = tree.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        yield prefix, f"{tree.dtype} {tuple(tree.shape)} {hashlib.sha256(data).hexdigest()}"
    elif isinstance(tree, Mapping):
        for key in sorted(tree, key=str):
            if key not in TIMES:
                yield from leaves(tree[key], f"{prefix}.{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{prefix}[{index}]")
    else:
        yield prefix, repr(np.float64(tree) if isinstance(tree, float) else tree)


def reference(folder: Path, options: list[str]) -> Path:
    """An uninterrupted run of `options`; made once in `folder`."""
    run = folder / hashlib.sha256(" ".join(options).encode()).hexdigest()[:12]
    if not (run / "result.json").exists():
        Shell(folder).train(*options, f"hydra.run.dir={run}", code=0)
    return run


def finished(shell: Shell, folder: Path, start: list[str], options: list[str]) -> Path:
    """Bring a run to its end by `start`; return the uninterrupted run of `options` in `folder`."""
    shell.train(*start, code=0)
    return reference(folder, options)


def one_after_another(
    shell: Shell,
    *commands: Sequence[str],
    env: Mapping[str, str] | None = None,
    code: int | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """What `commands` came to: lists of a script of ours and its arguments.

    code: the exit code that each must have.
    """
    options: Any = {"env": {**NO_NETWORK, **(env or {})}, "code": code}
    done = [shell.run(str(ROOT / script), *words, **options) for script, *words in commands]
    assert not shell.survivors()
    return done


def fault(fault: str, phase: str, rank: int, number: int, mark: Path) -> dict[str, str]:
    """The environment that has this fault injected."""
    return {"FAULT": f"{fault}@{phase}:{rank}:{number}", "FAULT_MARK": str(mark)}


def fired(mark: Path) -> int:
    """How often a fault has fired."""
    return mark.stat().st_size if mark.exists() else 0


def leftovers(run: Path) -> list[str]:
    """What only a writer at work has in a run folder."""
    hidden = [path.name for path in run.rglob(".*") if path.name not in (".lock", ".hydra")]
    return [name for name in hidden if path_is_temporary(name)]


def path_is_temporary(name: str) -> bool:
    return name.startswith(".stop-") or name.endswith((".tmp", ".link", ".new.pt"))
