"""The ranks that torchrun starts agree, and end together with one line.

Here they are processes of this host that have what ranks of two hosts have; real hosts are in
tests/faults/test_hosts.py.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ninefold.errors import ConfigError, DataError, Failure, PeerError
from ninefold.launch import rendezvous
from ninefold.launch.rendezvous import RankFacts, Rendezvous, hosts_of, require_equal
from ninefold.ranks import Ranks
from tests.conftest import ROOT, Shell, result

# Agreeing


@pytest.mark.parametrize(
    ("name", "values", "kind", "said"),
    [
        ("arguments", ["seed=1", "seed=1", "seed=2"], ConfigError, "arguments differ from a's (s"),
        ("data", ["3f" * 32, "3f" * 32, "77" * 32], DataError, "data differ from a's (77777777, 3"),
    ],
)
def test_the_first_host_that_differs_is_named_with_what_differs(
    name: str, values: list[str], kind: type[Failure], said: str
) -> None:
    members = [RankFacts(rank, rank, host) for rank, host in enumerate("abc")]
    require_equal(members, [{name: values[0]}] * 3)
    with pytest.raises(kind) as raised:
        require_equal(members, [{name: value} for value in values])
    assert str(raised.value).startswith(f"error: hosts=c: its {said}")


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


def test_a_request_that_is_not_answered_is_a_failure_after_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(silent.getsockname()[1]))
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setattr(rendezvous, "START_SECONDS", 0.2)
        monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.2)
        began = time.monotonic()
        with pytest.raises(PeerError, match=r"^error: MASTER_ADDR=127.0.0.1: rank 0's store does"):
            Rendezvous(Ranks(1, 2))
        assert time.monotonic() - began < 5


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
    cases = {
        "arguments": two(folder / "arguments", only=["seed=7"]),
        "data": two(
            folder / "data",
            job=IMAGES,
            env={"DATA": str(images(folder / "images"))},
            other={"DATA": str(folder / "nowhere")},
        ),
        "start": two(folder / "start"),
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


def test_other_arguments_of_one_host_are_one_line_on_all_before_anything_is_written(
    ended: tuple[Path, dict[str, Any]],
) -> None:
    folder, cases = ended
    assert [rank["code"] for rank in cases["arguments"]] == [2, 2], cases["arguments"]
    (line,) = lines(cases["arguments"])
    assert line.startswith(f"error: hosts={HERE}: its arguments differ from {HERE}'s (")
    assert not (folder / "arguments").exists()


def test_data_that_one_host_lacks_are_one_line_on_all_before_the_first_step(
    ended: tuple[Path, dict[str, Any]],
) -> None:
    folder, cases = ended
    assert [rank["code"] for rank in cases["data"]] == [4, 4], cases["data"]
    (line,) = lines(cases["data"])
    assert line.startswith("error: dataset.root=")
    assert HERE in line
    assert result(folder / "data")["error"] == line


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
        (1, "error: rank=0: a peer went away or did not answer ("),
        (0, "error: MASTER_ADDR=127.0.0.1: rank 0's store does not answer on port "),
    ],
)
def test_a_killed_rank_ends_the_others_with_one_line_that_rank_0_records(
    ended: tuple[Path, dict[str, Any]], killed: int, begins: str
) -> None:
    folder, cases = ended
    ranks = cases[f"rank{killed}"]
    assert (ranks[killed]["code"], ranks[1 - killed]["code"]) == (-9, 7), ranks
    assert ranks[1 - killed]["seconds"] < 10
    (line,) = lines(ranks)
    assert line.startswith(begins)
    if killed:
        found = result(folder / "rank1")
        assert (found["error"], found["exit_code"]) == (line, 7)
