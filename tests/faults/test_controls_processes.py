"""Negative controls of several processes: without a safeguard, the test that promises it fails."""

from __future__ import annotations

import pytest

import ninefold.engine.parallel
from tests.conftest import ROOT, Shell, end, wait_until
from tests.faults.runs import job
from tests.train import test_kernels

pytestmark = pytest.mark.slow


def test_a_state_of_an_optimizer_that_keeps_the_strides_it_was_saved_with_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ninefold.engine.parallel, "lay_out_as_parameters", lambda optimizer: None)
    with pytest.raises(AssertionError, match="not close"):
        test_kernels.test_a_run_that_goes_on_in_another_layout_goes_on_alike(fused=True)


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
