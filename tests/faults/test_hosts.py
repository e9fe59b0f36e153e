"""Set E: one run on two hosts, and what breaks there.

Whatever it is, both hosts end, no process is left, and the run can be resumed.

The hosts are network namespaces of this machine (root, iproute2), see `tests.faults.hosts`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Shell, result
from tests.faults.hosts import ADDRESSES, NAMES, Ended, Hosts, Pair, torchrun, two_hosts
from tests.faults.runs import PER_EPOCH, job, last_step, leftovers, state_hash

TIMEOUT = 15  # launch.timeout
SOON = 10  # seconds from an end that one host finds to that of the other; 5 where nothing else runs
# What torchrun does by itself with SIGUSR1 is to die.
SIGNALS = ["--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.fixture(autouse=True)
def of_set_e(record_property: Callable[[str, object], None]) -> None:
    record_property("set", "E")


def options(*changes: str) -> list[str]:
    """The run of all cases, with `changes`; `key=` leaves a key out."""
    usual = ["parallel.processes=auto", "threads=1", f"launch.timeout={TIMEOUT}"]
    usual += ["launch.grace=20", "hydra.run.dir=run"]
    given = job("ddp2", "fp32", *usual, *changes)
    return [override for override in given if not override.endswith("=")]


def start(
    hosts: Hosts,
    shell: Shell,
    *changes: str,
    backend: str = "static",
    script: str = "train.py",
    arguments: list[str] | None = None,
    only: dict[str, list[str]] | None = None,
    env: dict[str, dict[str, str]] | None = None,
    mounts: dict[Path, Path] | None = None,
    table: str | None = None,
    more: list[str] | None = None,
    processes: int = 1,
    late: float = 0,
) -> Pair:
    """Start the run on both hosts.

    only: arguments of one host. env: variables of one host. mounts, table: of b.
    more: options of torchrun. late: seconds that b starts later.
    """
    given = options(*changes) if arguments is None else arguments
    agents = {}
    for host in NAMES:
        command = torchrun(
            *(host, script, *given, *(only or {}).get(host, [])),
            backend=backend, options=more or (), processes=processes,
        )  # fmt: skip
        own = {"mounts": mounts, "table": table} if host == "b" else {}
        agents[host] = hosts.start(shell, host, *command, env=(env or {}).get(host), **own)  # type: ignore[arg-type]
        time.sleep(late if host == "a" else 0)
    return Pair(shell, agents)


def training(pair: Pair, steps: int = 4) -> Path:
    """Wait until the run has saved after some steps; returns its folder."""
    folder = pair.shell.folder / "run"
    pair.until(lambda: last_step(folder) >= steps if folder.exists() else False)
    return folder


FOREVER = ("epochs=100000", "checkpoint.every=20", "log_every=10")


def check(
    ended: dict[str, Ended], *said: str, code: int | None = None, run: Path | None = None
) -> None:
    """One line of the run, with each of `said` in it, on one host; result.json has it too."""
    lines = {line for end in ended.values() for line in end.lines}
    assert len(lines) == 1, ended
    (line,) = lines
    assert all(part in line for part in said), line
    assert "please report it" not in line
    if run is not None:
        found = result(run)
        assert line in found["error"]
        assert code is None or found["exit_code"] == code


def refused(pair: Pair, *said: str) -> None:
    """Both hosts refuse the run soon, before anything is written."""
    ended = pair.wait(180)
    check(ended, *said)
    assert abs(ended["a"].seconds - ended["b"].seconds) < SOON
    assert not (pair.shell.folder / "run").exists()


# Equality


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same run on one host, in two processes and in four."""
    shell, found = Shell(tmp_path_factory.mktemp("whole")), {}
    for processes in (2, 4):
        folder = shell.folder / f"run{processes}"
        done = shell.train(
            *options(f"parallel.processes={processes}", f"hydra.run.dir={folder}"),
        )
        assert done.returncode == 0, done.stderr
        found[processes] = folder
    return found


@pytest.mark.parametrize(
    ("backend", "processes", "share"),
    [("static", 1, "0"), ("c10d", 1, "0"), ("c10d", 1, "1"), ("static", 2, "0")],
    ids=["static", "c10d", "unshared", "2x2"],
)
def test_two_hosts_train_what_one_does(
    hosts: Hosts, shell: Shell, whole: dict[int, Path], backend: str, processes: int, share: str
) -> None:
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": share}
    pair = start(hosts, shell, backend=backend, processes=processes, env={"a": own, "b": own})
    ended = pair.wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended
    folder = shell.folder / "run"
    assert state_hash(folder) == state_hash(whole[2 * processes])
    found = result(folder)
    assert (found["hosts"], found["processes"]) == (2, 2 * processes)
    assert [host["name"] for host in found["environment"]["hosts"]] == list(NAMES.values())
    ranks = [host["ranks"] for host in found["environment"]["hosts"]]
    assert ranks == ([[0], [1]] if processes == 1 else [[0, 1], [2, 3]])


