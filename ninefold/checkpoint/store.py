"""Checkpoint files that survive a crash and are verified on loading."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ninefold.checkpoint import manifest
from ninefold.checkpoint.hashing import Hashing, digest, read_back
from ninefold.checkpoint.loading import (
    SAFETENSORS,
    damaged_part,
    load,
    read_safetensors,
    reader_of,
    require_honest,
)
from ninefold.checkpoint.manifest import FORMAT, NEW, WHOLE, Entry, Files
from ninefold.errors import CheckpointError, ResourceError
from ninefold.extensions import SHARDED
from ninefold.files import mount_of, sync
from ninefold.numbers import amount

STEP = re.compile(rf"step-(\d{{8,}})(-\d+)?(\{WHOLE}|\{SHARDED})")
log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints folder of a run: last.pt, best.pt, and the last few step-N.pt.

    A checkpoint is written to a temporary file, synced, read back, listed in the manifest and only
    then linked to its names; old manifest entries and surplus step files are removed last. Whenever
    the process dies, the file under each name is one whose sha256 the manifest lists. The names
    given in one save are hard links to one file.

    A sharded checkpoint is a folder step-N.dcp, treated in the same way; last.dcp and best.dcp are
    symbolic links to such folders.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        """Write `content` as last.pt and as step-N.pt, and as best.pt if it is the `best`.

        Raises ResourceError if it cannot be written; earlier checkpoints stay.
        """
        new = self.folder / NEW
        try:
            self.begin()
            self.take(new, _write(new, content), best)
        except OSError as error:
            raise self.refused(error, measured(content)) from error

    def begin(self) -> None:
        """Make the folder, and remove the temporary files of a writer that died. Raises OSError."""
        if not self.folder.is_dir():
            self.folder.mkdir()
            sync(self.folder.parent)
        self._sweep()

    def take(self, new: Path, entry: Entry, best: bool) -> None:
        """Give `new`, which is on disk, its names, between two manifests. Raises OSError."""
        step = self._step_name(new, entry["step"])
        names = [f"last{new.suffix}", step, *([f"best{new.suffix}"] if best else [])]
        there = {path.name for path in self.folder.iterdir()}
        # A writer that died may have listed a step that it never linked: it is not kept.
        files = {name: entries for name, entries in self.manifest().items() if name in there}
        # A folder has its own name first: its links are listed at once if they are there.
        early = [name for name in names if new.suffix == WHOLE or name == step or name in there]
        listed = {name: [entry, *files.get(name, [])] for name in early}
        manifest.write(self.folder, files | listed)
        _name(new, step, names)
        sync(self.folder)
        new.unlink(missing_ok=True)
        files |= {name: [entry] for name in names}
        if early != names:  # what they replace is listed until it is gone
            manifest.write(self.folder, files)
        for name in self._surplus(files, names, now=step):
            _remove(self.folder / name)
            del files[name]
        manifest.write(self.folder, files)

    def _sweep(self) -> None:
        for path in [path for end in (WHOLE, SHARDED) for path in self.folder.glob(f".*{end}*")]:
            _remove(path)
        for path in self.folder.glob(f"[!.]*{SHARDED}"):
            if path.is_symlink() and path.name not in self.manifest():
                path.unlink()

    def _step_name(self, new: Path, step: int) -> str:
        """The name of a checkpoint of this step; a folder's is a new one, it replaces none."""
        name, again = f"step-{step:08d}{new.suffix}", 1
        while new.suffix == SHARDED and os.path.lexists(self.folder / name):
            again += 1
            name = f"step-{step:08d}-{again}{new.suffix}"
        return name

    def _surplus(self, files: Files, names: list[str], now: str) -> list[str]:
        """What to delete: step checkpoints but the last `keep`, and what `names` replace.

        So steps after `now` go too, and checkpoints of another format under the same names.
        """
        replaced = {
            f"{name.partition('.')[0]}{end}" for name in names for end in (WHOLE, SHARDED)
        } - {*names}
        steps = sorted((name for name in files if STEP.fullmatch(name)), key=_number)
        past = [name for name in steps if _number(name) < _number(now)]
        kept = {*[*past, now][-self._keep :]}
        for name in ("last", "best"):
            link = self.folder / f"{name}{SHARDED}"
            if link.name not in replaced and link.is_symlink():
                kept.add(os.readlink(link))
        return [name for name in files if name in replaced or (name in steps and name not in kept)]

    def manifest(self) -> Files:
        """What the folder's manifest lists. Raises OSError if it is there but cannot be read."""
        return manifest.read(self.folder)

    def newest(self) -> Path:
        """The newest checkpoint whose sha256 matches the manifest; warns of each that does not.

        Raises CheckpointError if there is none.
        """
        files: Files = {}
        with suppress(OSError):
            files = self.manifest()
        there = ", ".join(manifest.names(self.folder)) or "none"
        if not files and there != "none":
            wrong = (
                f"{manifest.FILE} is missing, damaged or of a newer format version, and without "
                "it nothing can be verified"
            )
            do = f"put {self.folder / manifest.FILE} back or start the run afresh in a new folder"
            raise CheckpointError("resume", self.folder.parent, wrong, f"found {there}", do)
        digests: dict[object, str | None] = {}
        for name, sha256 in manifest.newest_first(files):
            path = self.folder / name
            file = _identity(path)
            if file not in digests:
                digests[file] = digest(path)
                if digests[file] not in manifest.sums(files, name):
                    line = f"{path} is missing or damaged; trying the checkpoint before it"
                    log.warning(line)
                    print(f"warning: {line}", file=sys.stderr, flush=True)
            if digests[file] == sha256:
                return path
        wrong = "no checkpoint in it can be used"
        do = "start the run afresh in a new folder"
        raise CheckpointError("resume", self.folder.parent, wrong, f"found {there}", do)

    def refused(self, error: OSError, size: int) -> ResourceError:
        """Remove what was written of a checkpoint of `size` bytes; return the error to raise."""
        with suppress(OSError):
            self._sweep()
        mount = mount_of(self.folder)
        needed, free = amount(size), "an unknown amount"
        inodes = 6  # where links count: folder, manifest, file, and three names
        with suppress(OSError):
            room = os.statvfs(mount)
            free = amount(room.f_bavail * room.f_frsize)
            if room.f_files and room.f_favail < inodes:
                needed, free = f"{needed} and {inodes} inodes", f"{free} and {room.f_favail} inodes"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        earlier = any(os.path.exists(self.folder / f"last{end}") for end in (WHOLE, SHARDED))
        wrong = f"it could not be written ({error.strerror or error})"
        found = f"{needed} needed, {free} free on {mount}"
        do = "make room" if full else "see that it can be written to"
        then = "resume: earlier checkpoints are intact" if earlier else "start again"
        return ResourceError("checkpoint", self.folder, wrong, found, f"{do}, then {then}")


