"""A Slurm of two nodes on this machine: real daemons on two hosts, see tests.faults.hosts."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ninefold.waits import poll_until
from tests.faults.hosts import ADDRESSES, CABLE, Hosts, path

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "ip", "nsenter", "unshare", "setpriv")
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
KillWait=20
MinJobAge=300
JobRequeue=1
SchedulerParameters=sched_interval=2,requeue_setup_env_fail
MessageTimeout=20
SlurmdParameters=config_overrides
NodeName=nodea NodeAddr=10.77.0.1 CPUs=4
NodeName=nodeb NodeAddr=10.77.0.2 CPUs=4
PartitionName=low Nodes=nodea,nodeb Default=YES PriorityTier=1 MaxTime=60 GraceTime=20 State=UP
AccountingStorageType=accounting_storage/none
"""


def missing() -> list[str]:
    """What this machine lacks for such a cluster."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path()) is None]
    return lacking + ["root"] * (os.geteuid() != 0)


class Cluster(Hosts):
    """Two nodes, nodea and nodeb, and the daemons of Slurm on them.

    folder: state and logs of the daemons.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start everything; returns when both nodes take jobs."""
        super().start()
        (self.folder / "slurm.conf").write_text(CONF.format(folder=self.folder))
        for name in ("state", *(f"spool.{node}" for node in ADDRESSES)):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)
        names = {"socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        names |= {"seed-file": "munged.seed", "key-file": "munge.key"}
        options = [f"--{option}={self.folder / name}" for option, name in names.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *options)
        self._until((self.folder / "munge.sock").exists, "munged")
        self._daemon("slurmctld", *self.on("nodea", "slurmctld", "-D"))
        for node in ADDRESSES:
            self._daemon(f"slurmd.{node}", *self.on(node, "slurmd", "-D", "-N", node))
        self._until(lambda: self._idle() == len(ADDRESSES), "nodes that take jobs")

    def processes(self) -> list[int]:
        """Those on the nodes, and those with the environment of this cluster: munged."""
        conf = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = set(super().processes())
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if conf in (folder / "environ").read_bytes():
                    found.add(int(folder.name))
        return sorted(found)

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
            "PATH": path(),
            "GLOO_SOCKET_IFNAME": CABLE,
        }

    def state(self, job: str) -> Mapping[str, str]:
        """What scontrol shows of a job: JobState, ExitCode, Restarts and others."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def wait(self, job: str, *states: str, seconds: float = 300) -> Mapping[str, str]:
        """Until `job` is in one of `states`."""
        found: list[Mapping[str, str]] = []
        hastened = False

        def there() -> bool:
            nonlocal hastened
            found[:] = [self.state(job)]
            # Slurm lets a requeued job wait two minutes, for a node refuses it while it still ends,
            # and in the second in which it did.
            waits = (found[0]["JobState"], found[0].get("Reason")) == ("PENDING", "BeginTime")
            if waits and not hastened:
                hastened = True
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
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
        self._until(lambda: not self.running() and self._idle() == len(ADDRESSES), "free nodes", 60)

    def _daemon(self, name: str, *command: str) -> None:
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

        assert poll_until(found, seconds, interval=0.1), f"waited {seconds} s for {what}"

    def _has_ended(self) -> bool:
        ended = [daemon.poll() is not None for daemon in self._daemons.values()]
        return all(ended) and super()._has_ended()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster while the block runs. `folder` must be empty, and its path short: see socket(7)."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
