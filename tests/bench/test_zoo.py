"""Training scripts of many kinds, unedited, are compared with themselves and leave nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Shell, wait_until

ZOO = Path(__file__).parent
COMPARED = [
    *("plain", "workers", "compiled-model", "compiled-optimizer", "compiled-step", "ranks"),
    *("evaluating", "forking", "orphan", "printing", "restarting"),
]
pytestmark = pytest.mark.slow


def bench(shell: Shell, *words: str) -> None:
    """Two torchruns would listen on one port, as those of earlier versions of torch do."""
    found = ("-m", "ninefold", "bench", "--minutes=0.5", "--json=found.json", *words)
    done = shell.run(*found, env={"PET_RDZV_BACKEND": "static"})
    assert done.returncode in (0, 9), done.stderr


def command(kind: str) -> str:
    ranks = "-m torch.distributed.run --nproc-per-node 2" if kind == "ranks" else ""
    return f"{sys.executable} {ranks} {ZOO}/zoo.py {kind}"


@pytest.mark.parametrize("kind", COMPARED)
def test_a_script_takes_turns_with_a_copy_of_itself(shell: Shell, kind: str) -> None:
    bench(shell, command(kind), command(kind))
    found = json.loads((shell.folder / "found.json").read_text())
    (pair,) = found["pairs"]
    assert 0.5 < pair["speedup"] < 2  # known after one round, its interval after three
    told = found["commands"][0]
    assert told["world"] == (2 if kind == "ranks" else 1)
    assert bool(told["restarts"]) == (kind == "restarting")
    marks = {"evaluating": {"an evaluation"}, "workers": {"a new pass over a loader"}}
    assert marks.get(kind, set()) <= {*told["not_counted"]}
    assert not told["catches_up"]


@pytest.mark.parametrize("kind", ["plain", "workers", "evaluating", "ranks"])
def test_a_script_computes_the_same_bits_in_turns(shell: Shell, kind: str) -> None:
    said = shell.folder / "alone.log"
    with said.open("w") as file:
        alone = shell.start(*command(kind).split()[1:], fresh=True, stdout=file)
    wait_until(lambda: "\nloss " in said.read_text())
    alone.terminate()
    alone.communicate()
    loss = next(line for line in said.read_text().splitlines() if line.startswith("loss "))
    bench(shell, "--keep=kept", command(kind), command(kind))
    assert f"\n{loss}" in (shell.folder / "kept" / "A" / "1.log").read_text()
