"""The process that kills the compared commands and what they started, whatever ends the bench.

`ninefold bench` pauses commands by SIGSTOP; if it were killed, they would stay paused for ever. So
this process waits until the pipe to the bench closes. Then it kills (SIGKILL) all processes whose
environment has the bench's variable NINEFOLD_BENCH, which the bench and it itself do not have.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ninefold.bench.git import environment
from ninefold.process import SAFE_PATH, importable, replaced
from ninefold.waits import poll_until

TOKEN = "NINEFOLD_BENCH"  # the variable whose value lies in the scratch folder of a bench
TO_END = 5.0  # seconds that killed processes have to be gone
TO_UNLINK = 4.0  # of these for what removes shared memory, 2 s after its last user has ended


@contextmanager
def guarded(scratch: Path, commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Have another process clean up when the block ends, or whatever ends this process in it.

    It ends the processes of a bench, runs the commands, whatever each ends with, and removes
    `scratch`, the folder of the bench's sockets, by which its processes are known. If it was killed
    itself, this process does so.
    """
    with importable(), replaced(*SAFE_PATH):
        process = subprocess.Popen(
            [sys.executable, "-m", "ninefold.bench.guardian", str(scratch), json.dumps(commands)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the bench
        )
    try:
        yield
    finally:
        process.communicate()  # closes the pipe, and waits
        if process.returncode:
            clean_up(scratch, commands)


def tree(pid: int) -> list[int]:
    """A process and all that it has started and that are alive, parents first (Linux)."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):
                with suppress(OSError):
                    children = Path(f"/proc/{each}/task/{task}/children").read_text()
                    found += map(int, children.split())
    return found


def stop(pid: int) -> list[int]:
    """Stop a process and all that it has started; return them.

    Parents first, and again until there are no more: one that runs may have started another.
    """
    stopped: list[int] = []
    while new := [each for each in tree(pid) if each not in stopped]:
        for each in new:
            send(each, signal.SIGSTOP)
        stopped += new
    return stopped


def send(pid: int, number: int) -> bool:
    """Send a signal; return whether the process is there and ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False


def of_token(token: str) -> Iterator[int]:
    """The processes whose environment names a socket below, or at, this path."""
    wanted = f"{TOKEN}={token}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                if wanted in Path("/proc", name, "environ").read_bytes():
                    yield int(name)


def kill(token: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Kill a process, what it has started and all that are marked by a token, until none is left.

    torch_shm_manager is left to remove the shared memory of the others, and ends by itself.
    """
    late = time.monotonic() + TO_UNLINK

    def gone() -> bool:
        runs = process is not None and process.poll() is None  # else its id may be another's
        found = {*of_token(token), *(tree(process.pid) if runs and process else [])}
        spared = [*filter(is_manager, found)] if time.monotonic() < late else []
        numbers = {each: signal.SIGCONT if each in spared else signal.SIGKILL for each in found}
        return not [each for each in found if send(each, numbers[each]) and not is_dead(each)]

    poll_until(gone, TO_END, 0.01)


def is_manager(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_bytes().startswith(b"torch_shm")
    return False


def is_dead(pid: int) -> bool:
    """Whether a process has ended and only waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def clean_up(scratch: Path, commands: Sequence[Sequence[str]]) -> None:
    """End the processes of a bench, run the commands, and remove the folder of its sockets."""
    kill(str(scratch))
    for arguments in commands:
        subprocess.run(arguments, env=environment(), stdin=subprocess.DEVNULL, capture_output=True)
    shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Wait for the end of the bench, and clean up behind it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()  # to its end: the bench writes nothing
    clean_up(Path(sys.argv[1]), json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
