"""The ranks that torchrun starts meet, agree, and end together with one line.

Here they are processes of this host that have what ranks of two hosts have; real hosts are in
tests/faults/test_hosts.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ninefold.errors import ConfigError, Failure, PeerError
from ninefold.launch import store_client
from ninefold.launch.meeting import Meeting
from ninefold.launch.rank_facts import RankFacts, difference, hosts_of
from ninefold.launch.store_client import Lost, StoreClient
from ninefold.ranks import Met, Ranks, network_problem
from tests.conftest import ROOT, Shell, result

MEMBER = RankFacts(
    0, 0, "nodea", {"code": "3f" * 32, "torch": "2.15.0", "torchvision": "0.30"}, ["seed=1"]
)


# Agreeing


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (
            {"facts": {**MEMBER.facts, "code": "77" * 32, "torch": "2.14.0"}},
            "error: hosts=nodeb: its ninefold is another than nodea's (77777777, 3f3f3f3f); all "
            "hosts run the same code; copy it there",
        ),
        (
            {"facts": {**MEMBER.facts, "torch": "2.14.0"}, "arguments": ["seed=2"]},
            "error: hosts=nodeb: torch 2.14.0, nodea has 2.15.0; one version is allowed; "
            "install it there",
        ),
        (
            {"arguments": ["seed=1", "model=alexnet"]},
            "error: hosts=nodeb: it was started with model=alexnet, nodea without; all hosts are "
            "given one command; repeat it there",
        ),
        (
            {"arguments": []},
            "error: hosts=nodeb: it was started without seed=1, which nodea has; all hosts are "
            "given one command; repeat it there",
        ),
    ],
    ids=["code", "torch", "more arguments", "fewer arguments"],
)
def test_a_host_that_differs_is_named_with_the_first_difference(
    other: dict[str, Any], line: str
) -> None:
    usual = {"facts": MEMBER.facts, "arguments": MEMBER.arguments}
    assert difference(MEMBER, RankFacts(1, 1, "nodeb", **usual)) is None
    assert str(difference(MEMBER, RankFacts(1, 1, "nodeb", **{**usual, **other}))) == line


def test_hosts_are_told_apart_by_their_numbers_and_have_the_cpus_of_all_their_ranks() -> None:
    machine = {"cpu": "x", "cores": 1, "gpus": []}
    cyclic = [
        RankFacts(rank, rank % 2, "ab"[rank % 2], machine=machine, cpus=[rank // 2, 7])
        for rank in range(4)
    ]
    first, second = hosts_of(cyclic)
    assert first == {"name": "a", "cpu": "x", "cores": 3, "gpus": [], "ranks": [0, 2]}
    assert second["ranks"] == [1, 3]
    assert hosts_of([RankFacts(0, 0, "a", machine=machine)])[0]["cores"] == 1


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(Met, "init_method", None)  # so that what a meeting sets is taken back
    monkeypatch.setattr(Met, "cores", None)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def ranks(number: int, *ports: int, serves: bool = True) -> Ranks:
    return Ranks(
        number, 2, 0, 1, node=number, launched=True, host=f"node{number}", run="x",
        address="127.0.0.1", ports=ports, serves=serves,
    )  # fmt: skip


def met(first: Ranks, second: Ranks) -> list[Meeting]:
    """The meeting of two ranks, as each of them has it."""
    found: dict[int, Meeting] = {}

    def meet(me: Ranks) -> None:
        found[me.rank] = meeting = Meeting(me, patience=20)
        meeting.agree(RankFacts(me.rank, me.node, me.host))

    threads = [threading.Thread(target=meet, args=(me,)) for me in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[0], found[1]]


def left(meetings: list[Meeting]) -> None:
    for meeting in reversed(meetings):
        meeting.release_store(0)


def test_ranks_meet_where_rank_0_serves_on_the_first_free_port(port: int) -> None:
    with closing(socket.create_server(("", 0))) as taken:
        ports = (taken.getsockname()[1], port)
        meetings = met(ranks(0, *ports), ranks(1, *ports))
    assert [host["name"] for host in meetings[1].hosts] == ["node0", "node1"]
    meetings[0].hand_out({"a": 1})
    assert meetings[1].expect("data", "order") == {"order": {"a": 1}}
    left(meetings)


def test_ranks_that_came_are_told_by_rank_0_which_rank_did_not_before_it_ends(port: int) -> None:
    meetings: dict[int, Meeting] = {}
    heard: list[Failure | None] = []

    def come(me: Ranks) -> None:
        meeting = meetings[me.rank] = Meeting(me, patience=2)
        with pytest.raises(PeerError) as caught:
            meeting.agree(RankFacts(me.rank, me.node, me.host))
        meeting.tell(caught.value)
        meeting.release_store(
            PeerError.code
        )  # after which rank 0's process, and its store, are gone
        if me.rank == 0:
            heard.append(meetings[1].cause)

    threads = [
        threading.Thread(target=come, args=[replace(ranks(number, port), world_size=3)])
        for number in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    [cause] = heard
    assert str(cause).startswith("error: rank=2: it did not come to rank 0 on node0;")


def test_a_rank_does_not_wait_for_ever_for_a_rank_0_that_freezes_after_its_answer(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ninefold.launch.meeting.BEAT_SECONDS", 1.0)
    # Several signs of life in a second.
    monkeypatch.setattr("ninefold.launch.failure_agreement.POLL_SECONDS", 0.05)
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)

    def answer() -> None:
        name = store.get("ninefold/x/hello/1").decode()
        store.set(f"ninefold/x/answer/{name}", "ninefold/0")

    frozen = threading.Thread(target=answer)
    frozen.start()
    meeting = Meeting(ranks(1, port, serves=False), patience=1)
    with pytest.raises(PeerError, match=r"^error: rank=0: it does not say its members; it has 2 s"):
        meeting.agree(RankFacts(1, 1, "node1"))
    meeting.release_store(0)  # else its watch ends this process when the store is gone
    frozen.join()


def test_restarted_ranks_meet_anew_in_the_store_of_the_agent_and_know_the_folder(
    port: int,
) -> None:
    agent = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    agent.add("ninefold/x/hellos", 1)
    agent.set("ninefold/x/hello/1", "of a process that is gone")
    agent.add("ninefold/x/hellos", 1)  # of one that was killed before it said its own
    before = met(ranks(0, port, serves=False), ranks(1, port, serves=False))
    assert before[0].earlier_folder is None
    before[0].remember("runs/1")
    before[0].hand_out(3)
    after = met(ranks(0, port, serves=False), ranks(1, port, serves=False))
    assert after[0].earlier_folder == "runs/1"
    after[0].hand_out(4)
    assert after[1].expect("order") == {"order": 4}
    left(before)
    left(after)


def test_a_request_that_is_not_answered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "ANSWER_SECONDS", 0.1)
    asked = StoreClient(dist.HashStore())
    with pytest.raises(Lost, match="no answer") as lost:
        asked.ask(lambda store: time.sleep(0.5))
    assert not lost.value.gone
    time.sleep(0.5)
    asked.set("key", "value")
    assert asked.get("key") == "value"


def test_an_interface_that_is_not_there_and_a_name_of_the_loopback_are_refused() -> None:
    me = ranks(0)
    wrong = network_problem(me, {"GLOO_SOCKET_IFNAME": "lo,eth9"}, gpus=False)
    assert str(wrong).startswith("error: GLOO_SOCKET_IFNAME=lo,eth9: no interface eth9 on node0;")
    assert network_problem(me, {"GLOO_SOCKET_IFNAME": "lo"}, gpus=False) is None
    here = Ranks(0, 2, 0, 1, host="localhost")
    wrong = network_problem(here, {}, gpus=False)
    assert isinstance(wrong, ConfigError)
    assert str(wrong).startswith("error: host=localhost: its name leads to 127.0.0.1, where no ")
    assert network_problem(here, {}, gpus=True) is None
    assert network_problem(Ranks(0, 2, 0, 2, host="localhost"), {}, gpus=False) is None


# Whole commands


JOB = [
    *("parallel=ddp", "dataset=synthetic", "dataset.train_count=96", "dataset.test_count=40"),
    *("dataset.shape=[1,8,8]", "model.net._target_=tests.faults.net.Net", "batch_size=16"),
    *("epochs=100000", "checkpoint.every=2"),
    *("log_every=4", "clock.warmup=0", "clock.sample=0", "logger=quiet"),
    *("device=cpu", "threads=1", "launch.timeout=600"),
]

IMAGES = [
    *("parallel=ddp", "dataset=folder", "dataset.root=${oc.env:DATA}", "dataset.classes=2"),
    *("dataset.shape=[3,8,8]", "batch_size=16", "device=cpu", "threads=1"),
]


def two(run: Path, *more: str, **case: Any) -> dict[str, Any]:
    """A case of fork_ranks: two ranks of a run in the folder `run`.

    more: changes to its overrides. only: overrides of rank 1. env, other: variables of each rank.
    """
    env = [case.pop("env", {}), case.pop("other", {})]
    both = [*case.pop("job", JOB), f"hydra.run.dir={run}", *more]
    argv = [both, [*both, *case.pop("only", [])]]
    return {"ranks": [{"argv": a, "env": e} for a, e in zip(argv, env, strict=True)], **case}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """How each case ended, and where."""
    folder = tmp_path_factory.mktemp("ranks")
    shell = Shell(folder)

    (folder / "start" / "run.rank1.log").mkdir(parents=True)  # where rank 1 writes its log
    os.mkfifo(pipe := folder / "pipe")
    cases = {
        "arguments": two(folder / "arguments", only=["seed=7"]),
        "interface": two(folder / "interface", other={"GLOO_SOCKET_IFNAME": "eth9"}),
        "data": two(
            folder / "data",
            job=IMAGES,
            env={"DATA": str(images(folder / "images"))},
            other={"DATA": str(folder / "nowhere")},
        ),
        "start": two(folder / "start"),
        "interrupted": two(
            folder / "interrupted",
            "dataset=mapped",
            f"dataset.train={{_target_:tests.launch.blocked.Blocked,pipe:'{pipe}'}}",
            "dataset.test=${dataset.train}",
            job=["parallel=ddp", "device=cpu", "dataset.classes=2", "dataset.shape=[3,8,8]"],
            kill=1,
            signal=signal.SIGINT,
            when=str(pipe),
        ),
    }
    for rank in (0, 1):
        run = folder / f"rank{rank}"
        cases[run.name] = two(run, kill=rank, when=str(run / "checkpoints/manifest.json"))
    yield folder, ends_of(shell, cases)
    assert not shell.survivors()


def ends_of(
    shell: Shell, cases: dict[str, Any], script: Path = ROOT / "tests/launch/fork_ranks.py"
) -> dict[str, Any]:
    """How the ranks of each case ended; see fork_ranks."""
    asked, target = shell.folder / "cases.json", shell.folder / "ended.json"
    asked.write_text(json.dumps(cases))
    done = shell.run(str(script), str(asked), str(target))
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert isinstance(found, dict)
    return found


def images(root: Path) -> Path:
    """A small set in folders."""
    import numpy as np
    from PIL import Image

    for split in ("train", "test"):
        for label in range(2):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(8):
                pixels = np.full((8, 8), 16 * number, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def lines(ranks: list[dict[str, Any]]) -> list[str]:
    return [line for rank in ranks for line in rank["stderr"].splitlines()]


HERE = socket.gethostname()


@pytest.mark.slow  # as tests/faults/test_hosts.py shows with real hosts
@pytest.mark.parametrize(
    ("name", "code", "begins"),
    [
        ("arguments", 2, f"error: hosts={HERE}: it was started with seed=7, {HERE} without; "),
        ("interface", 2, f"error: GLOO_SOCKET_IFNAME=eth9: no interface eth9 on {HERE}; found "),
        ("data", 4, "error: dataset.root="),
    ],
)
def test_what_one_host_lacks_is_one_line_on_all_before_anything_is_written(
    ended: tuple[Path, dict[str, Any]], name: str, code: int, begins: str
) -> None:
    folder, cases = ended
    assert [rank["code"] for rank in cases[name]] == [code, code], cases[name]
    (line,) = lines(cases[name])
    assert line.startswith(begins)
    assert HERE in line
    assert not (folder / name).exists()


def test_a_ctrl_c_to_a_rank_that_waits_ends_rank_0_while_it_still_prepares_data(
    ended: tuple[Path, dict[str, Any]],
) -> None:
    _, cases = ended
    assert [rank["code"] for rank in cases["interrupted"]] == [130, 130], cases["interrupted"]
    (line,) = lines(cases["interrupted"])
    assert line.startswith("error: signal=SIGINT: interrupted;")
    assert max(rank["seconds"] for rank in cases["interrupted"]) < 10


def test_a_failure_before_the_group_is_formed_ends_all_ranks_with_it(
    ended: tuple[Path, dict[str, Any]],
) -> None:
    folder, cases = ended
    assert [rank["code"] for rank in cases["start"]] == [5, 5], cases["start"]
    (line,) = lines(cases["start"])
    assert line.startswith("error: file=")
    assert "run.rank1.log" in line
    assert f"(on {HERE})" in line
    assert result(folder / "start")["error"] == line
    first, second = (rank["seconds"] for rank in cases["start"])
    assert abs(first - second) < 5


@pytest.mark.parametrize(
    ("killed", "begins"),
    [
        (1, f"error: rank=1 on {HERE}: it is gone or hangs; rank 0 found that a peer went away"),
        (0, f"error: host={HERE}: rank 0 is gone and with it the store ("),
    ],
)
def test_a_killed_rank_is_named_by_the_others_and_in_the_result(
    ended: tuple[Path, dict[str, Any]], killed: int, begins: str
) -> None:
    folder, cases = ended
    ranks = cases[f"rank{killed}"]
    assert (ranks[killed]["code"], ranks[1 - killed]["code"]) == (-9, 7), ranks
    assert ranks[1 - killed]["seconds"] < 10
    (line,) = lines(ranks)
    assert line.startswith(begins)
    found = result(folder / f"rank{killed}")
    assert (found["error"], found["exit_code"]) == (line, 7)
