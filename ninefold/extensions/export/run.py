"""An export: from a checkpoint to a verified file with export.json beside it."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from ninefold.dataset import Examples
from ninefold.engine.amp import Amp
from ninefold.engine.parallel import RankContext
from ninefold.engine.task import Task, scoring
from ninefold.errors import ConfigError, ResourceError, one_line
from ninefold.extensions.export import check, formats, graph
from ninefold.files import mount_of, read_json, replace_durably, write_durably, write_json
from ninefold.secrets import redact, redacted
from ninefold.train import build
from ninefold.train.evaluate import Restored, class_names, restored
from ninefold.tree import Tree, each, leaves
from ninefold.waits import locked, poll_until, telling

DESCRIPTION = "export.json"
EXAMPLES = 64  # of the test set, with which a file is verified
UNVERIFIED = ".ninefold-export-"  # the beginning of a folder's name; TemporaryDirectory adds eight


@dataclass(frozen=True)
class Wanted:
    """What a command asks for.

    job: the frozen job of an evaluation of the checkpoint. cache: of its settled job.
    file: to write; its suffix is that of the format.
    """

    job: str
    cache: Mapping[str, str] | None
    format: str
    prepare: bool
    file: Path


def export(wanted: Wanted) -> None:
    """Write the file and export.json, and print what they are. Raises Failure."""
    kind = formats.FORMATS[wanted.format]
    kind.require()
    job = OmegaConf.create(wanted.job)
    assert isinstance(job, DictConfig)
    found = restored(job)
    found.tell()
    found.require_complete(job.load.partial)
    found.require_finite()
    torch.set_num_threads(found.job.threads)
    here = RankContext(0, 1, torch.device("cpu"))
    fp32 = Amp(dtype="float32")
    _, examples, prepare, layout = build.examples_and_preparation(
        found.job, fp32, here, wanted.cache
    )
    found.model.to(memory_format=getattr(torch, layout))
    task = found.built_task()
    build.trial_of(found.job, found.model, task, here).evaluation(examples, prepare)
    inputs, targets = first(examples, EXAMPLES)
    predicting = build.predicting(found.job, found.model)
    source = graph.source(found.model, predicting, inputs, targets, prepare, wanted.prepare)
    data = kind.made(source, {"weights": found.weights, "load": loaded(found)})
    with writing(wanted.file, len(data)), alone(wanted.file.parent) as folder:
        new, description = Path(folder, wanted.file.name), Path(folder, DESCRIPTION)
        write_durably(new, data)
        comparison = check.compared(source, kind.open(source, new), task, wanted.format)
        comparison.require_same(wanted.format)
        with torch.no_grad():
            output = source.expected(*check.taken(source.prepared, slice(1)))
        entry = {
            "format": wanted.format,
            "file": wanted.file.name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "inputs": list(map(described, source.names, leaves(source.inputs))),
            "outputs": [described(*pair) for pair in source.outputs(output).items()],
            **about(found, examples, wanted.prepare, prepare, task),
            "difference": comparison.difference,
            "verified": {
                "examples": comparison.examples,
                "allowed": comparison.allowed,
                "decisions": comparison.decisions,
                "changed": comparison.changed,
            },
            "versions": {name: version(name) for name in ("torch", *kind.packages)},
        }
        path = wanted.file.parent / DESCRIPTION
        write_json(description, redacted({**entry, "others": others(path, wanted.file.name)}))
        os.replace(new, wanted.file)  # now that there is room for both
        replace_durably(description, path)
    sampled = "The network samples; outputs were compared with the same random numbers."
    for note in [*found.notes, *[sampled] * comparison.samples]:
        print(f"note: {note}")
    taken, given = (
        " and ".join("{dtype} {shape}".format(**one).replace("'", "") for one in entry[key])
        for key in ("inputs", "outputs")
    )
    print(
        f"{wanted.file}: {len(data):,} bytes, from {taken} to {given}; on {comparison.examples} "
        f"test examples outputs differ by {comparison.difference:.1e} at most",
        flush=True,
    )


@contextmanager
def writing(file: Path, size: int) -> Iterator[None]:
    """Make the folder of `file`; raise ResourceError if it, of `size` bytes, cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mount, free = mount_of(file.parent), "an unknown amount"
        with suppress(OSError):
            room = os.statvfs(mount)
            free = f"{room.f_bavail * room.f_frsize:,} bytes"
        raise ResourceError(
            "out",
            file,
            f"it could not be written ({error.strerror or error})",
            f"{size:,} bytes needed, {free} free on {mount}",
            f"{'make room' if full else 'see that it can be written to'}, or "
            "name another file, as in out=FOLDER/NAME",
        ) from error


@contextmanager
def alone(parent: Path) -> Iterator[str]:
    """A folder in `parent` for what is not verified yet, gone at the end: one export at a time.

    Removes what exports that were killed left there. On a file system that does not lock folders,
    as NFS, exports do not wait for each other, and nothing is removed.
    """
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        try:
            with telling(f"another export to {parent}"):
                poll_until(lambda: locked(descriptor))
        except OSError:
            left = []
        else:
            name = re.compile(rf"{re.escape(UNVERIFIED)}\w{{8}}")
            left = [path for path in parent.iterdir() if name.fullmatch(path.name)]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        with TemporaryDirectory(prefix=UNVERIFIED, dir=parent) as folder:
            yield folder
    finally:
        os.close(descriptor)


def first(examples: Examples, count: int) -> tuple[Tree, Tree]:
    """The first inputs and targets as the dataset has them. Raises ConfigError if there is none."""
    rows = np.arange(min(count, len(examples)))
    if not len(rows):
        raise ConfigError(
            "dataset",
            "test",
            "the test split is empty",
            "a file is verified with its first examples",
            "name a dataset with test examples",
        )
    both = each(lambda array: array[rows], (examples.inputs, examples.targets))
    if not all(isinstance(leaf, np.ndarray) for leaf in leaves(both)):
        raise ConfigError(
            "dataset",
            "collate_fn",
            "a file is verified with arrays, and its batches are none",
            "a dataset without one has some",
            "save model.state_dict() in your own loop",
        )
    inputs, targets = each(lambda array: torch.from_numpy(np.array(array)), both)
    return inputs, targets


def about(
    found: Restored, examples: Examples, prepares: bool, prepare: Any, task: Task
) -> dict[str, Any]:
    """What a user of the file needs to know of the network."""
    job = found.job
    mean, std = (getattr(prepare, name, None) for name in ("mean", "std"))
    return {
        "prepare": prepares,
        "mean": None if mean is None else list(mean),
        "std": None if std is None else list(std),
        "classes": job.dataset.get("classes"),
        "class_names": class_names(job, examples),
        "task": job.choices.task,
        "score": scoring(task).name,
        "model": build.model_name(job),
        "weights": found.weights,
        "load": loaded(found),
        "checkpoint": str(found.path),
    }


def loaded(found: Restored) -> str:
    """How much of the network was loaded: with load.partial=true the rest is as drawn."""
    return redact(one_line(str(found.report)))


def described(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    shape = ["batch", *tensor.shape[1:]]
    return {"name": name, "shape": shape, "dtype": str(tensor.dtype).removeprefix("torch.")}


def others(path: Path, name: str) -> list[dict[str, Any]]:
    """The entries of earlier exports in a folder's export.json whose files are still there."""
    try:
        found = read_json(path)
        entries = [found, *found.pop("others")]
        return [
            entry
            for entry in entries
            if entry["file"] != name and (path.parent / Path(entry["file"]).name).is_file()
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []  # there is none, or it is not ours
