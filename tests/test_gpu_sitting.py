"""The sitting on a GPU, as far as a CPU can show that it works: limits, a rehearsal."""

import json
import time
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import CALLS, PARTS, Expected, Part, Sitting
from tests.conftest import ROOT, Shell


def sitting(folder: Path, until: float) -> Sitting:
    return Sitting(folder, folder / "scratch", True, time.monotonic() + until)


@pytest.mark.slow
def test_a_part_ends_at_its_limit_and_leaves_a_line_with_what_it_found(tmp_path):
    def long(sitting: Sitting) -> None:
        sitting.figures["exit code"], _ = sitting.python("-c", "print(1)")
        sitting.python("-c", "import time; print('begun', flush=True); time.sleep(600)")

    expected = (gpu.works(), Expected("exit code", 1, 1, "why"), Expected("x", 0))
    part = Part("long", "How long?", long, "1", 12, expected, False)
    began = time.monotonic()
    assert not gpu.held(part, sitting(tmp_path, 100))
    assert time.monotonic() - began < 30
    (line,) = map(json.loads, (tmp_path / gpu.FOUND).read_text().splitlines())
    assert line["error"] == "TimeoutError: it did not end within 12 s"
    assert line["figures"] == {"exit code": 0}
    said = [row["verdict"] for row in line["expected"]]
    assert said == ["as expected", "not as expected: why", "not measured"]
    assert "begun" in (tmp_path / "long.log").read_text()
    assert (tmp_path / "found.tgz").exists()


def test_each_part_has_a_question_and_a_call_that_has_time_for_all_of_its_parts():
    for part in PARTS:
        assert part.asks.endswith("?")
        assert {*part.calls} <= {*CALLS}
        assert part.expected
    for call, seconds in CALLS.items():
        assert 0 < sum(part.seconds for part in PARTS if call in part.calls) <= seconds


def test_the_tests_of_the_sitting_are_those_marked_gpu():
    files = {Path(file).relative_to(ROOT).as_posix() for file in gpu.gpu_tests(ROOT)}
    assert {*gpu.REHEARSED, "tests/train/test_launches.py"} < files


@pytest.mark.slow
def test_the_sitting_is_rehearsed_on_a_cpu_part_by_part(tmp_path):
    """Without the tests for a GPU, and what only a GPU has."""
    names = [part.name for part in PARTS if part.name != "tests"]
    words = ("-m", "benchmarks.gpu", "--rehearse", "--output", str(tmp_path), *names)
    done = Shell(ROOT, seconds=1200).run(*words)
    assert done.returncode == 0, done.stdout
    found = [json.loads(line) for line in (tmp_path / gpu.FOUND).read_text().splitlines()]
    assert [line["part"] for line in found] == names
    figures = {line["part"]: line["figures"] for line in found}
    assert figures["waiting"]["layers: events over alone"] > 0
    assert figures["compare"]["whole runs over the study"] > 0
    assert figures["ranks"]["resumed: steps"] == 8
    assert figures["scripts"]["batches, b=64: examples/s"] > 0
    assert figures["scripts"]["a missing scaler is told"]
    assert figures["fits"]["batch_size"] == 64
    assert (tmp_path / "compare" / "runs.csv").exists()
