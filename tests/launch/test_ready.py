"""What is checked before a run's processes are started."""

from __future__ import annotations

from ninefold.launch.ready import MAX_PROCESSES, _too_many_processes


def test_more_processes_than_one_command_can_start_are_refused() -> None:
    assert _too_many_processes(4) == []
    (failure,) = _too_many_processes(MAX_PROCESSES + 1)
    assert (failure.code, failure.field) == (2, "parallel.processes")
