"""Benchmarks: what is told of recorded figures follows from them; what bench counts as a step."""

import json
import re

import numpy as np
import pytest

from benchmarks import control, run, scripts
from benchmarks.measure import (
    CONTROL,
    OURS,
    estimate,
    is_quiet,
    ratio,
)
from benchmarks.shapes import SHAPES
from ninefold.bench.command import Command
from ninefold.bench.held import HeldCommand
from ninefold.bench.turns import MARKS
from ninefold.waits import poll_until
from tests.conftest import ROOT

RECORDED = sorted((ROOT / "benchmarks" / "results").glob("*/figures.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.parent.name)
def test_recorded_controls_and_void_verdicts_follow_from_the_recorded_figures(file):
    for record in json.loads(file.read_text()):
        figures = {name: np.array(of) for name, of in record["figures"].items()}
        control = estimate(ratio(OURS, CONTROL)(figures))
        assert [control.median, control.low, control.high] == pytest.approx(record["control"])
        for row in record["rows"]:
            assert (row["verdict"] == "void") is not is_quiet(control)


def test_the_documentation_leads_to_the_latest_recorded_table_which_has_each_bench():
    file = RECORDED[-1].with_name("table.md")
    assert str(file.relative_to(ROOT)) in (ROOT / "docs/internals/performance.md").read_text()
    table = [tuple(re.split(r" *\| *", row)) for row in file.read_text().splitlines()[2:]]
    known = {(row.what, row.rival) for bench in run.known().values() for row in bench.rows}
    assert known <= {row[1:3] for row in table}
    page = (ROOT / "docs" / "background" / "speed.md").read_text()
    rows = re.findall(r"^\| .* \| (\S+ \S+) \| (\[.*\]) \|$", page, re.MULTILINE)
    assert rows
    assert {*rows} <= {row[3:5] for row in table}  # the page has some of them, in other words


def test_the_picture_of_the_control_follows_from_the_recorded_reports():
    assert control.PICTURE.read_text() == control.drawn(control.checks())


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_of_bench_is_a_step_that_the_script_counts(shape, tmp_path):
    """The stopwatch counts what a script logs; a step ends before it is logged."""
    command, every = Command(scripts.command(shape, changed=True)), 13
    held = HeldCommand(command, 0, tmp_path, {*MARKS})
    try:
        poll_until(held.arrived)
        held.train(0, 60)
        (*_, logged) = re.findall(r"^step (\d+)", held.log.read_text(), re.MULTILINE)
        assert int(logged) < held.steps <= int(logged) + every
    finally:
        held.close()
