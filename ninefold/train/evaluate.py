"""An evaluation in a worker: from a checkpoint to evaluation.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from ninefold.amp import verify
from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import load_weights, weights
from ninefold.config import untrusted
from ninefold.config.spec import RunSpec
from ninefold.dataset import Examples
from ninefold.errors import CheckpointError, one_line
from ninefold.files import write_json
from ninefold.machine import environment
from ninefold.parallel import device_names
from ninefold.secrets import redact, redacted
from ninefold.task import confusion
from ninefold.train import build, evaluation


def evaluate(spec: RunSpec) -> None:
    """Evaluate a checkpoint; rank 0 writes evaluation.json and the confusion matrix."""
    wanted = OmegaConf.create(spec.job)
    assert isinstance(wanted, DictConfig)
    path = Path(wanted.checkpoint_file)
    content = read(path)
    found = weights(content)
    job = build.overlay(stored_job(content, path, wanted), wanted, path)
    if not wanted.load.partial:
        require_room(job, found, path)

    parallel, amp = build.begin(job)
    with parallel.join() as place:
        amp = amp.on(place.device)
        verify(amp, amp.grad_scaler(place.device), place.device)
        model = build.network(job, place)
        report = load_weights(model, found)
        if place.rank == 0:
            print(redact(one_line(f"{path}: {report}")), flush=True)
        if not report.complete and not wanted.load.partial:
            raise CheckpointError(
                "ckpt", path, f"it does not fit model={job.choices.model}", str(report),
                "choose the right model, or load.partial=true",
            )  # fmt: skip
        examples, prepare = build.examples_and_preparation(job)
        result = evaluation.evaluate(
            parallel.wrap(amp.wrap(model), place),
            examples,
            batch_size=job.batch_size,
            prepare=prepare,
            task=build.make(job.task, "task"),
            parallel=parallel,
            place=place,
            workers=job.loader.workers,
        )
        notes = parallel.notes(place) + amp.notes(place.device)
        if place.rank != 0:
            return
        names = class_names(job, examples, len(result.per_class))
        confusion.draw(spec.folder / "confusion.png", result.confusion.numpy(), names)
        write_json(
            spec.folder / "evaluation.json",
            redacted({
                "accuracy": result.accuracy,
                "loss": result.loss,
                "count": result.count,
                "per_class": dict(zip(names, result.per_class, strict=True)),
                "checkpoint": str(path),
                "load": str(report),
                "config": OmegaConf.to_container(job),
                "dtype": amp.dtype,
                "processes": place.world_size,
                "devices": device_names(place),
                "notes": notes,
                "environment": environment(),
            }),
        )  # fmt: skip
        print(f"accuracy {result.accuracy:.4f}  loss {result.loss:.4f}  "
              f"{result.count} examples")  # fmt: skip
        for name, accuracy in zip(names, result.per_class, strict=True):
            print(f"  {name:<12} " + ("no examples" if accuracy is None else f"{accuracy:.4f}"))
        print(f"folder {spec.folder}", flush=True)


def stored_job(content: Mapping[str, Any], path: Path, wanted: DictConfig) -> DictConfig:
    """What is taken of the job in a checkpoint, which anybody may have written; empty if none.

    Raises CheckpointError if it asks for what conf/ does not name.
    """
    text = content.get("config")
    if not isinstance(text, str):
        return OmegaConf.create({})
    named = {group: wanted.get(group) for group in untrusted.EVALUATED}
    return OmegaConf.create(untrusted.for_evaluation(text, path, named))


def require_room(job: DictConfig, found: Mapping[str, Tensor], path: Path) -> None:
    """Refuse to build a model that is far larger than the tensors it is to be filled with.

    Raises CheckpointError, ConfigError.
    """
    # By storage: a file of a few bytes can hold a tensor that says of itself that it is huge.
    plain = [t for t in found.values() if t.layout == torch.strided]  # no other one fits
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in plain)}
    held, wanted = sum(storages.values()), build.weight_bytes(job)
    if wanted is not None and wanted > 2 * held + 2**30:
        raise CheckpointError(
            "ckpt", path, f"it does not fit model={job.choices.model}",
            f"the model takes {wanted:,} bytes, the file holds {held:,}",
            "choose the right model, or load.partial=true",
        )  # fmt: skip


def class_names(job: DictConfig, examples: Examples, count: int) -> list[str]:
    """What the classes are called: as the dataset says, if it says so many names; else numbers."""
    given = job.dataset.get("class_names") or examples.names
    names = [redact(one_line(str(name)))[:64] for name in given or ()]
    return names if len(set(names)) == count else [str(label) for label in range(count)]
