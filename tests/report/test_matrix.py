"""The matrix of a report: strategies down, precisions across, and first of all that is shown."""

import json
import re
import shutil

import pytest

from ninefold import report
from ninefold.report.render.console import CONSOLE_WIDTH
from ninefold.report.render.matrix import COPY, matrix, matrix_lines
from ninefold.report.render.results import results
from tests.report.made import ROOT, built, recorded, recording, result, sweep

NINE = ROOT / "experiments" / "nine_way" / "2026-11-25_xeon-2-cores"
ROWS, AMPS = ["none", "dp", "ddp"], ["fp32", "autocast", "scaler"]


def cells_of(text: str) -> dict[str, list[str]]:
    """The rows of the first table of a report.md, by their strategy."""
    first = next(block for block in text.split("\n\n") if block.startswith("|"))
    rows = [
        [cell.strip(" *") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in first.splitlines()
    ]
    return {name: cells for name, *cells in rows}


def test_its_figures_are_those_of_report_json_and_it_is_the_first_table(tmp_path):
    folder = tmp_path / "nine"
    shutil.copytree(NINE, folder)
    shown = report.write(folder).text
    found = cells_of((folder / "report.md").read_text())
    assert list(found) == ["strategy", "--------", *ROWS]
    assert found["strategy"] == ["fp32", "autocast (bf16)", "scaler (bf16)"]
    [group] = json.loads((folder / "report.json").read_text())["groups"]
    known = {cell["cell"]: cell for cell in group["cells"]}
    page = (folder / "report.html").read_text()
    for row in ROWS:
        for amp, text in zip(AMPS, found[row], strict=True):
            cell = known[f"{row}-{amp}"]
            seconds, speed = cell["measures"]["seconds"]["mean"], cell["speedup"]["value"]
            figures = [f"{seconds:.4f} s", f"{speed:.2f}×",
                       f"{cell['measures']['score']['mean']:.2f} %"]  # fmt: skip
            assert " · ".join(figures) in text, (row, amp)
            assert " ".join(figures).replace(" %", "%") in shown, (row, amp)
            assert all(figure in page for figure in figures), (row, amp)
    assert page.index('class="matrix"') < page.index('class="plot"')
    assert "\nnone  0.0881 s" in shown
    assert "\nconfiguration " not in shown


def test_a_configuration_that_repeats_another_has_its_figures_and_says_of_which():
    found = matrix(recording("nine_way").groups[0])
    entries = {(name, column): entry for name, row in found.rows
               for column, entry in zip(AMPS, row, strict=True)}  # fmt: skip
    for amp in AMPS:
        entry = entries["dp", amp]
        assert (entry.note, entry.style) == (f"as none, {amp}", COPY)
        assert len(entry.figures) == 3  # it was timed and trained
    assert entries["none", "scaler"].note == "scaler not needed"
    assert entries["none", "fp32"].note == "use this"
    assert entries["ddp", "fp32"].note == ""


def test_it_counts_the_scores_that_the_results_show_and_no_copies():
    group = recording("landmarks3d").groups[0]
    assert "kept by 3 of 5: " in matrix(group).about
    kept = [field.word.text for row in results(group).rows for field in row if field.word]
    assert (kept.count("kept"), len(group.shown)) == (3, 1 + 5)


def test_one_that_was_not_timed_as_time_was_short_has_its_place(tmp_path):
    runs = [result(way, amp, seed) for seed in (0, 1) for way in ("none", "ddp")
            for amp in ("fp32", "autocast")]  # fmt: skip
    planned = [{"parallel": way, "amp": amp} for way in ROWS for amp in ("fp32", "autocast")]
    untimed = {f"dp-{amp}": f"none-{amp}" for amp in ("fp32", "autocast")}
    folder = sweep(tmp_path, *runs, turns=True, untimed=untimed, planned_cells=planned)
    found = matrix(built(recorded(folder)).groups[0])
    [(_, entries)] = [row for row in found.rows if row[0] == "dp"]
    notes = [entry.note for entry in entries]
    assert notes == ["as none, fp32", "as none, autocast"]
    assert [entry.figures for entry in entries] == [[], []]
    assert "dp    as none, fp32        as none, autocast" in matrix_lines(found, CONSOLE_WIDTH)


@pytest.mark.parametrize(
    ("amps", "blocks"), [(("fp32", "bf16"), 1), (("fp32", "autocast", "scaler", "tf32", "own"), 3)]
)
def test_on_a_console_it_has_80_columns(tmp_path, amps, blocks):
    ways = ("none", "dp", "ddp", "a_strategy_of_ones_own")
    runs = [result(way, amp, seed, train_seconds=1.234) for way in ways for amp in amps
            for seed in (0, 1)]  # fmt: skip
    found = matrix(built(recorded(sweep(tmp_path, *runs, turns=True))).groups[0])
    assert found is not None
    lines = matrix_lines(found, CONSOLE_WIDTH)
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("dp ")]) == blocks
    assert "0.123 s 1.00× 90.00%" in "\n".join(lines)


def test_a_study_of_one_strategy_or_one_precision_has_none(tmp_path):
    for name, cells in {"a": [("none", "fp32"), ("none", "bf16")],
                        "b": [("none", "fp32"), ("ddp", "fp32")]}.items():  # fmt: skip
        folder = sweep(tmp_path / name, *(result(*cell) for cell in cells))
        assert matrix(built(recorded(folder)).groups[0]) is None
