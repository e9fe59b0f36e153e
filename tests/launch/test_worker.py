"""A worker process, from its fork to its end."""

from __future__ import annotations

import time

from tests.conftest import ROOT, Shell

# Multiprocessing runs the main script in each new worker, as a module, before anything of ours.
SCRIPT = """
import time
if __name__ == "__mp_main__":
    open("forked", "w").close()
    time.sleep(2)
else:
    from ninefold.main import main
    main("train")
"""


def test_a_launcher_that_is_killed_while_a_worker_starts_leaves_none(shell: Shell) -> None:
    (shell.folder / "script.py").write_text(SCRIPT)
    options = ("epochs=100000", "threads=1", "logger=quiet", "clock.probe=0")
    process = shell.start("script.py", *options, env={"PYTHONPATH": str(ROOT)})
    while not (shell.folder / "forked").exists():
        time.sleep(0.01)
        assert process.poll() is None
    shell.kill(process)
