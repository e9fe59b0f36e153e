"""Set E: one run on two hosts, and what breaks there.

Whatever it is, both hosts end, no process is left, and the run can be resumed. The hosts are
network namespaces of this machine (root, iproute2), see `tests.faults.hosts`. That ranks agree, and
end when one is killed, is shown without hosts in tests/launch/test_per_rank.py.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ninefold.waits import poll_until
from tests.conftest import ROOT, Shell, end, result
from tests.faults.hosts import ADDRESSES, CABLE, Hosts
from tests.faults.runs import job, last_step, reference, state_hash

TIMEOUT = 15  # launch.timeout
# What torchrun does by itself with SIGUSR1 is to die.
SIGNALS = ("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
PORT = "29500"
FOREVER = ("epochs=100000", "checkpoint.every=20", "log_every=10")

pytestmark = pytest.mark.slow


@dataclass
class Ended:
    """How a command ended on one host."""

    code: int
    stderr: str

    @property
    def lines(self) -> list[str]:
        """Its error lines, without what torchrun's agent says."""
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]


class Pair:
    """A run that torchrun starts on both hosts, in the folder of a shell.

    arguments: of `script`; of one host there may be more in `only`, and folders that nodeb sees in
        place of others in `mounts`. options: of torchrun.
    """

    def __init__(
        self,
        hosts: Hosts,
        shell: Shell,
        *arguments: str,
        script: str = "train.py",
        mounts: Mapping[Path, Path] | None = None,
        options: tuple[str, ...] = (),
        processes: int = 1,
    ) -> None:
        self.shell = shell
        self.agents: dict[str, subprocess.Popen[str]] = {}
        for number, host in enumerate(ADDRESSES):
            binds = mounts.items() if mounts and host == "nodeb" else ()
            lines = [shlex.join(["mount", "--bind", str(b), str(a)]) for a, b in binds]
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--node-rank", str(number), "--master-addr", "nodea"),
                *("--master-port", PORT, "--nproc-per-node", str(processes), *options),
                *(str(ROOT / script), *arguments),
            ]
            own = ["unshare", "--mount", "sh", "-ec", "\n".join([*lines, 'exec "$@"']), "sh"]
            self.agents[host] = subprocess.Popen(
                hosts.on(host, *own, *command, folder=shell.folder),
                env={
                    **os.environ,
                    "NINEFOLD_TEST_TAG": shell.tag,
                    "OMP_WAIT_POLICY": "PASSIVE",
                    "OMP_NUM_THREADS": "1",  # else torchrun says that it sets it
                    "GLOO_SOCKET_IFNAME": CABLE,
                },
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )

    def until(self, done: Callable[[], Any]) -> None:
        """Wait until `done`; both hosts must be running till then."""

        def found() -> bool:
            if done():
                return True
            for host, agent in self.agents.items():
                assert agent.poll() is None, (host, agent.communicate())
            return False

        assert poll_until(found, 300)

    def wait(self, seconds: float = 90) -> dict[str, Ended]:
        """How both ended; an error if one has not ended after `seconds`."""
        agents = self.agents.values()
        both = poll_until(lambda: all(agent.poll() is not None for agent in agents), seconds)
        if not both:
            end(self.shell.processes())
        found = {}
        for host, agent in self.agents.items():
            _, stderr = agent.communicate(timeout=20)
            found[host] = Ended(agent.returncode, stderr)
        assert both, found
        return found


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def options(*changes: str) -> list[str]:
    """The run of all cases, with `changes`; `key=` leaves a key out."""
    usual = ["parallel.processes=auto", "threads=1", f"launch.timeout={TIMEOUT}"]
    usual += ["launch.grace=20", "hydra.run.dir=run"]
    given = job("ddp2", "fp32", *usual, *changes)
    return [override for override in given if not override.endswith("=")]


def training(pair: Pair) -> Path:
    """Wait until the run has saved after some steps; returns its folder."""
    folder = pair.shell.folder / "run"
    pair.until(lambda: folder.exists() and last_step(folder) >= 4)
    return folder


def check(ended: dict[str, Ended], said: str) -> None:
    """One line, the same on all hosts that say one, with `said` in it."""
    (line,) = {line for end in ended.values() for line in end.lines}
    assert said in line, line
    assert "please report it" not in line


def test_two_hosts_of_two_processes_train_what_one_does(hosts, shell, references):
    ended = Pair(hosts, shell, *options(), processes=2).wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended
    folder = shell.folder / "run"
    alone = job("ddp2", "fp32", "parallel.processes=4", "threads=1")
    assert state_hash(folder) == state_hash(reference(references, alone))
    found = result(folder)
    assert (found["hosts"], found["processes"]) == (2, 4)
    listed = [(host["name"], host["ranks"]) for host in found["environment"]["hosts"]]
    assert listed == [("nodea", [0, 1]), ("nodeb", [2, 3])]


def test_other_code_of_one_host_is_refused_on_both(hosts, shell):
    other = shell.folder / "other"
    shutil.copytree(ROOT / "ninefold", other)
    with (other / "task" / "classification.py").open("a") as file:
        file.write("\n# another loss\n")
    ended = Pair(hosts, shell, *options(), mounts={ROOT / "ninefold": other}).wait(180)
    check(ended, "error: hosts=nodeb: its modules of ninefold differ from nodea's (")
    assert not (shell.folder / "run").exists()


def test_hosts_without_common_files_train_and_evaluate(hosts, shell):
    other = shell.folder.parent / f"{shell.folder.name}-b"
    other.mkdir()
    mounts = {shell.folder: other}
    usual = ["parallel=ddp", "threads=1", "device=cpu", f"launch.timeout={TIMEOUT}"]
    train = [*usual, "max_steps=10", "logger=quiet", "clock.warmup=0", "hydra.run.dir=run"]
    ended = Pair(hosts, shell, *train, mounts=mounts).wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended
    assert sorted(path.name for path in (other / "run").iterdir()) == ["run.rank1.log"]
    trained = result(shell.folder / "run")
    assert trained["steps"] == 10

    evaluate = ["ckpt=run", *usual, "hydra.run.dir=evaluation"]
    ended = Pair(hosts, shell, *evaluate, script="evaluate.py", mounts=mounts).wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended
    found = json.loads((shell.folder / "evaluation" / "evaluation.json").read_text())
    assert (found["hosts"], found["count"]) == (2, trained["test_count"])
    assert found["score"] == trained["score"]


@pytest.mark.parametrize(
    ("name", "host", "code"), [("SIGINT", "nodea", 130), ("SIGUSR1", "nodeb", 75)]
)
def test_a_signal_to_one_agent_saves_the_run_of_both_hosts(hosts, shell, name, host, code):
    pair = Pair(hosts, shell, *options(*FOREVER), options=SIGNALS)
    folder = training(pair)
    pair.agents[host].send_signal(signal.Signals[name])
    check(pair.wait(30), f"error: signal={name}: the run was stopped; it is saved")
    assert result(folder)["exit_code"] == code
