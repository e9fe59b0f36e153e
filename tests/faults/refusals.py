"""What cannot be trained on is refused in one line: how such lines and commands are checked."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ninefold.errors import DataError
from tests.conftest import Shell

LINE = re.compile(r"error: [^=\s]+=.*: .+; .+; .+")
Done = subprocess.CompletedProcess[str]
Key = tuple[str, int, str, str, bool]


def timed(command: Callable[..., Done], *arguments: str, **options: Any) -> Done:
    """Run a command that must fail in less than 20 s."""
    began = time.monotonic()
    done = command(*arguments, **options)
    seconds = time.monotonic() - began
    print(f"{seconds:.1f} s, exit {done.returncode}: {done.stderr.strip()}")
    assert seconds < 20
    return done


def refused(done: Done, code: int, *fields: str, hint: str = "") -> None:
    """See that `done` failed with `code` and a line for each of `fields`, and nothing else."""
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr, done.stderr
    assert all(LINE.fullmatch(line) for line in lines), done.stderr
    found = [line.removeprefix("error: ") for line in lines]
    assert len(found) == len(fields), done.stderr
    for field in fields:
        assert any(line.startswith(field) for line in found), (field, done.stderr)
    assert hint in done.stderr, (hint, done.stderr)
    assert done.returncode == code, done.stderr


def refuses(root: Path, prepare: Callable[[], object], message: str) -> None:
    """See that `prepare` refuses the files in `root` in one line that `message` matches."""
    with pytest.raises(DataError) as caught:
        prepare()
    line = str(caught.value)
    assert re.search(message, line), line
    assert line.startswith(f"error: dataset.root={root}: ")
    assert line.count("; ") >= 2
    assert "\n" not in line


def mistakes(keys: Sequence[Key]) -> pytest.MarkDecorator:
    """A case for each of `keys`, for `mistaken`.

    keys: options, exit code, beginning of the line, a part of it, and whether `make test` runs it.
    """
    return pytest.mark.parametrize(
        ("options", "code", "field", "hint"),
        [
            pytest.param(*case, marks=[] if quick else [pytest.mark.slow], id=case[0][-40:])
            for *case, quick in keys
        ],
    )


def mistaken(
    shell: Shell, usual: Sequence[str], options: str, code: int, field: str, hint: str
) -> None:
    """See that training with `options`, in place of `usual` ones, ends in one line."""
    given = options.split()
    keys = {option.partition("=")[0] for option in given}
    others = [option for option in usual if option.partition("=")[0] not in keys]
    done = timed(shell.train, *others, *given, "hydra.run.dir=run")
    refused(done, code, field, hint=hint)


def cut_short(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
