"""The ranks that torchrun starts agree on the job, and each tells its own failure.

Here they are processes of this host that have what ranks of two hosts have; real hosts are in
tests/faults/test_hosts.py.
"""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from ninefold.errors import ConfigError, DataError
from ninefold.launch.per_rank import RankFacts, hosts_of, require_equal, timeout_of
from ninefold.types import MAX_TIME
from tests.conftest import ROOT, Shell, launched, result
from tests.dataset.kit import photos

# Agreeing


@pytest.mark.parametrize(
    ("name", "values", "kind", "said"),
    [
        ("arguments", ["a=1", "a=1", "a=1 b=2"], ConfigError, "arguments differ from a's (b=2, n"),
        ("data", ["3f" * 32, "3f" * 32, "77" * 32], DataError, "data differ from a's (77777777, 3"),
    ],
)
def test_the_first_host_that_differs_is_named_with_what_differs(name, values, kind, said):
    members = [RankFacts(rank, rank, host) for rank, host in enumerate("abc")]
    require_equal(members, [{name: values[0]}] * 3)
    with pytest.raises(kind) as raised:
        require_equal(members, [{name: value} for value in values])
    assert str(raised.value).startswith(f"error: hosts=c: its {said}")


def test_hosts_are_told_apart_by_their_numbers_and_have_the_cpus_of_all_their_ranks():
    machine = {"cpu": "x", "cores": 2, "gpus": []}
    cyclic = [
        RankFacts(rank, rank % 2, "ab"[rank % 2], machine=machine, cpus=[rank // 2, 7])
        for rank in range(4)
    ]
    first, second = hosts_of(cyclic)
    assert first == {"name": "a", "cpu": "x", "cores": 3, "gpus": [], "ranks": [0, 2]}
    assert second["ranks"] == [1, 3]
    assert hosts_of([RankFacts(0, 0, "a", machine=machine)])[0]["cores"] == 2
    within_a_quota = RankFacts(0, 0, "a", machine={**machine, "cores": 4}, cpus=[*range(64)])
    assert hosts_of([within_a_quota])[0]["cores"] == 4


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
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """How each case ended, and where."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "start" / "run.rank1.log").mkdir(parents=True)  # where rank 1 writes its log
    cases = {
        "arguments": two(folder / "arguments", only=["seed=7"]),
        "data": two(
            folder / "data",
            job=IMAGES,
            env={"DATA": str(photos(folder / "images", {"train": 8, "test": 8}, (8, 8)))},
            other={"DATA": str(folder / "nowhere")},
        ),
        "start": two(folder / "start"),
        "value": two(folder / "value", "batch_size=0"),
        "alone": {"ranks": [{"argv": ["launch.timeout=3"], "env": {"WORLD_SIZE": "2"}}]},
    }
    for rank in (0, 1):
        run = folder / f"rank{rank}"
        cases[run.name] = two(run, kill=rank, when=str(run / "checkpoints/manifest.json"))
    with launched(folder) as shell:
        return folder, ends_of(shell, cases)


def ends_of(shell: Shell, cases: dict[str, Any]) -> dict[str, Any]:
    """How the ranks of each case ended; see fork_ranks."""
    asked, target = shell.folder / "cases.json", shell.folder / "ended.json"
    asked.write_text(json.dumps(cases))
    script = str(ROOT / "tests/launch/fork_ranks.py")
    shell.run(script, str(asked), str(target), code=0)
    return json.loads(target.read_text())


def lines(ranks: list[dict[str, Any]]) -> list[str]:
    return [line for rank in ranks for line in rank["stderr"].splitlines()]


HERE = socket.gethostname()


GONE = "error: rank={}: a peer went away or did not answer ("
ENDS: dict[str, tuple[list[int], list[str]]] = {
    "arguments": (
        [2, 2], 2 * [f"error: hosts={HERE}: its arguments differ from {HERE}'s (seed=7, none); "]
    ),
    "value": ([2, 2], ["error: batch_size=0: "]),
    "data": ([7, 4], [GONE.format(0), "error: dataset.root="]),
    "start": ([7, 5], [GONE.format(0), "error: file="]),
    "rank0": ([-9, 7], [GONE.format(1)]),
    "rank1": ([7, -9], [GONE.format(0)]),
    "alone": ([7], [GONE.format(0)]),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_a_rank_that_differs_fails_or_dies_is_told_in_one_line_of_each_that_is_left(ended, case):
    """What is wrong before the first step is written nowhere; what ends a run, in its result."""
    folder, cases = ended
    codes, begins = ENDS[case]
    ranks = cases[case]
    assert [rank["code"] for rank in ranks] == codes, ranks
    said = lines(ranks)
    assert len(said) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(said, begins, strict=True)), said
    if 2 in codes:
        assert not (folder / case).exists()
    if codes[0] == 7 and len(codes) == 2:
        assert (result(folder / case)["error"], result(folder / case)["exit_code"]) == (said[0], 7)
    seconds = [rank["seconds"] for rank in ranks]
    assert max(seconds) < 10 or case in ("data", "start", "arguments", "value")
    assert max(seconds) - min(seconds) < 5 or case.startswith("rank")
    assert case != "alone" or seconds[0] >= 3  # as long as launch.timeout


@pytest.mark.parametrize(
    ("argv", "seconds"),
    [
        (["launch.timeout=15", "seed=1"], 15),
        (["++launch.timeout=0.5"], 1),
        (["launch.timeout=soon"], 1800),
        (["launch.timeout=inf"], MAX_TIME),
        ([], 1800),
    ],
)
def test_ranks_wait_as_long_as_the_arguments_say_before_anything_is_composed(argv, seconds):
    assert timeout_of(argv) == seconds
