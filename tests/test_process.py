"""What a process of ours does beside its work: waiting, streams, its temporary folder, its exit."""

import os
import subprocess
import sys
import time
from pathlib import Path

from ninefold import waits
from ninefold.waits import poll_until, telling
from tests.conftest import ROOT


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from ninefold import exits, process\n{code}"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_what_is_waited_for_is_told_only_once_that_takes_long(monkeypatch, capsys):
    with telling("what is there at once"):
        pass
    monkeypatch.setattr(waits, "TELL_SECONDS", 0.05)
    with telling("the other bench"):
        time.sleep(0.5)
    assert capsys.readouterr().err == "waiting for the other bench\n"


SPAWNING = """
import multiprocessing, signal, sys
from pathlib import Path
from ninefold.process import starting

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=theirs.recv, daemon=True)
    with starting():
        process.start()
    status = Path(f"/proc/{process.pid}/status").read_text()
    (blocked,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")]
    print([number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
           for number in range(1, 20) if int(blocked, 16) >> (number - 1) & 1].count(True),
          signal.pthread_sigmask(signal.SIG_BLOCK, []))
    process.kill()
"""


def test_the_first_process_that_is_started_has_signals_blocked_from_its_first_moment(temporary):
    """Starting it starts multiprocessing's resource tracker, which unblocks two of them."""
    (temporary / "spawning.py").write_text(SPAWNING)
    done = subprocess.run(
        [sys.executable, str(temporary / "spawning.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "3 set()\n", done.stderr


def test_a_wait_ends_with_its_answer_or_at_its_deadline():
    answers = iter([0, 0, 5])
    assert poll_until(lambda: next(answers), 10, interval=0.001) == 5
    began = time.monotonic()
    assert poll_until(lambda: "", 0.05, interval=10) == ""
    assert time.monotonic() - began < 5


def test_a_temporary_folder_is_removed_at_exit(temporary):
    assert python("print(process.scratch())", temporary).stdout.startswith(str(temporary))
    assert list(temporary.iterdir()) == []


def test_a_folder_for_temporary_files_that_is_too_deep_for_sockets_is_named(temporary, monkeypatch):
    deep = temporary / ("d" * 100)
    deep.mkdir()
    done = python("process.scratch()", deep)
    assert f"error: TMPDIR={deep}: its path is too long" in done.stderr
    assert list(deep.iterdir()) == []


def test_an_exit_waits_for_what_users_left_only_so_long_and_names_it(temporary):
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), name='mine')"
    done = python(f"{code}.start()\nexits.exit_process(0, patience=0.5)", temporary)
    assert done.returncode == 7
    assert done.stderr.startswith("error: process=")
    assert "it waits for thread mine;" in done.stderr


def test_an_exit_calls_what_was_registered_for_it_and_keeps_its_code(temporary):
    done = python("import atexit; atexit.register(print, 'bye'); exits.exit_process(3)", temporary)
    assert (done.returncode, done.stdout) == (3, "bye\n")


def test_a_signal_during_the_exit_does_not_change_its_code(temporary):
    code = "import atexit, os, time\nprocess.scratch()\n"
    code += "atexit.register(lambda: (os.kill(os.getpid(), 15), time.sleep(20)))\n"
    done = python(f"{code}exits.exit_process(75)", temporary)
    assert (done.returncode, done.stderr) == (75, "")
    assert list(temporary.iterdir()) == []


def test_an_exit_that_waits_for_nothing_removes_what_multiprocessing_has_made(temporary):
    code = "from multiprocessing import util\nprint(util.get_temp_dir())\nexits.exit_now(3)"
    assert python(code, temporary).returncode == 3
    assert list(temporary.iterdir()) == []


def test_a_temporary_folder_is_removed_though_no_descriptor_is_left(temporary):
    code = "import os\n(process.scratch() / 'a' / 'b').mkdir(parents=True)\ntry:\n"
    code += "  while True: os.dup(2)\nexcept OSError: exits.exit_process(3)"
    assert python(code, temporary).returncode == 3
    assert list(temporary.iterdir()) == []


def test_a_pool_of_threads_that_was_not_shut_down_does_not_hold_up_an_exit(temporary):
    code = "from concurrent.futures import ThreadPoolExecutor\n"
    code += "pool = ThreadPoolExecutor(1); pool.submit(int).result()\n"
    assert python(f"{code}exits.exit_process(0, patience=20)", temporary).returncode == 0