def _number(name: str) -> int:
    """The step in the name of a checkpoint of a step."""
    found = STEP.fullmatch(name)
    return int(found[1]) if found else -1


def measured(content: Mapping[str, Any]) -> int:
    """The bytes of a file with this content."""
    size = Hashing(None)
    size.save(dict(content))
    return size.written


def _write(path: Path, content: Mapping[str, Any]) -> Entry:
    """Save `content` to `path` and to disk; returns its entry. Raises OSError."""
    with path.open("xb") as file:  # a file left there may be a checkpoint's other name
        hashing = Hashing(file)
        hashing.save(dict(content))
        file.flush()
        os.fsync(file.fileno())
    part = read_back(path, hashing)
    return Entry(sha256=part["sha256"], size=part["size"], step=content["step"])


def _identity(path: Path) -> object:
    """What the names of one file have in common."""
    try:
        found = path.stat()
    except OSError:
        return path
    return found.st_dev, found.st_ino


def _name(new: Path, step: str, names: list[str]) -> None:
    """Give `new` its names; a folder cannot have several, so the others are links to `step`."""
    link: Callable[[Path], None] = partial(os.link, new)
    if new.is_dir():
        new.rename(new.with_name(step))
        link = partial(os.symlink, step)
    for name in names:
        if name != step or new.exists():
            _replace(new.with_name(name), link)


def _replace(target: Path, link: Callable[[Path], None]) -> None:
    """Make a link under the name `target`, atomically and without a second copy."""
    temporary = target.with_name(f".{target.name}.link")
    link(temporary)
    if target.is_dir() and not target.is_symlink():  # of a run folder copied without its links
        _remove(target)
    os.replace(temporary, target)


def _remove(path: Path) -> None:
    """Delete a file, a link, or a folder, which loses its name first. Raises OSError."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith("."):
        hidden = path.with_name(f".{path.name}")
        path.rename(hidden)
        path = hidden
    shutil.rmtree(path)


def read(path: Path, field: str = "ckpt") -> dict[str, Any]:
    """The dictionary in a checkpoint file, tensors on the CPU; never runs code from it.

    Raises CheckpointError if it is not a dictionary of tensors and plain containers, or is
    listed in a manifest beside it with another content.
    """
    if path.suffix == SHARDED and path.is_dir():
        return reader_of(path, field)(path, field)
    listed: Files = {}
    with suppress(OSError):
        listed = manifest.read(path.parent)
    if path.name in listed and digest(path) not in manifest.sums(listed, path.name):
        allowed = "its sha256 is not the one in the manifest"
        do = "use another checkpoint of the folder"
        raise CheckpointError(field, path, "it is damaged", allowed, do)
    if path.suffix == SAFETENSORS:
        return dict(read_safetensors(path, field))
    require_honest(path, field)
    if path.name not in listed and (part := damaged_part(path)) is not None:
        allowed = f"the checksum of {part} in it is another"
        raise CheckpointError(field, path, "it is damaged", allowed, "fetch or copy the file again")
    content = load(path, field)
    if not isinstance(content, dict):
        wrong = f"it holds a {type(content).__name__}"
        allowed = "a dictionary is expected"
        raise CheckpointError(field, path, wrong, allowed, "save model.state_dict()")
    found = content.get("format")  # a foreign file's need not be a number
    if isinstance(found, int) and found > FORMAT:
        wrong = f"it is of a newer format version, {found}"
        do = "use the version of ninefold that wrote it"
        raise CheckpointError(field, path, wrong, f"this one reads up to {FORMAT}", do)
    return content
