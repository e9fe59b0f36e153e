"""An evaluation in a worker: from a checkpoint to evaluation.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ninefold import build, confusion, evaluation
from ninefold.amp import verify
from ninefold.checkpoint import read
from ninefold.errors import CheckpointError
from ninefold.order import Order
from ninefold.parallel import device_names
from ninefold.result import environment, write_json
from ninefold.weights import load_weights, weights


def evaluate(order: Order) -> None:
    """Evaluate a checkpoint; rank 0 writes evaluation.json and the confusion matrix."""
    wanted = OmegaConf.create(order.job)
    assert isinstance(wanted, DictConfig)
    path = Path(wanted.checkpoint_file)
    content = read(path)
    job = build.overlay(stored_job(content, path), wanted, path)

    parallel, amp = build.begin(job)
    with parallel.join() as place:
        amp = amp.on(place.device)
        verify(amp, amp.grad_scaler(place.device), place.device)
        model = build.network(job, place)
        report = load_weights(model, weights(content))
        if place.rank == 0:
            print(f"{path}: {report}", flush=True)
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
        names = [str(label) for label in range(len(result.per_class))]
        names = list(job.dataset.get("class_names") or examples.names or names)
        confusion.draw(order.folder / "confusion.png", result.confusion.numpy(), names)
        write_json(
            order.folder / "evaluation.json",
            {
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
            },
        )
        print(f"accuracy {result.accuracy:.4f}  loss {result.loss:.4f}  "
              f"{result.count} examples")  # fmt: skip
        for name, accuracy in zip(names, result.per_class, strict=True):
            print(f"  {name:<12} " + ("no examples" if accuracy is None else f"{accuracy:.4f}"))
        print(f"folder {order.folder}", flush=True)


def stored_job(content: Mapping[str, Any], path: Path) -> DictConfig:
    """The frozen job in a checkpoint, which names no target that conf/ does not; empty if none.

    Raises CheckpointError.
    """
    text = content.get("config")
    try:
        job = OmegaConf.create(text if isinstance(text, str) else "{}")
    except Exception as error:  # anybody may have written it
        raise CheckpointError(
            "ckpt", path, "its configuration cannot be read", str(error).partition("\n")[0],
            "see config.yaml of a run of ours",
        ) from error  # fmt: skip
    if not isinstance(job, DictConfig):
        raise CheckpointError(
            "ckpt", path, "its configuration is no mapping", f"it is a {type(job).__name__}",
            "see config.yaml of a run of ours",
        )  # fmt: skip
    build.require_known_targets(OmegaConf.to_container(job), path)
    return job
