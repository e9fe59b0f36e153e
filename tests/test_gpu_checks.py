"""The checks of a GPU, as far as a CPU can show that they work: verdicts, resuming, a dry run."""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import ours
from benchmarks.gpu import command, doubts, pack, published, timings
from benchmarks.gpu.check import AS_EXPECTED, NO_BOUND, NOT, Check, Expectation
from benchmarks.gpu.race import Contestant
from benchmarks.gpu.record import FILE, LOG, Record, table
from benchmarks.gpu.session import Done, Session
from ninefold.errors import ConfigError, Failure
from tests.conftest import ROOT, Shell

MACHINE: dict[str, Any] = {
    "gpus": 1,
    "gpu_names": ["NVIDIA H200 (139 GiB)"],
    "environment": {
        "cpu": "a CPU", "cores": 16, "commit": "0" * 40, "dirty": False, "driver": "570",
        "time": "2026-11-21T12:00:00", "versions": {"python": "3.12", "torch": "2.11"},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("expectation", "value", "verdict"),
    [
        (Expectation("x", high=1.03, means="slow"), 1.03, AS_EXPECTED),
        (Expectation("x", high=1.03, means="slow"), 1.031, f"{NOT}: slow"),
        (Expectation("x", low=2, means="slow"), 1.9, f"{NOT}: slow"),
        (Expectation("x", low=0.9, high=1.1, means="apart"), 1.2, f"{NOT}: apart"),
        (Expectation("x", high=1, means="slow"), {"median": 1.2, "low": 0.9, "high": 1.4},
         f"{NOT}: slow"),
        (Expectation("x", among=(0, 5), means="code"), 1, f"{NOT}: code"),
        (Expectation("x", among=([],), means="some"), ["a"], f"{NOT}: some"),
        (Expectation("x", among=([],), means="some"), [], AS_EXPECTED),
        (Expectation("x", high=1), None, "not measured"),
        (Expectation("x"), 7, NO_BOUND),
        (Expectation("x", high=1, gpus=2), 0.5, "needs 2 GPUs"),
    ],
)  # fmt: skip
def test_a_figure_outside_its_bound_is_not_as_expected_and_says_what_it_means(
    expectation: Expectation, value: Any, verdict: str
) -> None:
    assert expectation.verdict({"x": value}, gpus=1) == verdict


def given(output: Path, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(output=output, dry=True, again=False, until=math.inf, **more)


def toy(name: str, calls: list[str], value: Any = 1.0, seconds: float = 0) -> Check:
    """A check that finds `value`, of which at most 1 is expected; or raises it."""

    def find(session: Session) -> dict[str, Any]:
        calls.append(name)
        if isinstance(value, Exception):
            raise value
        return {"x": value}

    expects = [Expectation("x", high=1, means="too much", gpus=0)]
    return Check(name, f"What is {name}?", find, expects, seconds=seconds)


def test_what_is_done_is_not_repeated_and_a_check_that_fails_stops_no_other(tmp_path: Path) -> None:
    calls: list[str] = []
    checks = [toy("one", calls), toy("broken", calls, OSError("no room")), toy("two", calls, 3.0)]
    for _ in range(2):
        left = command.run({"smoke": checks}, given(tmp_path), MACHINE)
        assert left == ["smoke/broken: OSError: no room"]
    assert calls == ["one", "broken", "two", "broken"]
    text, unexpected = table(tmp_path, command.PARTS)
    assert unexpected == 2
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["smoke/two", "x", "3.000", "at most 1", f"{NOT}: too much"] in rows
    assert ["smoke/broken", "What is broken?", "–", "", "not done: OSError: no room"] in rows
    assert "Expectations: 1 as expected, 1 not as expected, 1 not done." in text
    again = given(tmp_path)
    again.again = True
    command.run({"smoke": checks[:1]}, again, MACHINE)
    assert calls[-1] == "one"
    assert "no room" in (tmp_path / "smoke" / LOG).read_text()


def test_what_travels_and_what_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = next((ROOT / "experiments" / "resnet18_cifar10").glob("*/report.json")).parent
    there = tmp_path / "there" / "gpu"
    shutil.copytree(recording, there / "study" / "nine_way")
    (there / "rest").mkdir()
    Record(there / "rest", "rest", MACHINE, False, {}).add(toy("one", []), {"x": 1}, 0.0)
    with tarfile.open(tmp_path / "found.tgz", "w:gz") as archive:
        archive.add(there, "gpu")
    monkeypatch.setattr(pack, "ROOT", tmp_path)
    where, answer = pack.unpack([tmp_path / "found.tgz"], tmp_path / "outputs")
    assert where.startswith("experiments/nine_way/2026-11-22_")
    assert "1.70 times as fast as fp32" in answer
    assert (tmp_path / where.rstrip(":") / "report.html").exists()
    text, _ = table(tmp_path / "outputs" / pack.FOUND, command.PARTS)
    assert "rest/one" in text
    with pytest.raises(ConfigError, match=r"unpack=.*; found.tgz of a sitting is expected"):
        pack.unpack([Path(__file__)], tmp_path / "outputs")
    with pytest.raises(ConfigError, match=r"pack=.*: it exists"):
        pack.pack(tmp_path)


def test_figures_of_several_machines_or_of_a_dry_run_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "rest").mkdir()
    Record(tmp_path / "rest", "rest", MACHINE, False, {}).add(toy("one", []), {"x": 1}, 0.0)
    assert Record.resumed(tmp_path, "rest", MACHINE, False).done(toy("one", []))
    for machine, dry in ((MACHINE, True), ({**MACHINE, "gpu_names": ["NVIDIA L4"]}, False)):
        with pytest.raises(ConfigError, match="made elsewhere; NVIDIA H200"):
            Record.resumed(tmp_path, "rest", machine, dry)


def test_parts_have_different_checks_that_fit_into_their_time_on_one_gpu() -> None:
    assert list(command.PARTS) == [
        *("smoke", "doubts", "beside", "published", "steps", "study", "rest", "several")
    ]
    for checks in command.PARTS.values():
        assert len({check.name for check in checks}) == len(checks)
        assert sum(check.seconds for check in checks if check.gpus < 2) <= 60 * 9.5
        for check in checks:
            figures = [each.figure for each in check.expects]
            assert len(set(figures)) == len(figures), check.name


def refused(jobs: Iterable[Sequence[str]]) -> list[str]:
    """What keeps jobs from running, but for GPUs and for images that a check would write."""
    problems: list[str] = []
    for overrides in jobs:
        try:
            ours.job(*overrides)
        except Failure as problem:
            problems.append(str(problem))
    here = ("there is no GPU", "jpegs: no such folder")
    return [problem for problem in problems if not any(words in problem for words in here)]


class Recorder(Session):
    """Notes the runs of train.py that a check asks for, and runs nothing."""

    asked: ClassVar[list[tuple[str, ...]]] = []

    def train(self, *overrides: str, **options: Any) -> Done:
        self.asked.append(overrides)
        return Done(0, "", 1.0, options.get("folder") or self.new_folder())

    def command(self, *arguments: str, **options: Any) -> Done:
        return Done(0, "", 1.0, self.scratch)

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        names = ("ms", "gpu_names", "capability", "bfloat16", "cudnn", "nccl", "compiles")
        firsts = ("ms of the first second", "ms of the first 5 s")
        return dict.fromkeys((*names, *firsts, *doubts.CLOCKS), 1)


@pytest.mark.slow
def test_every_contestant_and_run_is_a_configuration_and_every_expectation_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At full size, as on two GPUs: what the dry run does not show."""
    asked: set[tuple[str, ...]] = set()

    def race(session: Session, *groups: Sequence[Contestant], rounds: int) -> dict[str, Any]:
        each = [contestant for group in groups for contestant in group]
        assert len({contestant.name for contestant in each}) == len(each)
        asked.update(tuple(contestant.overrides) for contestant in each)
        return {contestant.name: [1e-3, 2e-3] for contestant in each}

    for module in (timings, doubts, published):
        monkeypatch.setattr(module, "race", race)
    Recorder.asked.clear()
    with (tmp_path / LOG).open("w") as log:
        session = Recorder(log, tmp_path, 2, False, until=time.monotonic() + 60)
        for part, checks in command.PARTS.items():
            for check in checks:
                if check.name in ("neighbors", "stopped"):  # which start processes themselves
                    continue
                found = check.find(session)
                if part == "steps" and check.name not in ("host", "inputs", "scaling"):
                    # Those also ask other processes, which are not there.
                    assert {each.figure for each in check.expects} <= set(found), check.name
    asked |= {
        tuple(  # of a sweep the first of its runs
            re.sub(r"=([^\[,]*),.*", r"=\1", text)
            for text in overrides
            if text != "-m" and not text.startswith("hydra.")
        )
        for overrides in Recorder.asked
        if not any(text.startswith("resume=") for text in overrides)
    }
    assert len(asked) > 20
    assert refused(asked) == []


def checks(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where there is no GPU: some minutes for all checks where bfloat16 is slow."""
    env = {"CUDA_VISIBLE_DEVICES": ""}
    return Shell(ROOT, seconds=1200).run("-m", "benchmarks.gpu", *arguments, env=env)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["steps/layout", "--dry"], "check=steps/layout: there is no such check; there are "),
        pytest.param(["steps/small"], "device=cuda: there is no GPU; ", marks=pytest.mark.slow),
    ],
    ids=["mistyped", "no GPU"],
)
def test_a_check_that_cannot_be_made_is_one_line(
    tmp_path: Path, arguments: list[str], line: str
) -> None:
    done = checks(*arguments, "--output", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_in_a_whole_dry_run_all_that_a_cpu_can_judge_is_as_expected(tmp_path: Path) -> None:
    done = checks("--dry", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = []
    for part in command.PARTS:
        found = json.loads((tmp_path / part / FILE).read_text())["checks"]
        recorded += [(part, name) for name in found]
        for row in [row for check in found.values() for row in check["rows"]]:
            assert row["verdict"].startswith((AS_EXPECTED, NO_BOUND, "needs "))
    named = [(part, check.name) for part, each in command.PARTS.items() for check in each]
    assert sorted(recorded) == sorted(named)