def test_a_host_that_starts_late_is_waited_for(hosts: Hosts, shell: Shell) -> None:
    ended = start(hosts, shell, late=25).wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended


# Killed, stopped and cut off


@pytest.mark.parametrize("victim", ["worker", "agent"])
@pytest.mark.parametrize("host", ["a", "b"])
def test_a_killed_process_ends_both_hosts(
    hosts: Hosts, shell: Shell, host: str, victim: str
) -> None:
    pair = start(hosts, shell, *FOREVER)
    folder = training(pair)
    if victim == "worker":
        pair.kill(host)
    else:
        pair.agents[host].kill()
    ended = pair.wait(SOON + 20)
    lines = [line for end in ended.values() for line in end.lines]
    assert lines, ended
    assert "please report it" not in "".join(lines)
    assert last_step(folder) >= 4
    if host == "b":
        assert result(folder)["exit_code"] == 7
        assert not leftovers(folder)  # set A has writers that are killed, and resumed


def test_a_failure_of_one_host_while_it_trains_ends_both_with_it(
    hosts: Hosts, shell: Shell
) -> None:
    broken = {"FAULT": "exception@step:1:3", "FAULT_MARK": str(shell.folder / "mark")}
    pair = start(hosts, shell, env=dict.fromkeys(NAMES, broken))
    check(pair.wait(90), "injected", "nodeb", run=shell.folder / "run")


def test_a_hung_process_ends_the_run_after_launch_timeout(hosts: Hosts, shell: Shell) -> None:
    pair = start(hosts, shell, *FOREVER)
    folder = training(pair)
    pair.kill("b", signal.SIGSTOP)
    pair.agents["a"].wait(TIMEOUT + 20)
    pair.kill("b")  # its agent waits for it
    pair.wait(30)
    assert result(folder)["exit_code"] == 7


def test_a_cable_that_stays_out_ends_the_processes_of_both_hosts(
    hosts: Hosts, shell: Shell
) -> None:
    pair = start(hosts, shell, *FOREVER)
    folder = training(pair)
    hosts.cut()
    try:
        began = time.monotonic()
        while pair.workers("a") or pair.workers("b"):
            assert time.monotonic() - began < TIMEOUT + 30
            time.sleep(0.1)
        for agent in pair.agents.values():
            agent.kill()
        pair.wait(30)
    finally:
        hosts.mend()
    assert result(folder)["exit_code"] == 7


def test_the_speed_of_a_limited_cable_is_the_one_that_it_keeps_up(
    hosts: Hosts, shell: Shell
) -> None:
    """After a rest it passes 256 kB at once, which says nothing about step after step."""
    hosts.throttle("50mbit")
    try:
        ended = start(hosts, shell, "clock.link=1").wait(300)
    finally:
        hosts.unthrottle()
    assert [end.code for end in ended.values()] == [0, 0], ended
    found = result(shell.folder / "run")["link"]
    print(found)
    rate = 50e6 / 8 * 1448 / 1514  # without the headers of packets
    assert 0.75 * rate < found["bytes_per_second"] < 1.1 * rate


# Networks


def test_an_interface_that_is_not_there_is_told_on_both_hosts(hosts: Hosts, shell: Shell) -> None:
    pair = start(hosts, shell, env={"b": {"GLOO_SOCKET_IFNAME": "eth9"}})
    refused(pair, "error: GLOO_SOCKET_IFNAME=eth9: no interface eth9 on nodeb; found lo, ")


def test_a_name_that_leads_to_the_host_itself_is_told(hosts: Hosts, shell: Shell) -> None:
    table = f"127.0.0.1 localhost\n127.0.1.1 nodeb\n{ADDRESSES['a']} nodea\n"
    pair = start(hosts, shell, env={"b": {"GLOO_SOCKET_IFNAME": ""}}, table=table)
    refused(pair, "error: host=nodeb: its name leads to 127.0.1.1, where no other host can reach")


# Agreement


def test_other_arguments_are_refused(hosts: Hosts, shell: Shell) -> None:
    pair = start(hosts, shell, only={"b": ["seed=7"]})
    refused(pair, "error: hosts=nodeb: its arguments differ from nodea's (")


def test_other_code_is_refused(hosts: Hosts, shell: Shell) -> None:
    other = shell.folder / "other"
    shutil.copytree(ROOT / "ninefold", other)
    with (other / "task" / "classification.py").open("a") as file:
        file.write("\n# another loss\n")
    pair = start(hosts, shell, mounts={ROOT / "ninefold": other})
    refused(pair, "error: hosts=nodeb: its modules of ninefold differ from nodea's (")


