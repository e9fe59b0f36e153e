"""A Slurm of two nodes on this machine: real daemons in namespaces, for tests. Needs root.

Each node is a network namespace with an address and a host name of its own; a pair of virtual
interfaces joins the two. The namespaces have no names and belong to processes that die with the
test's, so nothing is left when a test is killed, and several labs do not meet.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ninefold.process import until

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "ip", "nsenter", "unshare", "setpriv")
NODES = {"nodea": "10.77.0.1", "nodeb": "10.77.0.2"}
CONF = """
ClusterName=ninefold
SlurmctldHost=nodea(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
MinJobAge=300
JobRequeue=1
SchedulerParameters=sched_interval=2,requeue_setup_env_fail
MessageTimeout=20
SlurmdParameters=config_overrides
NodeName=nodea NodeAddr=10.77.0.1 CPUs=4
NodeName=nodeb NodeAddr=10.77.0.2 CPUs=4
PartitionName=low Nodes=nodea,nodeb Default=YES PriorityTier=1 MaxTime=60 GraceTime=20 State=UP
PartitionName=high Nodes=nodea,nodeb PriorityTier=10 MaxTime=60 State=UP
AccountingStorageType=accounting_storage/none
"""


def missing() -> list[str]:
    """What this machine lacks for such a cluster."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return lacking + ["root"] * (os.geteuid() != 0)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Cluster:
    """Two nodes, nodea and nodeb, and the daemons of Slurm on them.

    folder: state and logs of the daemons.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holders: dict[str, subprocess.Popen[str]] = {}  # processes that hold the namespaces
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start everything; returns when both nodes take jobs."""
        hosts = "".join(f"{address} {name}\n" for name, address in NODES.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        (self.folder / "slurm.conf").write_text(CONF.format(folder=self.folder))
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (self.folder / name).mkdir()
        for node in NODES:
            self._hold(node)
        self._join()
        self._start_munge()
        self._daemon("slurmctld", "nodea", "slurmctld", "-D")
        for node in NODES:
            self.start_slurmd(node)
        self._until(lambda: self._idle() == len(NODES), "nodes that take jobs")

    def stop(self) -> None:
        """End every process of this cluster; its namespaces end with the last one."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            until(self._has_ended, 3)

    def _has_ended(self) -> bool:
        self._reap()
        return not self.processes()

    def processes(self) -> list[int]:
        """The processes alive in the namespaces, or with the environment of this cluster.

        A slurmstepd outlives its daemon, and a namespace the process that held it.
        """
        spaces = {_space(str(holder.pid)) for holder in self._holders.values()} - {None}
        conf = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if _space(path.name) in spaces or conf in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def on(self, node: str, *command: str, folder: Path | str = "/") -> list[str]:
        """`command` as it is typed to run on a node, in `folder`."""
        enter = ["nsenter", f"--target={self._holders[node].pid}", "--net", "--uts", "--mount"]
        return [*enter, "env", f"--chdir={folder}", *command]

    def run(self, *command: str, timeout: float = 60) -> str:
        """What a command of Slurm's prints on nodea."""
        done = subprocess.run(
            self.on("nodea", *command), env={**os.environ, **self.environment()},
            capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def environment(self) -> dict[str, str]:
        """The variables that commands of this cluster need."""
        return {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": _path(),
            "GLOO_SOCKET_IFNAME": "cable",
        }

    def state(self, job: str) -> Mapping[str, str]:
        """What scontrol shows of a job: JobState, ExitCode, Restarts and others."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def wait(self, job: str, *states: str, seconds: float = 300) -> Mapping[str, str]:
        """Until `job` is in one of `states`."""
        found: list[Mapping[str, str]] = []

        def there() -> bool:
            found[:] = [self.state(job)]
            # Slurm lets a requeued job wait two minutes, for a node refuses it while it still ends.
            if (found[0]["JobState"], found[0].get("Reason")) == ("PENDING", "BeginTime"):
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now")
            return found[0]["JobState"] in states

        self._until(there, f"job {job} in {states}, found {found}", seconds)
        return found[0]

    def running(self) -> str:
        """The jobs and steps that have not ended."""
        return self.run("squeue", "--noheader") + self.run("squeue", "--noheader", "--steps")

    def clear(self) -> None:
        """Cancel what is left of a test, and wait until the nodes are free."""
        for job in self.run("squeue", "--noheader", "--format=%A").split():
            with suppress(AssertionError):
                self.run("scancel", "--signal=KILL", "--full", job)
                self.run("scancel", job)
        self._until(lambda: not self.running() and self._idle() == len(NODES), "free nodes", 60)

    def start_slurmd(self, node: str) -> None:
        self._daemon(f"slurmd.{node}", node, "slurmd", "-D", "-N", node)

    def kill_slurmd(self, node: str) -> None:
        daemon = self._daemons.pop(f"slurmd.{node}")
        daemon.kill()
        daemon.wait()

    def lose(self, node: str) -> None:
        """End the process that holds a node's namespaces, as if somebody had killed it."""
        self._holders[node].kill()
        self._holders[node].wait()

    def _hold(self, node: str) -> None:
        script = (
            f"mount --bind {self.folder}/hosts /etc/hosts && hostname {node} && "
            "ip link set lo up && echo ready && exec sleep infinity"
        )
        command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", script]
        holder = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PATH": _path()}, start_new_session=True,
        )  # fmt: skip
        self._holders[node] = holder
        assert holder.stdout is not None
        with holder.stdout:
            assert holder.stdout.readline() == "ready\n"

    def _join(self) -> None:
        first, second = (str(self._holders[node].pid) for node in NODES)
        link = ["ip", "link", "add", "cable", "netns", first, "type", "veth"]
        env = {**os.environ, "PATH": _path()}
        subprocess.run([*link, "peer", "name", "cable", "netns", second], check=True, env=env)
        for node, address in NODES.items():
            up = f"ip addr add {address}/24 dev cable && ip link set cable up"
            subprocess.run(self.on(node, "sh", "-c", up), check=True, env=env)

    def _start_munge(self) -> None:
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)
        names = {"socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        names |= {"seed-file": "munged.seed", "key-file": "munge.key"}
        options = [f"--{option}={self.folder / name}" for option, name in names.items()]
        self._start("munged", ["munged", "--foreground", "--force", *options])
        self._until((self.folder / "munge.sock").exists, "munged")

    def _daemon(self, name: str, node: str, *command: str) -> None:
        self._start(name, self.on(node, *command))

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **self.environment()}, start_new_session=True,
            )  # fmt: skip

    def _idle(self) -> int:
        with suppress(AssertionError):
            return self.run("sinfo", "--noheader", "--Node", "--partition=low").count(" idle")
        return 0

    def _until(self, there: Callable[[], object], what: str, seconds: float = 30) -> None:
        def found() -> bool:
            if there():
                return True
            for name, daemon in self._daemons.items():
                said = (self.folder / f"{name}.out").read_text()[-2000:]
                assert daemon.poll() is None, f"{name} has ended: {said}"
            return False

        assert until(found, seconds, look=0.1), f"waited {seconds} s for {what}"

    def _reap(self) -> None:
        started: list[subprocess.Popen[Any]] = [*self._holders.values(), *self._daemons.values()]
        for process in started:
            process.poll()


def _space(pid: str) -> str | None:
    """The network namespace of a process; None if it has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster while the block runs. `folder` must be empty, and its path short: see socket(7)."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


if __name__ == "__main__":  # python -m tests.faults.slurm FOLDER COMMAND...: to try something
    with cluster(Path(sys.argv[1])) as one:
        command = one.on("nodea", *sys.argv[2:], folder=Path.cwd())
        raise SystemExit(subprocess.call(command, env={**os.environ, **one.environment()}))
