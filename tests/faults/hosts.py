"""Two hosts on this machine: network namespaces with a cable between them. Takes root.

Each has a name, an address, /etc/hosts and, if it is asked for, files of its own. Names are those
of this process, so that several laboratories may stand side by side; their addresses are the same.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ninefold.process import until
from tests.conftest import ROOT, Shell

NAMES = {"a": "nodea", "b": "nodeb"}
ADDRESSES = {"a": "10.78.0.1", "b": "10.78.0.2"}
PORT = 29500


@dataclass
class Hosts:
    """Two hosts, a and b.

    folder: where their /etc/hosts are kept. table: lines of it besides their addresses.
    """

    folder: Path
    tag: str = field(default_factory=lambda: f"{os.getpid():x}")

    def namespace(self, host: str) -> str:
        return f"e{self.tag}{host}"

    def interface(self, host: str) -> str:
        return f"ev{self.tag}{host}"

    def up(self) -> None:
        for host in NAMES:
            run("ip", "netns", "add", self.namespace(host))
        run(*("ip", "link", "add", self.interface("a"), "netns", self.namespace("a")),
            *("type", "veth", "peer", "name", self.interface("b")),
            *("netns", self.namespace("b")))  # fmt: skip
        for host, address in ADDRESSES.items():
            self.ip(host, "addr", "add", f"{address}/24", "dev", self.interface(host))
            self.ip(host, "link", "set", "lo", "up")
            self.ip(host, "link", "set", self.interface(host), "up")
        lines = [f"{ADDRESSES[host]} {name}" for host, name in NAMES.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def down(self) -> None:
        for host in NAMES:
            subprocess.run(["ip", "netns", "del", self.namespace(host)], capture_output=True)

    def ip(self, host: str, *command: str) -> None:
        run("ip", "-n", self.namespace(host), *command)

    # The cable

    def cut(self) -> None:
        self.ip("a", "link", "set", self.interface("a"), "down")

    def mend(self) -> None:
        self.ip("a", "link", "set", self.interface("a"), "up")

    def throttle(self, rate: str) -> None:
        """Limit the cable to `rate`, such as 20mbit, in both directions."""
        for host in NAMES:
            self._tc(host, "replace", "tbf", "rate", rate, "burst", "256kb", "latency", "500ms")

    def unthrottle(self) -> None:
        for host in NAMES:
            self._tc(host, "del")

    def _tc(self, host: str, action: str, *limit: str) -> None:
        run(*("ip", "netns", "exec", self.namespace(host), "tc", "qdisc", action),
            *("dev", self.interface(host), "root", *limit))  # fmt: skip

    # Processes

    def start(
        self,
        shell: Shell,
        host: str,
        *command: str,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[Path, Path] | None = None,
        table: str | None = None,
    ) -> subprocess.Popen[str]:
        """Start a Python command on a host, in the folder of `shell`, with its tag.

        mounts: folders that this host sees in place of others. table: its /etc/hosts.
        """
        file = self.folder / "hosts"
        if table is not None:
            file = self.folder / f"hosts-{host}"
            file.write_text(table)
        lines = [f"mount --bind {shlex.quote(str(file))} /etc/hosts", f"hostname {NAMES[host]}"]
        for place, other in (mounts or {}).items():
            lines.append(f"mount --bind {shlex.quote(str(other))} {shlex.quote(str(place))}")
        lines += [f"cd {shlex.quote(str(shell.folder))}", 'exec "$@"']
        given = {
            **os.environ,
            "NINEFOLD_TEST_TAG": shell.tag,
            "NINEFOLD_TEST_HOST": host,
            "OMP_WAIT_POLICY": "PASSIVE",
            "OMP_NUM_THREADS": "1",  # else torchrun says that it sets it
            "GLOO_SOCKET_IFNAME": self.interface(host),
            **(env or {}),
        }
        given = {name: value for name, value in given.items() if value}
        return subprocess.Popen(
            # Not `ip netns exec`, which hides /sys/fs/cgroup from what it starts.
            [*("nsenter", f"--net=/run/netns/{self.namespace(host)}", "unshare", "--uts"),
             *("--mount", "sh", "-ec", "\n".join(lines), "sh", sys.executable, *command)],
            env=given,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Two hosts while the block runs."""
    hosts = Hosts(folder)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()


@dataclass
class Ended:
    """How a command ended on one host. seconds: after the first host's `wait` was called."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        """Its error lines, without what torchrun's agent says."""
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]


@dataclass
class Pair:
    """A command that torchrun started on both hosts."""

    shell: Shell
    agents: dict[str, subprocess.Popen[str]]

    def workers(self, host: str) -> list[int]:
        """The process ids of the ranks on a host."""
        found = []
        for pid in self.shell.processes():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"NINEFOLD_TEST_HOST={host}".encode() in environment and any(
                name.startswith(b"RANK=") for name in environment
            ):
                found += [pid] * (b"torch.distributed.run" not in command)
        return found

    def kill(self, host: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the ranks on a host."""
        for pid in self.workers(host):
            os.kill(pid, number)

    def until(self, done: Callable[[], bool], seconds: float = 300) -> None:
        """Wait until `done`; both hosts must be running till then."""

        def found() -> bool:
            if done():
                return True
            for host, agent in self.agents.items():
                assert agent.poll() is None, (host, agent.communicate())
            return False

        assert until(found, seconds)

    def wait(self, seconds: float = 90) -> dict[str, Ended]:
        """How both ended; an error if one has not ended after `seconds`."""
        began = time.monotonic()
        ends: dict[str, float] = {}

        def ended() -> bool:
            for host, agent in self.agents.items():
                if host not in ends and agent.poll() is not None:
                    ends[host] = time.monotonic() - began
            return len(ends) == len(self.agents)

        until(ended, seconds)
        left = set(self.agents) - ends.keys()
        for host in left:
            self.kill(host)
            self.agents[host].kill()
        found = {}
        for host, agent in self.agents.items():
            stdout, stderr = agent.communicate(timeout=20)
            took = ends.get(host, seconds)
            found[host] = Ended(agent.returncode, stdout, stderr, took)
            print(f"{NAMES[host]} ended with {agent.returncode} after {took:.1f} s")
        assert not left, (left, found)
        return found


def torchrun(
    host: str, script: str, *arguments: str, processes: int = 1, backend: str = "static",
    options: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """The command with which torchrun starts its part of a run on a host."""
    if backend == "static":
        number = str(list(NAMES).index(host))
        meeting = ["--nnodes", "2", "--node-rank", number, "--master-addr", NAMES["a"],
                   "--master-port", str(PORT)]  # fmt: skip
    else:
        endpoint = f"{NAMES['a']}:{PORT}"
        meeting = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
                   "--rdzv-id", "job"]  # fmt: skip
    return [
        *("-m", "torch.distributed.run", *meeting, "--nproc-per-node", str(processes), *options),
        *(str(ROOT / script), *arguments),
    ]
