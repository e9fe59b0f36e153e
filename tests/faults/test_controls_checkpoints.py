"""Controls of set C: checks that would not see a mistake prove nothing, so some are made here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ninefold.checkpoint import store
from ninefold.checkpoint.store import Checkpoints
from ninefold.files import sha256_of
from tests.faults.test_checkpoint_files import DAMAGE, crashes, damages

pytestmark = pytest.mark.slow
Record = Callable[[str, object], None]


@pytest.fixture(autouse=True)
def control(record_property: Record) -> None:
    record_property("set", "negative controls")


class InPlace(Checkpoints):
    """Writes under the name that is read, as many programs do."""

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        with (self.folder / "last.pt").open("wb") as file:
            torch.save(dict(content), file)
        sha256 = sha256_of(self.folder / "last.pt")
        files = self.manifest()
        files["last.pt"] = [{"sha256": sha256, "size": 1, "step": content["step"]}]
        store.manifest.write(self.folder, files)


class ListedLate(Checkpoints):
    """Gives the new file its name before it lists it."""

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        new = self.folder / ".new.pt"
        new.unlink(missing_ok=True)
        entry = store._write(new, content)
        new.replace(self.folder / "last.pt")
        store.manifest.write(self.folder, self.manifest() | {"last.pt": [entry]})


def test_c1_sees_a_writer_that_writes_in_place(tmp_path: Path) -> None:
    _, wrong = crashes(tmp_path, (1,), InPlace)
    assert any("unreadable" in what for what in wrong), wrong


def test_c1_sees_a_writer_that_lists_a_file_too_late(tmp_path: Path) -> None:
    _, wrong = crashes(tmp_path, (1,), ListedLate)
    assert any("it was said" in what for what in wrong), wrong  # step 1 is taken, with a warning


def believe(path: Path) -> str | None:
    """What the manifest says, without a look into the file or folder."""
    entries = Checkpoints(path.parent, 2).manifest().get(path.name)
    return entries[0]["sha256"] if entries and path.exists() else None


def test_c4_sees_that_a_checksum_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "digest", believe)
    cases, wrong = damages(tmp_path, DAMAGE)
    assert len(wrong) > cases / 2
    assert any("flipped" in what and "was not detected" in what for what in wrong)
