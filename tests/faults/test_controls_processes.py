"""Negative controls of several processes: without a safeguard, the test that promises it fails."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import ninefold.engine.parallel
from tests.conftest import ROOT, Shell
from tests.faults.hosts import NAMES, Hosts
from tests.faults.test_hosts import FOREVER, TIMEOUT, hosts, start, training
from tests.launch import test_rendezvous
from tests.train import test_kernels

__all__ = ["hosts"]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_the_table(record_property: Callable[[str, object], None]) -> None:
    record_property("set", "negative controls")


def test_a_state_of_an_optimizer_that_keeps_the_strides_it_was_saved_with_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ninefold.engine.parallel, "lay_out_as_parameters", lambda optimizer: None)
    with pytest.raises(AssertionError, match="not close"):
        test_kernels.test_a_run_that_goes_on_in_another_layout_goes_on_alike(fused=True)


WITHOUT_AGREEMENT = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.faults import mutants
mutants.no_agreement()
runpy.run_path({str(ROOT / "tests/launch/fork_ranks.py")!r}, run_name="__main__")
"""


def test_hosts_that_do_not_agree_are_seen(shell: Shell) -> None:
    (shell.folder / "without.py").write_text(WITHOUT_AGREEMENT)
    case = {"arguments": test_rendezvous.two(shell.folder / "run", "max_steps=2", only=["seed=7"])}
    found = test_rendezvous.ends_of(shell, case, script=shell.folder / "without.py")
    assert [rank["code"] for rank in found["arguments"]] == [0, 0], found  # rank 0's job is run
    with pytest.raises(AssertionError):
        test_rendezvous.test_what_one_host_has_otherwise_is_one_line_on_all_before_anything_is_written(
            (shell.folder, found), "arguments", "error: hosts="
        )


def test_a_host_that_is_cut_off_stays_where_the_store_is_waited_for_without_a_bound(
    hosts: Hosts, shell: Shell
) -> None:
    """With the bound it ends: test_a_cable_that_stays_out_ends_the_processes_of_both_hosts."""
    early = shell.folder / "sitecustomize.py"  # Python imports it before anything else
    early.write_text("from tests.faults import mutants\nmutants.unbounded_store()\n")
    env = {"PYTHONPATH": f"{shell.folder}:{ROOT}"}
    pair = start(hosts, shell, *FOREVER, env=dict.fromkeys(NAMES, env))
    training(pair)
    hosts.cut()
    try:
        time.sleep(TIMEOUT + 10)
        assert pair.workers("a") or pair.workers("b")
    finally:
        hosts.mend()
        for host, agent in pair.agents.items():
            agent.kill()
            pair.kill(host)
        pair.wait(30)
