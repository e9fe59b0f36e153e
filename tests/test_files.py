"""Files of folders that anybody may have made: links, FIFOs, devices, false sizes."""

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ninefold.files import (
    TooLarge,
    lines,
    mount_of,
    opener,
    read_bytes,
    read_json,
    read_text,
    require_stored,
    write_durably,
    write_text,
)

WRITING: dict[str, Callable[[Path], object]] = {
    "w": lambda path: open(path, "w", opener=opener),  # noqa: SIM115
    "a": lambda path: open(path, "a", opener=opener),  # noqa: SIM115
    "r+": lambda path: open(path, "r+", opener=opener),  # noqa: SIM115
    "text": lambda path: write_text(path, "x"),
    "durably": lambda path: write_durably(path.with_name("x"), b"x"),  # by way of this .x.tmp
}
READING: dict[str, Callable[[Path], object]] = {
    "bytes": read_bytes,
    "json": read_json,
    "lines": lambda path: list(lines(path, 100)),
}


def left(path: Path, what: str) -> None:
    """Leave what is no regular file at `path`."""
    if what == "a FIFO":
        os.mkfifo(path)
    elif what == "a folder":
        path.mkdir()
    else:
        path.symlink_to({"a link": path.with_name("precious"), "a device": "/dev/zero"}[what])


@pytest.mark.parametrize("write", WRITING)
@pytest.mark.parametrize("what", ["a link", "a link to nothing", "a FIFO", "a device", "a folder"])
def test_only_a_regular_file_is_written_and_no_link_is_followed(tmp_path, what, write):
    path, victim = tmp_path / ".x.tmp", tmp_path / "precious"
    if what == "a link":
        victim.write_text("precious")
    left(path, what.removesuffix(" to nothing"))
    with pytest.raises(OSError, match="regular file is expected") as caught:
        WRITING[write](path)
    assert caught.value.filename == str(path)
    assert victim.exists() == (what == "a link")
    assert not victim.exists() or victim.read_text() == "precious"


@pytest.mark.parametrize("read", READING)
@pytest.mark.parametrize("what", ["a FIFO", "a device", "a folder"])
def test_only_a_regular_file_is_read(tmp_path, what, read):
    left(tmp_path / "x", what)
    with pytest.raises(OSError, match="regular file is expected"):
        READING[read](tmp_path / "x")


def test_a_link_to_a_regular_file_is_read(tmp_path):
    (tmp_path / "there").write_text('{"a": 1}')
    (tmp_path / "x").symlink_to("there")
    assert read_json(tmp_path / "x") == {"a": 1}


@pytest.mark.parametrize("read", READING)
def test_what_is_larger_than_anything_of_its_kind_is_not_read(tmp_path, read):
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(TooLarge, match=r"4,398,046,511,104 bytes, at most [\d,]+ are read"):
        READING[read](tmp_path / "x")


def test_a_file_without_a_size_is_read_up_to_the_limit():
    assert len(read_bytes("/proc/self/maps")) > 1000
    with pytest.raises(TooLarge):
        read_bytes("/proc/self/maps", 1000)


def test_a_file_of_exactly_the_limit_is_read(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_text(tmp_path / "x", 5) == "12345"
    with pytest.raises(TooLarge):
        read_text(tmp_path / "x", 4)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100 + "]" * 100, '{"a":' * 100_000])
def test_json_that_is_nested_too_deeply_is_an_error_of_its_value(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(ValueError, match="nested more than 50 deep"):
        read_json(tmp_path / "x")


def test_a_file_system_begins_at_its_mount(tmp_path):
    assert mount_of(Path("/proc/self/nowhere/x")) == Path("/proc")
    assert os.path.ismount(mount_of(tmp_path / "not" / "there"))


# Archives


def saved() -> bytes:
    file = io.BytesIO()
    torch.save({"x": torch.arange(1000)}, file)
    return file.getvalue()


def archive(*parts: tuple[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as made:
        for name, data in parts:
            made.writestr(name, data)
    return file.getvalue()


def overlapping() -> bytes:
    """An archive that lists one part of a kilobyte twenty times."""
    one = archive(("a", bytes(1000)))
    start = one.index(b"PK\1\2")
    entry, end = one[start : one.index(b"PK\5\6")], one[one.index(b"PK\5\6") :]
    counts = struct.pack("<HHL", 20, 20, 20 * len(entry))
    return one[:start] + 20 * entry + end[:8] + counts + end[16:]


def of_two_lists() -> bytes:
    """An archive whose end names a list of compressed parts, with a harmless one where it ends."""
    bad = archive(("a", bytes(100_000)), kind=zipfile.ZIP_DEFLATED)
    good = archive(("a", b"x"))
    ours, theirs = bad.index(b"PK\1\2"), good.index(b"PK\1\2")
    parts, end = good[theirs : good.index(b"PK\5\6")], good[good.index(b"PK\5\6") :]
    return bad[: bad.index(b"PK\5\6")] + parts + end[:16] + struct.pack("<LH", ours, 0)


@pytest.mark.parametrize("data", [saved(), archive(("a", b"x"), ("b", b"")), b"no archive", b""])
def test_what_takes_no_more_than_its_file_passes(data):
    require_stored(file := io.BytesIO(data))
    assert file.tell() == 0


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (archive(("a", bytes(100_000)), kind=zipfile.ZIP_DEFLATED), "a in it is compressed"),
        (overlapping(), r"its parts have 20,000 bytes, the file [\d,]+$"),
        (of_two_lists(), "its list of parts is damaged"),
        (saved()[:-1], "its list of parts is damaged"),
        (saved() + b"x", "its list of parts is damaged"),
        (b"PK\3\4", "its list of parts is damaged"),
    ],
    ids=["compressed", "overlapping", "two lists", "cut", "longer", "nothing else"],
)
def test_an_archive_that_takes_more_than_its_file_is_refused(data, wrong):
    with pytest.raises(ValueError, match=wrong):
        require_stored(io.BytesIO(data))
