"""The command `python -m ninefold export ckpt=RUN format=FORMAT`, to an exit code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ninefold.checkpoint import manifest
from ninefold.config.job import Checked, asked, check
from ninefold.errors import CheckpointError, ConfigError, suggestion
from ninefold.extensions import SHARDED
from ninefold.files import require_regular
from ninefold.launch.command import carried_out, composed
from ninefold.places import typed_as
from ninefold.words import key_of

STOPPED = "the export was stopped"
HELP = """{} ckpt=RUN format=FORMAT [KEY=VALUE ...]

Writes a trained network as a file for use elsewhere, and checks that it computes the same.

  ckpt=PATH           a run folder, or a checkpoint
  format=FORMAT       safetensors: the weights alone; onnx: for ONNX Runtime; pt2: for
                      torch.export.load, without the network's code
  which=last|best     which checkpoint of a run folder: the last one by default
  prepare=true|false  whether the graph resizes and normalizes its input itself: true
  out=FILE            where to write it: RUN/export/model.onnx (.pt2, .safetensors)
  trust, weights, load, threads, dataset, task, model
                      what the checkpoint is, as for {}
"""
SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx", "pt2": ".pt2"}  # of each format
OWN: dict[str, tuple[str, ...] | None] = {
    "format": tuple(SUFFIXES),
    "which": ("last", "best"),
    "prepare": ("true", "false"),
    "out": None,
}
# Those passed on to an evaluation.
PASSED_ON = ("ckpt", "trust", "weights", "load", "threads", "dataset", "task", "model")


def main(arguments: Sequence[str]) -> int:
    """Export what the arguments say; returns the exit code."""
    text = HELP.format(typed_as("export"), typed_as("evaluate")).rstrip()
    return carried_out(run, arguments, STOPPED, text)


def run(arguments: Sequence[str]) -> None:
    """Raises Failure, and Refused for problems of the configuration."""
    own, rest = taken(arguments)
    config = composed("evaluate", rest, example())
    job = check(asked(config, config.hydra))
    job, file = place(own, job)
    prepare = own.get("prepare", "false" if own["format"] == "safetensors" else "true") == "true"
    if prepare and own["format"] == "safetensors":
        raise ConfigError(
            "prepare",
            "true",
            "a file of weights computes nothing",
            "format=onnx and format=pt2 hold a graph",
            "choose one of them, or leave it out",
        )
    settled = job.settle()
    from ninefold.config.configuration import noting_secrets
    from ninefold.extensions.export.run import Wanted, export  # they import torch

    with noting_secrets():
        export(Wanted(settled.text, settled.cache, own["format"], prepare, file))


def example() -> str:
    return f"{typed_as('export')} ckpt=RUN format=onnx"


def taken(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """This command's own arguments, and the others. Raises ConfigError."""
    own: dict[str, str] = {}
    rest = []
    for word in arguments:
        key, equals, value = word.partition("=")
        first = key_of(word).partition(".")[0]
        if key in OWN and equals:
            require_allowed(key, value)
            own[key] = value
        elif equals and not word.startswith("-") and first not in PASSED_ON:
            near = suggestion(first, {*OWN, *PASSED_ON})
            do = "correct its name, or leave it out"
            raise ConfigError(key, value, "no such key", near, do)
        else:
            rest.append(word)
    if "format" not in own:
        raise ConfigError(
            "format",
            "null",
            "nothing says what to write",
            f"{', '.join(SUFFIXES)} are allowed",
            f"type {example()}",
        )
    return own, rest


def require_allowed(key: str, value: str) -> None:
    """Raise ConfigError unless an argument of this command has a value that it may have."""
    allowed = OWN[key]
    if allowed is None and not value.strip():
        raise ConfigError(key, "", "it names nothing", "a file is allowed", "leave it out")
    if allowed is not None and value not in allowed:
        raise ConfigError(
            key, value, "no such value", f"{', '.join(allowed)} are allowed", "name one of them"
        )


def place(own: dict[str, str], job: Checked) -> tuple[Checked, Path]:
    """The job of the checkpoint that `which` names, and the file to write. Raises Failure."""
    given = Path(str(job.resolved["ckpt"])).expanduser().absolute()
    suffix = SUFFIXES[own["format"]]
    if given.is_dir() and given.suffix != SHARDED:
        file = manifest.named(given, own.get("which", "last"))
        if not manifest.is_checkpoint(file):
            raise CheckpointError(
                "which",
                own["which"],
                "there is no such checkpoint",
                f"looked for {file}",
                "leave it out to export the last one",
            )
        job = replace(job, config=job.config.with_values({"checkpoint_file": str(file)}))
        folder = given
    elif "which" in own:
        raise ConfigError(
            "which",
            own["which"],
            "ckpt is a file",
            "it chooses from a run folder",
            "leave it out, or name the folder",
        )
    else:
        folder = given.parent.parent if given.parent.name == "checkpoints" else given.parent
    if "out" not in own:
        return job, regular(folder / "export" / f"model{suffix}")
    out = Path(own["out"]).expanduser().absolute()
    if out.suffix != suffix or out.is_dir() or out == given:
        raise ConfigError(
            "out",
            own["out"],
            f"not the name of a file to write as {own['format']}",
            f"a name that ends in {suffix} is allowed",
            f"write out=model{suffix}",
        )
    return job, regular(out)


def regular(file: Path) -> Path:
    """`file`, which is a regular one or not there yet. Raises ConfigError."""
    try:
        require_regular(os.lstat(file), file)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(
            "out",
            file,
            error.strerror or str(error),
            "a new file, or one to replace, is allowed",
            "remove it, or name another, as in out=FOLDER/NAME",
        ) from error
    return file
