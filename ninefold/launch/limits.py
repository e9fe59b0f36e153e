"""What this host allows a run: how many processes and open files, looked at before the start."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ninefold.errors import ConfigError, Failure, ResourceError

# Each process is handed three descriptors for each of them at most, and four others,
# and Linux passes on 253 at a time (SCM_MAX_FD).
MAX_PROCESSES = (253 - 4) // 3
FILES, FILES_EACH = 16, 5  # that the launcher has open, and for each process
TASKS, TASKS_EACH = 3, 3  # processes and threads at least: the kernel counts both alike


def problems(processes: int) -> list[Failure]:
    """Why so many processes cannot be started by one command on this host."""
    if processes > MAX_PROCESSES:
        return [
            ConfigError(
                "parallel.processes",
                processes,
                f"too many for one command; it starts {MAX_PROCESSES} on a host at most; lower it, "
                "or start the ranks with torchrun or srun",
            )
        ]
    wanted, files = FILES + FILES_EACH * processes, _soft(resource.RLIMIT_NOFILE)
    if files is not None and files < wanted:
        return [_too_low("RLIMIT_NOFILE", files, "files", wanted, processes, "ulimit -n")]
    wanted = TASKS + TASKS_EACH * processes
    tasks = _soft(resource.RLIMIT_NPROC) if os.geteuid() else None  # it does not hold for root
    if tasks is not None and tasks < wanted:
        return [_too_low("RLIMIT_NPROC", tasks, "processes", wanted, processes, "ulimit -u")]
    for folder in _cgroups():
        most, now = _number(folder / "pids.max"), _number(folder / "pids.current")
        if most is not None and now is not None and most - now < wanted:
            return [
                ResourceError(
                    "file",
                    folder / "pids.max",
                    f"the limit of {most} processes and threads is too low; {now} are there, a "
                    f"run of {processes} process(es) takes {wanted} at least; raise it (docker "
                    "run --pids-limit), or lower parallel.processes",
                )
            ]
    return []


def _too_low(
    limit: str, found: int, what: str, wanted: int, processes: int, command: str
) -> ResourceError:
    return ResourceError(
        limit,
        found,
        f"too few {what} are allowed here; a run of {processes} process(es) takes {wanted} at "
        f"least; raise it with {command}, or lower parallel.processes",
    )


def _soft(limit: int) -> int | None:
    """A limit of this process; None if there is none."""
    found, _ = resource.getrlimit(limit)
    return None if found in (resource.RLIM_INFINITY, -1) else found


def _cgroups() -> Iterator[Path]:
    """The folders of the cgroups that limit how many processes there are here, innermost first."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and "pids" not in kinds.split(","):
            continue
        base = Path("/sys/fs/cgroup", "pids" if kinds else "")
        folder = base / path.lstrip("/")
        yield from [each for each in (folder, *folder.parents) if each.is_relative_to(base)]


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or it says `max`."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None
