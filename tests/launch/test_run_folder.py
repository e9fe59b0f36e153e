"""The lock of a run folder."""

import errno
import os
import signal

import pytest

from ninefold.errors import FolderInUse
from ninefold.files import write_json
from ninefold.launch import run_folder
from ninefold.launch.run_folder import exclusive


def test_a_lock_changes_nothing_in_its_file(tmp_path):
    (tmp_path / ".lock").write_text("precious")
    with exclusive(tmp_path, 0):
        pass
    assert (tmp_path / ".lock").read_text() == "precious"


def test_a_folder_has_one_writer_until_the_block_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "LOCK_WAIT_SECONDS", 0.0)
    with exclusive(tmp_path, 0), pytest.raises(FolderInUse), exclusive(tmp_path, 0):
        pass
    with exclusive(tmp_path, 0):
        pass


def test_a_file_system_without_locks_is_told_with_the_file_that_cannot_be_locked(
    tmp_path, monkeypatch
):
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(OSError, match=r"/\.lock'$"), exclusive(tmp_path, 0):
        pass


def test_a_process_that_was_forked_under_the_lock_does_not_keep_it(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "LOCK_WAIT_SECONDS", 0.0)
    with exclusive(tmp_path, 0):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    try:
        with exclusive(tmp_path, 0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_new_run_waits_for_one_in_its_folder_and_then_leaves_it_alone(tmp_path):
    write_json(tmp_path / "result.json", {"status": "ok"})
    (tmp_path / "config.yaml").touch()
    line = "^error: hydra.run.dir=.*: there is a run in it; each has a folder of its own; "
    with pytest.raises(FolderInUse, match=line), exclusive(tmp_path, 0, fresh=True):
        pass
    with exclusive(tmp_path, 0):  # one that resumes
        pass
