"""What git is asked: it runs no hook, and takes nothing from one that has called us."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ninefold.errors import ConfigError, ResourceError, nearest

# What git's hooks have in their environment: a git that they start would take it for its own.
_OF_A_HOOK = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"),
}
_WHO = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")


def git(folder: Path, *arguments: str, **variables: str) -> str:
    """What git prints in `folder`, where it runs no hook. Raises ConfigError, ResourceError."""
    argv = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    env = {**environment(), **variables}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, errors="surrogateescape")
    if done.returncode:
        needs, do = "each revision is a copy of all files", "free some, or name another --keep"
        for full in map(os.strerror, (errno.ENOSPC, errno.EDQUOT)):
            if full in done.stderr:
                raise ResourceError("git", arguments[0], full, needs, do)
        if written := re.search("unable to write .*", done.stderr):  # it does not say why
            raise ResourceError("git", arguments[0], written[0], needs, do)
        said = done.stderr.strip().rpartition("\n")[2] or f"it ended with code {done.returncode}"
        raise ConfigError("git", arguments[0], said, "it must succeed", "run it to see more")
    return done.stdout.removesuffix("\n")


def environment() -> dict[str, str]:
    """This process's, without what a hook has from git."""
    return {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}


def commit_of(original: Path, name: str) -> str:
    """The hash of the commit that `name` stands for. Raises ConfigError."""
    try:
        return git(original, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except ConfigError as error:
        refs = ("refs/heads", "refs/tags", "refs/remotes")
        known = git(original, "for-each-ref", "--format=%(refname:short)", *refs).split()
        elsewhere = [ref for ref in known if ref.endswith(f"/{name}")]
        do = f"did you mean {elsewhere[0]}?" if elsewhere else nearest(name, known)
        if git(original, "rev-parse", "--is-shallow-repository") == "true":
            do = "this clone is shallow: git fetch --unshallow, or fetch-depth: 0 of the checkout"
        few = f"{', '.join([*known[:8], 'HEAD', '.'])} are allowed"
        raise ConfigError("revisions", name, "no such revision", few, do) from error


def working_tree(original: Path, **variables: str) -> str:
    """A commit of the original's files, but those that git ignores, by an index of its own.

    variables: of the environment of git, which may run the filters of a repository.
    """
    with tempfile.TemporaryDirectory() as scratch:
        theirs = original / git(original, "rev-parse", "--git-path", "index")
        if theirs.exists():  # what is in it need not be read again
            shutil.copy2(theirs, Path(scratch, "index"))
        own = {**variables, "GIT_INDEX_FILE": str(Path(scratch, "index"))}
        git(original, "add", "--all", "--", ".", **own)
        tree = git(original, "write-tree", **own)
    made = ("commit-tree", tree, "-p", "HEAD", "-m", "the working tree, for ninefold bench")
    return git(original, *made, **dict.fromkeys(_WHO, "ninefold"))
