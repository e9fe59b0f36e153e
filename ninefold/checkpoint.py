"""Checkpoint files that survive a crash and are verified on loading."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from ninefold.errors import CheckpointError, ResourceError
from ninefold.result import sync_folder, write_json

FORMAT = 2
MANIFEST = "manifest.json"
log = logging.getLogger(__name__)

_Files = dict[str, list[dict[str, Any]]]


class Checkpoints:
    """The checkpoints folder of a run: last.pt, best.pt, and the last few step-N.pt.

    A file is written under a temporary name, forced to disk, read back, added to the manifest,
    and only then given its names; what the manifest said of those names before is dropped last.
    At whatever instant the process dies, the file under each name is one whose sha256 is listed.
    The names that one save gives share its bytes on disk.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        """Write `content` as last.pt and as step-N.pt, and as best.pt if it is the `best`.

        Raises ResourceError if the disk does not take it; what was there before stays.
        """
        self.folder.mkdir(exist_ok=True)
        temporary = self.folder / ".new.pt"
        names = [f"step-{content['step']:08d}.pt", "last.pt", *(["best.pt"] if best else [])]
        try:
            temporary.unlink(missing_ok=True)  # after a crash it may be a checkpoint's other name
            entry = {**_write(temporary, content), "step": content["step"]}
            files = self.manifest()
            self._list(files | {name: [entry, *files.get(name, [])] for name in names})
            for name in names:
                _link(temporary, self.folder / name)
            sync_folder(self.folder)
            temporary.unlink()
            self._list(self._kept(files | {name: [entry] for name in names}))
            for path in self.folder.glob("step-*.pt"):
                if path.name not in self.manifest():
                    path.unlink()
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise ResourceError(
                "checkpoint", self.folder, f"it could not be written ({error.strerror or error})",
                "full disk" if error.errno == errno.ENOSPC else "earlier checkpoints are intact",
                "make room or choose another hydra.run.dir, then resume",
            ) from error  # fmt: skip

    def _kept(self, files: _Files) -> _Files:
        """`files` without the step-N.pt that are too many, or ahead of the one just written."""
        now = files["last.pt"][0]["step"]
        steps = sorted(name for name in files if name.startswith("step-"))
        past = [name for name in steps if files[name][0]["step"] <= now]
        dropped = set(steps) - set(past[-self._keep :])
        return {name: entries for name, entries in files.items() if name not in dropped}

    def _list(self, files: _Files) -> None:
        write_json(self.folder / MANIFEST, {"format": FORMAT, "files": files})

    def manifest(self) -> _Files:
        """For each file name the entries {sha256, size, step} it may have, newest first."""
        try:
            content = json.loads((self.folder / MANIFEST).read_text())
        except (OSError, ValueError):
            return {}
        ours = isinstance(content, dict) and content.get("format") == FORMAT
        return cast(_Files, content["files"]) if ours else {}

    def newest(self) -> Path:
        """The newest file that verifies; one warning line for each that does not.

        Raises CheckpointError if there is none.
        """
        files = self.manifest()
        order = sorted(
            files, key=lambda name: (name == "best.pt", -files[name][0]["step"], name != "last.pt")
        )
        for name in order:
            path = self.folder / name
            if self.verifies(path):
                return path
            log.warning("%s does not match its manifest, trying the one before", path)
        raise CheckpointError(
            "resume", self.folder.parent, "no checkpoint in it can be used",
            f"found {', '.join(order) or 'none'}", "start the run afresh in a new folder",
        )  # fmt: skip

    def verifies(self, path: Path) -> bool:
        """Whether the file is, byte for byte, one that the manifest lists under its name."""
        known = {entry["sha256"] for entry in self.manifest().get(path.name, [])}
        return path.is_file() and _sha256(path) in known


def has_checkpoint(run: Path) -> bool:
    """Whether a checkpoint of the run in folder `run` has ever been written."""
    return (run / "checkpoints" / MANIFEST).exists()


def _write(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Save `content` to `path` and to disk; returns its sha256 and size. Raises OSError."""
    with path.open("wb") as file:
        hashing = _Hashing(file)
        try:
            torch.save(dict(content), hashing)  # type: ignore[arg-type]
        except RuntimeError:
            # torch reports a failed write in words of its own, without the system's reason.
            if hashing.error is not None:
                raise hashing.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    digest = hashing.sha256.hexdigest()
    if _sha256(path) != digest:
        raise OSError(errno.EIO, "what was read back differs from what was written")
    return {"sha256": digest, "size": path.stat().st_size}


class _Hashing:
    """A binary file that hashes what is written and remembers why a write failed."""

    def __init__(self, file: BinaryIO) -> None:
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None
        self._file = file

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        return written

    def flush(self) -> None:
        self._file.flush()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _link(source: Path, target: Path) -> None:
    """Give `source`'s content the name `target`, atomically and without a second copy."""
    temporary = target.with_name(f".{target.name}.link")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    os.replace(temporary, target)


def read(path: Path, field: str = "ckpt") -> dict[str, Any]:
    """The dictionary in a checkpoint file, tensors on the CPU; never runs code from it.

    Raises CheckpointError if it is not a dictionary of tensors and plain containers, or is
    listed in a manifest beside it with another content.
    """
    folder = Checkpoints(path.parent, keep=0)
    if path.name in folder.manifest() and not folder.verifies(path):
        raise CheckpointError(
            field, path, "it is damaged", "its sha256 is not the one in the manifest",
            "use another file of the folder",
        )  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged file is reported once, below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails in at least five types
        raise CheckpointError(
            field, path, "it cannot be read", str(error).splitlines()[0] if str(error) else
            type(error).__name__, "only tensors and plain containers are loaded",
        ) from error  # fmt: skip
    if not isinstance(content, dict):
        raise CheckpointError(
            field, path, f"it holds a {type(content).__name__}", "a dictionary is expected",
            "save model.state_dict()",
        )  # fmt: skip
    if isinstance(content.get("format"), int) and content["format"] != FORMAT:
        raise CheckpointError(
            field, path, f"its format is {content['format']}", f"this version reads {FORMAT}",
            "use the version of ninefold that wrote it",
        )  # fmt: skip
    return content
