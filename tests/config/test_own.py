"""Only what a command of this user has signed is this user's own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ninefold.config import own
from ninefold.config.own import FILE, origin, sign
from ninefold.errors import CheckpointError
from tests.conftest import ROOT

TEXT = "model: {net: {_target_: mine.Net}}\n"
OTHER = TEXT.replace("mine.Net", "os.system")
USERS = ("mine_of_test_own.Net", "torch.nn.Linear")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a user, who has signed TEXT in the folder `run`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run").mkdir()
    sign(tmp_path / "run", TEXT, USERS)
    return tmp_path / "state" / "ninefold"


def test_a_key_is_made_that_only_its_user_can_read(state: Path) -> None:
    assert (state.stat().st_mode & 0o777, (state / "key").stat().st_mode & 0o777) == (0o700, 0o600)
    assert [path.name for path in state.iterdir()] == ["key"]
    assert len((state / "key").read_bytes()) == own.SIZE


def test_a_folder_of_ones_own_may_be_moved(state: Path, tmp_path: Path) -> None:
    assert origin(tmp_path / "run", TEXT) is not None
    (tmp_path / "run").rename(tmp_path / "moved")
    assert origin(tmp_path / "moved", TEXT) is not None
    assert origin(tmp_path / "run", TEXT) is None


def changed(change: Callable[[dict[str, object]], object]) -> Callable[[Path, Path], None]:
    def do(run: Path, state: Path) -> None:
        content = json.loads((run / FILE).read_text())
        change(content)
        (run / FILE).write_text(json.dumps(content))

    return do


def signed_with_another_key(run: Path, state: Path) -> None:
    key = (state / "key").read_bytes()
    (state / "key").write_bytes(bytes(own.SIZE))
    (run / FILE).unlink()
    sign(run, OTHER, ())
    assert origin(run, OTHER) is not None
    (state / "key").write_bytes(key)


def a_link_to_what_is_signed(run: Path, state: Path) -> None:
    (run / FILE).rename(run / "elsewhere")
    (run / FILE).symlink_to(run / "elsewhere")


def a_pipe(run: Path, state: Path) -> None:
    (run / FILE).unlink()
    os.mkfifo(run / FILE)


FORGED: list[Callable[[Path, Path], object]] = [
    lambda run, state: None,
    changed(lambda it: it.update(jobs={own._sha256(OTHER): {"imports": [], "modules": {}}})),
    changed(lambda it: it.update(signature="0" * 64)),
    changed(lambda it: it.update(signature="é")),
    changed(lambda it: it.update(signature=None)),
    changed(lambda it: it.update(jobs=[own._sha256(OTHER)])),
    changed(lambda it: it.clear()),
    signed_with_another_key,
    a_link_to_what_is_signed,
    a_pipe,
    lambda run, state: (run / FILE).write_text("[" * 100_000),
    lambda run, state: (run / FILE).write_bytes(b"\xff"),
    lambda run, state: os.truncate(run / FILE, 1 << 40),
    lambda run, state: (run / FILE).unlink(),
]


@pytest.mark.parametrize("forge", FORGED)
def test_a_job_that_this_user_has_not_signed_is_a_strangers(
    forge: Callable[[Path, Path], object], state: Path, tmp_path: Path
) -> None:
    forge(tmp_path / "run", state)
    assert origin(tmp_path / "run", OTHER) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda state: (state / "key").chmod(0o640),
        lambda state: state.chmod(0o777),
        lambda state: state.rename(state.with_name("x")) and state.symlink_to(state.parent / "x"),
        lambda state: (state / "key").rename(state / "x") and (state / "key").symlink_to("x"),
        lambda state: (state / "key").write_bytes(b"short"),
        lambda state: (state / "key").unlink(),
        lambda state: (state / "key").unlink() or os.mkfifo(state / "key"),
    ],
)
def test_with_a_key_that_others_could_know_or_have_put_there_nothing_is_ones_own(
    change: Callable[[Path], object], state: Path, tmp_path: Path
) -> None:
    change(state)
    assert origin(tmp_path / "run", TEXT) is None


def test_a_key_of_another_user_makes_nothing_ones_own(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: state.stat().st_uid + 1)
    assert origin(tmp_path / "run", TEXT) is None


@pytest.mark.parametrize("home", ["/dev/null", "/proc/none", "\0"])
def test_where_no_key_can_be_kept_nothing_is_signed(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "XDG_STATE_HOME": home})
    sign(tmp_path, TEXT, USERS)
    assert list(tmp_path.iterdir()) == []
    assert origin(tmp_path, TEXT) is None


def test_a_resumed_run_is_ones_own_only_if_it_was_before(state: Path, tmp_path: Path) -> None:
    run, later = tmp_path / "run", TEXT + "epochs: 3\n"
    sign(run, later, USERS, before=TEXT)
    assert origin(run, TEXT) is not None
    assert origin(run, later) is not None
    sign(run, OTHER, USERS, before="a stranger's")
    assert origin(run, OTHER) is None
    (tmp_path / "strange").mkdir()
    sign(tmp_path / "strange", OTHER, USERS, before=OTHER)
    assert list((tmp_path / "strange").iterdir()) == []
    sign(run, OTHER, USERS)  # a new run in this folder: nothing of before is left
    assert origin(run, TEXT) is None


def test_the_code_of_a_run_is_found_where_it_was_found_and_missed_in_one_line(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine_of_test_own.py").write_text("Net = 1\n")
    installed = [path for path in sys.path if Path(path).is_relative_to(sys.prefix)]
    python = [path for path in sys.path if Path(path).is_relative_to(sys.base_prefix)]
    monkeypatch.setattr(sys, "path", [str(ROOT), *python, *installed, str(tmp_path / "code")])
    sign(tmp_path / "run", TEXT, USERS)
    found = origin(tmp_path / "run", TEXT)
    assert found is not None
    assert found.modules == {"mine_of_test_own": str(tmp_path / "code" / "mine_of_test_own.py")}
    monkeypatch.setattr(sys, "path", sys.path[:-1])
    assert found.use(["torch.nn.Linear"], "ckpt", tmp_path) == []
    assert own._file_of("mine_of_test_own") is None
    assert found.use(USERS, "ckpt", tmp_path) == [str(tmp_path / "code")]
    assert own._file_of("mine_of_test_own") is not None
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path / "code")])
    theirs = own.Origin([(p, owner + 1) for p, owner in found.imports], found.modules)
    for gone in (theirs, found):  # the folder is another user's now; it is not there
        with pytest.raises(CheckpointError, match="needs your module mine_of_test_own, which is"):
            gone.use(USERS, "ckpt", tmp_path)
        (tmp_path / "code").rename(tmp_path / f"code{len(gone.imports)}") if gone is theirs else 0


def test_a_path_that_is_in_the_environment_stays_a_reference_in_the_run_folder(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ninefold import secrets

    (tmp_path / "canary-5ab1").mkdir()
    monkeypatch.setattr(secrets, "_KNOWN", {})
    monkeypatch.setenv("WHERE", str(tmp_path / "canary-5ab1"))
    monkeypatch.syspath_prepend(os.environ["WHERE"])
    secrets.note("WHERE", os.environ["WHERE"])
    sign(tmp_path / "run", TEXT, USERS)
    assert "canary-5ab1" not in (tmp_path / "run" / FILE).read_text()
    found = origin(tmp_path / "run", TEXT)
    assert found is not None
    assert found.imports[0][0] == os.environ["WHERE"]
    monkeypatch.delenv("WHERE")
    assert origin(tmp_path / "run", TEXT) == own.Origin()
