"""A process that srun starts for a run leaves its failure where the launcher looks for it."""

from __future__ import annotations

from ninefold.errors import ResourceError
from ninefold.launch import mailbox
from tests.conftest import Shell


def test_a_process_that_cannot_read_its_order_leaves_a_failure_of_one_line(shell: Shell) -> None:
    folder = shell.folder / "step"
    folder.mkdir()
    done = shell.run("-m", "ninefold.launch.step", str(folder))
    [report] = mailbox.read(folder)
    assert done.returncode == report.failure.code == ResourceError.code
    assert report.failure.value == str(folder / "order.json")
    assert "Traceback" in done.stderr  # which is in srun.log
