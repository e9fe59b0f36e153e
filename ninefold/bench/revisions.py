"""Copies of the revisions that are compared: a git worktree of each, removed by the guardian."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninefold.bench.git import commit_of, environment, git, working_tree
from ninefold.bench.guardian import TOKEN
from ninefold.errors import ConfigError
from ninefold.files import opener
from ninefold.process import scratch
from ninefold.waits import telling

_HOOK = Path(__file__).resolve().parent / "inject"  # of bench: where ninefold compares its own


@dataclass(frozen=True)
class Copy:
    """A revision's checkout.

    name: as the user typed it
    commit: its full hash
    folder: where the command runs: as far below `root` as the caller is below `original`
    variables: of the environment: with them the copy's modules are imported
    original: the root of the checkout that it is a copy of
    root: its own root
    """

    name: str
    commit: str
    folder: Path
    variables: dict[str, str]
    original: Path
    root: Path


def checkout(revisions: Sequence[str]) -> Path:
    """The root of the checkout that the working folder is in. Raises ConfigError."""
    here, typed = Path.cwd(), " ".join(revisions)
    if shutil.which("git") is None:
        raise ConfigError("revisions", typed, "git is missing", "it checks them out", "install it")
    try:
        return Path(git(here, "rev-parse", "--show-toplevel"))
    except ConfigError as error:
        wrong = f"{here} is in no git repository ({error.wrong})"
        allowed = "they are those of the one that bench is started in"
        do = "start it in one, or compare two commands"
        raise ConfigError("revisions", typed, wrong, allowed, do) from error


def roots(revisions: Sequence[str], folder: Path) -> list[Path]:
    """Where the copies will be: at paths that are equally long."""
    return [folder.resolve() / str(number) for number, _ in enumerate(revisions, 1)]


def check_out(
    revisions: Sequence[str], original: Path, folder: Path, links: Sequence[str] = ()
) -> list[Copy]:
    """Make the copies, which `cleanup_commands` remove. Raises ConfigError.

    revisions: of the checkout `original`; `.` is its files as they are, without those that git
    ignores. links: paths from the working folder; what a copy lacks of them leads to the
    original's.
    """
    found = list[Copy]()
    below = git(Path.cwd(), "rev-parse", "--show-prefix")
    for name, root in zip(revisions, roots(revisions, folder), strict=True):
        commit = working_tree(original, **token()) if name == "." else commit_of(original, name)
        variables = {"PYTHONPATH": _python_path(original, root, below)}
        found.append(Copy(name, commit, root / below, variables, original, root))
    for copy in found:  # once all are known
        new = ("worktree", "add", "--quiet", "--force", "--detach", str(copy.root))
        git(original, *new, copy.commit, **token())
        _complete(copy, links)
    return found


def token() -> dict[str, str]:
    """The variable by which the guardian knows a process: git's filters, too, run for long."""
    return {TOKEN: str(scratch())}


def cleanup_commands(revisions: Sequence[str], original: Path, folder: Path) -> list[list[str]]:
    """What removes the copies, made or not: each is to be run, whatever another ends with."""
    forget, commands = ["git", "-C", str(original), "worktree", "remove"], list[list[str]]()
    for root in map(str, roots(revisions, folder)):
        # Of a folder that is gone git only forgets the entry, whatever was in it.
        commands += [["rm", "-rf", "--", root], [*forget, "--force", "--force", root]]
    return [*commands, ["rmdir", "--", str(folder.resolve())]]  # if it is empty


def _python_path(original: Path, root: Path, below: str) -> str:
    """PYTHONPATH with a copy's folders in front, and what it has of the original's as well."""
    before = os.environ.get("PYTHONPATH", "")
    given = [Path(entry) for entry in before.split(os.pathsep) if entry]
    own = [f"{below}src", below, "src", ""]
    own += [str(each.relative_to(original)) for each in given if each.is_relative_to(original)]
    found = dict.fromkeys(str(root / name) for name in own)
    return os.pathsep.join([*found, *([before] if before else [])])


def _complete(copy: Copy, links: Sequence[str]) -> None:
    """Give a copy that was checked out what git has not given it."""
    below = copy.folder.relative_to(copy.root)
    if not copy.folder.is_dir():
        allowed = "the command runs in the one that bench is started in"
        do = "start it in one that all revisions have"
        raise ConfigError("revisions", copy.name, f"it has no folder {below}", allowed, do)
    for link in links:
        source = Path(os.path.normpath(copy.original / below / link))
        if copy.original not in source.parents or not source.exists():
            allowed = f"files and folders in {copy.original} are allowed"
            raise ConfigError("link", link, "there is no such thing", allowed, "correct it")
        _link(source, copy.root / source.relative_to(copy.original))


def _link(source: Path, target: Path) -> None:
    """Link what `target` lacks of `source`."""
    if not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
    elif not (source.is_symlink() or target.is_symlink()) and source.is_dir() and target.is_dir():
        for each in source.iterdir():
            _link(each, target / each.name)


def set_up(copy: Copy, variables: Mapping[str, str], setup: str | None) -> None:
    """Run a line for a shell in a copy; without one warn of what the copy lacks.

    variables: of the command's environment. Raises ConfigError.
    """
    if setup is None:
        if (copy.root / ".gitmodules").exists():
            said = "it has submodules, and its copy is without them; --setup may check them out"
            print(f"warning: revisions={copy.name}: {said}", file=sys.stderr)
        return
    log = Path(f"{copy.root}.setup.log")
    variables = {**environment(), **variables, **token()}
    told = telling(f"the setup of {copy.name}; its output is in {log}")
    with open(log, "wb", opener=opener) as output, told:
        done = subprocess.run(
            ["/bin/sh", "-c", setup],
            cwd=copy.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        ended = f"it ended with code {done.returncode} in the copy of {copy.name}"
        raise ConfigError("setup", setup, ended, "it must succeed", f"see {log}")


def foreign_code(copy: Copy, files: Sequence[str]) -> ConfigError | None:
    """The failure of a command that has loaded the original's code. files: of its modules.

    An editable installation names the original, whichever copy the command runs in. Packages in an
    environment that is below the original are not its code.
    """
    for file in files:
        path = Path(os.path.normpath(copy.folder / file))
        real = path.resolve()
        theirs = real.is_relative_to(copy.original) and not real.is_relative_to(_HOOK)
        own = any(each.is_relative_to(copy.root) for each in (path, real))  # path: if by --link
        if theirs and not own and not _installed(real, copy.original):
            parts = real.relative_to(copy.original).parts
            package = Path(parts[parts.index("src") + 1 if "src" in parts else 0]).stem
            wrong = f"{package} was imported from the checkout, not from the revision's copy"
            why, do = "both sides would run the same code", "--env with an installation of each"
            return ConfigError("revisions", copy.name, wrong, why, do)
    return None


def _installed(file: Path, original: Path) -> bool:
    """Whether a file below the original is in an environment there, such as .venv."""
    inner = [folder for folder in file.parents if original in folder.parents]
    return any(
        folder.name in ("site-packages", "dist-packages")
        or any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))
        for folder in inner
    )
