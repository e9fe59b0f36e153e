"""Whether a stored job was made by a command of this user, and where its code was found then.

A run folder may come from anybody, so nothing in it says by itself whose it is. A command signs the
jobs that it freezes, by HMAC-SHA256 with a key that only its user can read: 32 random bytes in
`$XDG_STATE_HOME/ninefold/key`, by default in ~/.local/state. The signature is in the run folder, so
a folder of one's own may be moved or copied. One of somebody else's, a forged or changed signature,
a changed job and a key that others could read or replace are all alike: the job is a stranger's.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ninefold.errors import CheckpointError, is_users
from ninefold.files import opener, read_json, write_text
from ninefold.places import ROOT
from ninefold.secrets import redacted

FILE = "origin.json"  # in a run folder
SIZE = 32  # bytes of the key
searched: list[str] = []  # folders that this process was told to find modules in


@dataclass(frozen=True)
class Origin:
    """Where a command found the user's own code.

    imports: the folders in which it looked for it, such as those that PYTHONPATH named, in their
        order, each with the user id of its owner.
    modules: the files of the user's own modules that the job names, by their names.
    """

    imports: list[tuple[str, int]] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)

    def use(self, targets: Iterable[Any], name: str, path: Path) -> list[str]:
        """Have Python find the modules of `targets` where they were found; returns the folders.

        name, path: of what the job is from, for the error. Raises CheckpointError if one is gone.
        """
        wanted = [top for top in map(_top, targets) if top in self.modules]
        found = (
            [folder for folder, owner in self.imports if _is_of(folder, owner)] if wanted else []
        )
        search(found)
        for module in wanted:
            if _file_of(module) is None:
                raise CheckpointError(
                    name,
                    path,
                    f"it needs your module {module}, which is not found; it was in "
                    f"{self.modules[module]} when the run was made; put it back, or name the "
                    "folder that it is in now: PYTHONPATH=FOLDER",
                )
        return found


def search(folders: Iterable[str]) -> None:
    """Put folders where PYTHONPATH's are in sys.path, before what is there."""
    first = 1 if sys.path and Path(sys.path[0]) == ROOT else 0  # of train.py
    new = [folder for folder in folders if folder not in sys.path]
    sys.path[first:first] = new
    searched[:0] = new
    if new:  # for the processes that this one starts
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([*new, *filter(None, known)])
        importlib.invalidate_caches()


def sign(folder: Path, text: str, targets: Iterable[Any], before: str | None = None) -> None:
    """Record in a run folder that this user's command froze the job `text`. Raises OSError.

    targets: that it names. before: the job that the run is resumed from; only if it was signed is
    the new one, as what it names may otherwise be a stranger's.
    """
    jobs = {} if before is None else _jobs(folder)
    if before is not None and _sha256(before) not in jobs:
        return
    imports = [path for path in sys.path if path != str(ROOT) and is_users(f"{path}/__init__.py")]
    jobs[_sha256(text)] = {
        "imports": [[path, os.stat(path).st_uid] for path in imports if os.path.isdir(path)],
        "modules": users_modules(targets),
    }
    jobs = redacted(jobs)
    if (signature := signature_of(_plain(jobs))) is not None:
        write_text(folder / FILE, _plain({"jobs": jobs, "signature": signature}) + "\n")


def users_modules(targets: Iterable[Any]) -> dict[str, str]:
    """The files of the user's own top-level modules that targets are in, by the modules' names."""
    files = {top: _file_of(top) for top in sorted(set(map(_top, targets)))}
    return {top: file for top, file in files.items() if file and is_users(file)}


def origin(folder: Path, text: str) -> Origin | None:
    """Where the code of the job `text` was found, if this user's command froze it in `folder`."""
    found = _jobs(folder).get(_sha256(text))
    if found is None:
        return None
    from omegaconf import OmegaConf  # late: a report only looks at signatures
    from omegaconf.errors import OmegaConfBaseException

    try:  # of paths that are in the environment
        plain = OmegaConf.to_container(OmegaConf.create(found), resolve=True)
    except OmegaConfBaseException:
        return Origin()
    assert isinstance(plain, dict)
    return Origin([(path, owner) for path, owner in plain["imports"]], dict(plain["modules"]))


def signature_of(text: str) -> str | None:
    """What only a command of this user can make of `text`; None where there can be no key."""
    key = _key(make=True)
    return None if key is None else _hmac(key, text)


def is_signed(text: str, signature: object) -> bool:
    """Whether a command of this user made `signature` of `text`."""
    key = _key(make=False)
    if key is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(_hmac(key, text).encode(), signature.encode())


def _jobs(folder: Path) -> dict[str, Any]:
    """The signed jobs of a run folder by their sha256; none unless the signature is this user's."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = read_json(folder / FILE)
        if is_signed(_plain(found["jobs"]), found["signature"]):
            return dict(found["jobs"])
    return {}


def _key(make: bool) -> bytes | None:
    """The key of this user; None if there is none, or others could have read or replaced it.

    make: make one if there is none.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        folder = Path(state).expanduser() / "ninefold"
        if make and not (folder / "key").exists():
            _make_key(folder)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o22:
            return None
        with open(folder / "key", "rb", opener=_no_link) as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & 0o77:
                return None
            key = file.read(SIZE + 1)
    except (OSError, ValueError, RuntimeError):  # no such folder, an odd name, and no home
        return None
    return key if len(key) == SIZE else None


def _make_key(folder: Path) -> None:
    """Make a key, unless another process is quicker: it is whole when it has its name."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    new = folder / f".key.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        with open(new, "xb", opener=lambda path, flags: opener(path, flags, 0o600)) as file:
            file.write(secrets.token_bytes(SIZE))
        try:
            os.link(new, folder / "key")
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            os.replace(new, folder / "key")
    finally:
        new.unlink(missing_ok=True)


def _no_link(path: str, flags: int) -> int:
    return opener(path, flags | os.O_NOFOLLOW)


def _hmac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _plain(tree: Any) -> str:
    """`tree` as JSON in one spelling."""
    return json.dumps(tree, sort_keys=True)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _top(target: Any) -> str:
    """The top-level module of a dotted name."""
    return str(target).partition(".")[0]


def _file_of(module: str) -> str | None:
    """The file, or the folder, of a top-level module, which is not imported; None without one."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), None)


def _is_of(folder: str, owner: int) -> bool:
    """Whether a folder is there and has the owner that it had: in /tmp it may be another's now."""
    try:
        return Path(folder).is_dir() and os.stat(folder).st_uid == owner
    except OSError:
        return False
