"""Set E: one run on two hosts, and what breaks there. Whatever it is, both hosts end soon, with one
line that names host and cause, no process is left, and the run can be resumed.

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
from tests.faults.hosts import ADDRESSES, NAMES, PORT, Ended, Hosts, Pair, torchrun, two_hosts
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


def test_a_host_that_never_starts_is_torchruns_to_tell(hosts: Hosts, shell: Shell) -> None:
    more = ["--rdzv-conf", "join_timeout=5"]
    command = torchrun("a", "train.py", *options(), backend="c10d", options=more)
    ended = Pair(shell, {"a": hosts.start(shell, "a", *command)}).wait(60)
    assert ended["a"].code != 0
    assert not (shell.folder / "run").exists()


# Killed, stopped and cut off


@pytest.mark.parametrize("backend", ["static", "c10d"])
@pytest.mark.parametrize("victim", ["worker", "agent"])
@pytest.mark.parametrize("host", ["a", "b"])
def test_a_killed_process_is_told_with_its_host(
    hosts: Hosts, shell: Shell, host: str, victim: str, backend: str
) -> None:
    pair = start(hosts, shell, *FOREVER, backend=backend)
    folder = training(pair)
    if victim == "worker":
        pair.kill(host)
    else:
        pair.agents[host].kill()
    ended = pair.wait(SOON + 20)
    check(ended, NAMES[host], code=7, run=folder)
    assert last_step(folder) >= 4
    assert host == "a" or not leftovers(folder)  # set A has writers that are killed, and resumed


def test_a_signal_from_torchrun_does_not_keep_a_rank_from_saying_why_it_ends(
    hosts: Hosts, shell: Shell
) -> None:
    pair = start(hosts, shell, *FOREVER)
    folder = training(pair)
    pair.kill("b")
    time.sleep(0.3)  # of the second in which rank 0 asks who is still there
    pair.kill("a", signal.SIGTERM)
    check(pair.wait(SOON + 20), NAMES["b"], code=7, run=folder)


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_hung_process_is_told_after_launch_timeout(hosts: Hosts, shell: Shell, host: str) -> None:
    pair = start(hosts, shell, *FOREVER)
    training(pair)
    pair.kill(host, signal.SIGSTOP)
    other = pair.agents["b" if host == "a" else "a"]
    other.wait(TIMEOUT + 10)
    pair.kill(host)  # its agent waits for it
    ended = pair.wait(30)
    check(ended, NAMES[host])


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_cable_that_is_out_for_five_seconds_does_no_harm(
    hosts: Hosts, shell: Shell, backend: str
) -> None:
    pair = start(hosts, shell, *FOREVER, "epochs=500", backend=backend)
    folder = training(pair)
    hosts.cut()
    time.sleep(5)
    hosts.mend()
    ended = pair.wait(300)
    assert [end.code for end in ended.values()] == [0, 0], ended
    assert result(folder)["status"] == "ok"


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_cable_that_stays_out_ends_the_processes_of_both_hosts(
    hosts: Hosts, shell: Shell, backend: str
) -> None:
    pair = start(hosts, shell, *FOREVER, backend=backend)
    folder = training(pair)
    hosts.cut()
    try:
        began = time.monotonic()
        while pair.workers("a") or pair.workers("b"):
            assert time.monotonic() - began < TIMEOUT + 10
            time.sleep(0.1)
        for agent in pair.agents.values():  # under c10d torch's agent hangs, see docs/clusters.md
            if backend == "c10d":
                agent.kill()
        ended = pair.wait(30)
    finally:
        hosts.mend()
    assert "nodeb" in ended["a"].lines[0]
    assert "nodea" in ended["b"].lines[0]
    assert result(folder)["exit_code"] == 7


def test_a_slow_cable_is_enough(hosts: Hosts, shell: Shell) -> None:
    hosts.throttle("20mbit")
    try:
        ended = start(hosts, shell).wait(300)
    finally:
        hosts.unthrottle()
    assert [end.code for end in ended.values()] == [0, 0], ended


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


def test_an_endpoint_without_an_address_is_torchruns_to_tell(hosts: Hosts, shell: Shell) -> None:
    table = "127.0.0.1 localhost\n127.0.1.1 nodeb\n"
    pair = start(hosts, shell, table=table, more=["--rdzv-conf", "timeout=5"])
    ended = pair.wait(300)
    assert all(end.code != 0 for end in ended.values())
    assert not (shell.folder / "run").exists()


def test_a_port_that_is_taken_is_torchruns_to_tell(hosts: Hosts, shell: Shell) -> None:
    code = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(600)"
    taker = hosts.start(shell, "a", "-c", code)
    time.sleep(1)
    try:
        pair = start(hosts, shell, more=["--rdzv-conf", "timeout=5"])
        assert pair.agents["a"].wait(60) != 0
        pair.agents["b"].kill()  # it waits for a store that never comes
        pair.wait(30)
    finally:
        taker.kill()
        taker.communicate()
    assert not (shell.folder / "run").exists()


# Agreement


def test_other_arguments_are_refused(hosts: Hosts, shell: Shell) -> None:
    pair = start(hosts, shell, only={"b": ["seed=7"]})
    refused(pair, "error: hosts=nodeb: it was started with seed=7, nodea without;")


def test_other_code_is_refused(hosts: Hosts, shell: Shell) -> None:
    other = shell.folder / "other"
    shutil.copytree(ROOT / "ninefold", other)
    with (other / "task" / "classification.py").open("a") as file:
        file.write("\n# another loss\n")
    pair = start(hosts, shell, mounts={ROOT / "ninefold": other})
    refused(pair, "error: hosts=nodeb: its ninefold is another than nodea's (")


def test_another_version_of_torch_is_refused(hosts: Hosts, shell: Shell) -> None:
    info = shell.folder / "path" / "torch-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    path = os.pathsep.join([str(info.parent), os.environ.get("PYTHONPATH", "")])
    pair = start(hosts, shell, env={"b": {"PYTHONPATH": path}})
    refused(pair, "error: hosts=nodeb: torch 1.0, nodea has ")


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
def test_data_that_a_host_lacks_is_told_before_anything_is_written(
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
    refused(pair, said, "nodeb")


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


ELASTIC = ["--nnodes", "1:2", "--max-restarts", "3", *SIGNALS]
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # see docs/clusters.md
GOES_ON = (*FOREVER, "resume=auto")


def elastic(hosts: Hosts, shell: Shell) -> Pair:
    env = dict.fromkeys(NAMES, OWN_STORE)
    return start(hosts, shell, *GOES_ON, backend="c10d", more=ELASTIC, env=env)


def lose(pair: Pair, host: str) -> None:
    """A host is gone: its agent and its ranks are killed."""
    agent = pair.agents.pop(host)
    agent.kill()
    pair.kill(host)
    agent.communicate(timeout=20)


def further(pair: Pair, folder: Path) -> None:
    """Wait until the run has saved 40 steps more than it has."""
    steps = last_step(folder)
    pair.until(lambda: last_step(folder) >= steps + 40)


def test_an_elastic_run_goes_on_without_a_lost_host_and_with_it_again(
    hosts: Hosts, shell: Shell
) -> None:
    pair = elastic(hosts, shell)
    folder = training(pair)
    lose(pair, "b")
    further(pair, folder)
    assert len(pair.workers("a")) == 1
    command = torchrun("b", "train.py", *options(*GOES_ON), backend="c10d", options=ELASTIC)
    pair.agents["b"] = hosts.start(shell, "b", *command, env=OWN_STORE)
    pair.until(lambda: len(pair.workers("b")) == 1)
    further(pair, folder)
    pair.agents["a"].send_signal(signal.SIGTERM)
    ended = pair.wait(60)
    assert all(end.code for end in ended.values()), ended
    found = result(folder)
    assert (found["exit_code"], found["processes"]) == (75, 2)


def test_an_elastic_run_ends_with_the_host_of_rank_0(hosts: Hosts, shell: Shell) -> None:
    pair = elastic(hosts, shell)
    folder = training(pair)
    lose(pair, "a")
    ended = pair.wait(120)
    assert ended["b"].code
    assert any(NAMES["a"] in line for line in ended["b"].lines), ended
    assert last_step(folder) >= 4


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
