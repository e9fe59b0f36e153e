"""Two hosts on this machine: network namespaces with a cable between them. Takes root.

The namespaces have no names and belong to processes that die with the test's, so nothing is left
when a test is killed, and several laboratories do not meet.
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from ninefold.waits import poll_until

ADDRESSES = {"nodea": "10.77.0.1", "nodeb": "10.77.0.2"}
CABLE = "cable"  # its interface on either host


class Hosts:
    """Two hosts, nodea and nodeb. folder: where their /etc/hosts is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holders: dict[str, subprocess.Popen[str]] = {}  # processes that hold the namespaces

    def start(self) -> None:
        hosts = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        for host in ADDRESSES:
            self._hold(host)
        first, second = (str(self._holders[host].pid) for host in ADDRESSES)
        link = ["ip", "link", "add", CABLE, "netns", first, "type", "veth"]
        run(*link, "peer", "name", CABLE, "netns", second)
        for host, address in ADDRESSES.items():
            up = f"ip addr add {address}/24 dev {CABLE} && ip link set {CABLE} up"
            run(*self.on(host, "sh", "-c", up))

    def stop(self) -> None:
        """End every process of these hosts; their namespaces end with the last one."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            poll_until(self._has_ended, 3)

    def processes(self) -> list[int]:
        """The processes alive in the namespaces."""
        spaces = {_space(str(holder.pid)) for holder in self._holders.values()} - {None}
        pids = [path.name for path in Path("/proc").glob("[0-9]*") if _space(path.name) in spaces]
        return list(map(int, pids))

    def on(self, host: str, *command: str, folder: Path | str = "/") -> list[str]:
        """`command` as it is typed to run on a host, in `folder`."""
        # Not `ip netns exec`, which hides /sys/fs/cgroup from what it starts.
        enter = ["nsenter", f"--target={self._holders[host].pid}", "--net", "--uts", "--mount"]
        return [*enter, "env", f"--chdir={folder}", *command]

    def _hold(self, host: str) -> None:
        script = (
            f"mount --bind {self.folder}/hosts /etc/hosts && hostname {host} && "
            "ip link set lo up && echo ready && exec sleep infinity"
        )
        holder = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "unshare", "--net", "--uts", "--mount",
             "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PATH": path()}, start_new_session=True,
        )  # fmt: skip
        self._holders[host] = holder
        assert holder.stdout is not None
        with holder.stdout:
            assert holder.stdout.readline() == "ready\n"

    def _has_ended(self) -> bool:
        ended = [holder.poll() is not None for holder in self._holders.values()]
        return all(ended) and not self.processes()


def path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": path()})


def _space(pid: str) -> str | None:
    """The network namespace of a process; None if it has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None