def test_another_version_of_torch_is_refused(hosts: Hosts, shell: Shell) -> None:
    info = shell.folder / "path" / "torch-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    path = os.pathsep.join([str(info.parent), os.environ.get("PYTHONPATH", "")])
    pair = start(hosts, shell, env={"b": {"PYTHONPATH": path}})
    refused(pair, "error: hosts=nodeb: its versions of torch differ from nodea's (1.0, ")


def images(root: Path) -> Path:
    """A small set in folders."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(2):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(32):
                pixels = random.integers(0, 256, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def on_images(root: Path, *changes: str) -> list[str]:
    return [
        *("parallel=ddp", "dataset=folder", "dataset.classes=2", "dataset.shape=[3,8,8]"),
        *("model=convnet", "batch_size=16", "epochs=1", "logger=quiet", "clock.warmup=0"),
        *("device=cpu", "threads=1", "loader.workers=0", "hydra.run.dir=run"),
        *(f"dataset.root={root}", f"launch.timeout={TIMEOUT}", *changes),
    ]


@pytest.mark.parametrize("what", ["other", "none"])
def test_data_that_a_host_lacks_is_told_before_the_first_step(
    hosts: Hosts, shell: Shell, what: str
) -> None:
    root, other = images(shell.folder / "images"), shell.folder / "others"
    if what == "other":
        shutil.copytree(root, other)
        (other / "train" / "class0" / "5.png").unlink()
        said = "error: hosts=nodeb: its data differ from nodea's"
    else:
        other.mkdir()
        said = f"error: dataset.root={root}: "
    pair = start(hosts, shell, arguments=on_images(root), mounts={root: other})
    check(pair.wait(180), said, "nodeb", run=shell.folder / "run")
    assert not last_step(shell.folder / "run")


# No files in common


def test_hosts_without_common_files_train_and_evaluate(hosts: Hosts, shell: Shell) -> None:
    other = shell.folder.parent / f"{shell.folder.name}-b"
    other.mkdir()
    mounts = {shell.folder: other}
    usual = ["parallel=ddp", "threads=1", "device=cpu", f"launch.timeout={TIMEOUT}"]
    train = [*usual, "max_steps=10", "logger=quiet", "clock.warmup=0"]
    pair = start(hosts, shell, arguments=[*train, "hydra.run.dir=run"], mounts=mounts)
    ended = pair.wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended
    assert sorted(path.name for path in (other / "run").iterdir()) == ["run.rank1.log"]
    trained = result(shell.folder / "run")
    assert trained["steps"] == 10

    evaluate = ["ckpt=run", *usual, "hydra.run.dir=evaluation"]
    pair = start(hosts, shell, script="evaluate.py", arguments=evaluate, mounts=mounts)
    ended = pair.wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended
    found = json.loads((shell.folder / "evaluation" / "evaluation.json").read_text())
    assert (found["hosts"], found["count"]) == (2, trained["test_count"])
    assert found["accuracy"] == trained["accuracy"]


# Signals


@pytest.mark.parametrize("host", ["a", "b"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_to_one_agent_saves_the_run_of_both_hosts(
    hosts: Hosts, shell: Shell, name: str, host: str
) -> None:
    pair = start(hosts, shell, *FOREVER, more=SIGNALS)
    folder = training(pair)
    pair.agents[host].send_signal(signal.Signals[name])
    ended = pair.wait(30)
    lines = {line for end in ended.values() for line in end.lines}
    assert len(lines) == 1, ended
    assert next(iter(lines)).startswith(f"error: signal={name}: the run was stopped; it is saved")
    assert result(folder)["exit_code"] == (130 if name == "SIGINT" else 75)


# Restarted by torchrun


@pytest.mark.parametrize("host", ["a", "b"])
def test_ranks_that_torchrun_restarts_go_on_in_the_same_folder(
    hosts: Hosts, shell: Shell, host: str
) -> None:
    more = ["--max-restarts", "2"]
    pair = start(hosts, shell, *FOREVER, "epochs=40", "hydra.run.dir=", more=more)
    runs = shell.folder / "outputs" / "runs"
    pair.until(lambda: any(last_step(folder) >= 20 for folder in runs.glob("*")))
    pair.kill(host)
    ended = pair.wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended
    (folder,) = runs.iterdir()
    assert result(folder)["steps"] == 40 * PER_EPOCH


# Before the group is formed


@pytest.mark.parametrize("log", ["run.log", "run.rank1.log"])
def test_a_failure_of_one_host_before_the_group_ends_both(
    hosts: Hosts, shell: Shell, log: str
) -> None:
    (shell.folder / "run" / log).mkdir(parents=True)  # where a rank writes its log
    pair = start(hosts, shell, "launch.timeout=600")
    ended = pair.wait(180)
    check(ended, "error: file=", log, code=5, run=shell.folder / "run")
    assert abs(ended["a"].seconds - ended["b"].seconds) < SOON
