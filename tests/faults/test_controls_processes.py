"""Negative controls of several processes: without a safeguard, the test that promises it fails."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, Shell, end, wait_until
from tests.faults.runs import job

pytestmark = pytest.mark.slow


def test_processes_that_outlive_their_killed_launcher_are_seen(shell: Shell) -> None:
    early = shell.folder / "sitecustomize.py"  # Python imports it before anything else
    early.write_text(
        "from ninefold import signals\nsignals.follow_parent = lambda parent=None: None\n"
    )
    run, path = shell.folder / "run", {"PYTHONPATH": f"{shell.folder}:{ROOT}"}
    options = [*job("none", "fp32", "epochs=100000"), f"hydra.run.dir={run}"]
    process = shell.start(str(ROOT / "train.py"), *options, env=path, fresh=True)
    wait_until((run / "metrics.jsonl").exists, process)
    with pytest.raises(AssertionError, match="processes that outlived their launcher"):
        shell.kill(process)
    end(shell.processes())
    process.communicate()
