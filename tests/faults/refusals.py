"""What cannot be trained on is refused in one line: how such lines and commands are checked."""

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import ours
from ninefold.dataset import Dataset, Split
from ninefold.errors import DataError, Failure, Refused

LINE = re.compile(r"error: [^=\s]+=.*: .+; .+; .+")
Done = subprocess.CompletedProcess[str]


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


def refuses_once_spoiled(
    make: Callable[[Path], Dataset], root: Path, spoil: Callable[[Path], object], message: str
) -> None:
    """See that files in `root` that can be trained on are refused once `spoil` was there."""
    make(root).prepare()
    spoil(root)
    refuses(root, make(root).prepare, message)


def refuses_options(dataset: Dataset, split: Split, kind: type[Failure], message: str) -> None:
    """See that a dataset's options are refused before it is loaded and when a split is."""
    for look in (dataset.prepare, lambda: dataset.load(split)):
        with pytest.raises(kind, match=message):
            look()


def refuses_job(job: Sequence[str], line: str) -> None:
    """See that training with these overrides is refused in one line that begins with `line`."""
    with pytest.raises((Failure, Refused)) as caught, ours.training(*job):
        pass
    said = str(caught.value).splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"error: {line}")
    assert said[0].count(";") >= 2


def cut_short(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
