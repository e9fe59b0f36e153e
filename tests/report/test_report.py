"""The report: what its tables, files and errors promise."""

from __future__ import annotations

import json
import os
import runpy
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ninefold import report
from ninefold.errors import ConfigError
from ninefold.report.__main__ import main
from ninefold.report.answer.answer import build, evidence_of
from ninefold.report.answer.recommend import recommend
from ninefold.report.data.environment import read_environment
from ninefold.report.data.recording import Recording, find_recording, read_recording, record
from ninefold.report.data.runs import read_csv
from ninefold.report.render.text import table_text

ROOT = Path(__file__).parents[2]


def facts_of(parallel: str, amp: str, replicas: int = 1) -> dict[str, Any]:
    """What options declare, as a run records it."""
    one = parallel in ("none", "dp")
    return {
        "max_processes": 1 if one else None, "tf32": amp == "tf32", "random_inputs": False,
        "no_op": parallel == "dp" and replicas == 1, "backend": None if one else "gloo",
    }  # fmt: skip


def result(parallel: str = "none", amp: str = "fp32", seed: int = 0, **changes: Any) -> dict:
    """A successful run's result.json with made-up numbers."""
    return {
        "status": "ok", "error": None, "study": "made_up", "parallel": parallel, "amp": amp,
        **facts_of(parallel, amp, changes.get("replicas", 1)),
        "dataset": "digits", "model": "convnet", "seed": seed, "dtype": "float32",
        "grad_scaler": False, "processes": 1, "replicas": 1, "devices": ["cpu"], "threads": 2,
        "batch_size": 64, "epochs": 10, "steps": 220, "skipped_steps": 0, "accuracy": 0.9,
        "best_accuracy": 0.91, "test_loss": 0.1, "test_count": 360, "train_seconds": 20.0,
        "evaluate_seconds": 1.0, "total_seconds": 23.0, "epoch_seconds": [2.0] * 10,
        "images_per_second": 1000.0, "peak_memory_bytes": [200 * 2**20], "notes": [],
        "phase_seconds": {
            "data": 1.0, "transfer": 1.0, "forward": 2.0, "backward": 4.0, "optimizer": 2.0
        },
        "environment": {
            "python": "3.12.1", "torch": "2.15.0", "driver": None, "commit": "0123456789abcdef",
            "dirty": False, "hostname": "box7", "cpu": "A CPU", "cores": 2,
            "time": f"2026-01-02T03:04:0{seed}Z",
        },
        **changes,
    }  # fmt: skip


def failure(parallel: str, amp: str, seed: int = 0, **changes: Any) -> dict:
    """The little that a run knows which failed before it trained."""
    return {
        "status": "failed", "error": "error: device=cuda: no GPU; found cpu; use device=cpu",
        "study": "made_up", "parallel": parallel, "amp": amp, "dataset": "digits",
        "model": "convnet", "seed": seed, "max_processes": facts_of(parallel, amp)["max_processes"],
        **changes,
    }  # fmt: skip


def sweep(folder: Path, *results: dict, **facts: Any) -> Path:
    """Write results as the run folders of a sweep, and its facts as sweep.json."""
    for number, content in enumerate(results):
        run = folder / "runs" / f"{number}_{content['parallel']}_{content['amp']}"
        run.mkdir(parents=True)
        (run / "result.json").write_text(json.dumps(content))
    if facts:
        (folder / "sweep.json").write_text(json.dumps(facts))
    return folder


def tables_of(folder: Path) -> str:
    """Record a folder as its report does; the text of the table.md that the report would have."""
    gathered, target = find_recording(folder)
    if target != folder:
        record(gathered, target)
    return table_of(read_recording(target))


def table_of(recording: Recording) -> str:
    """The text of the table.md of a recording."""
    found = evidence_of(recording)
    return table_text(build(recording, found, recommend(found[0]) if found else []))


def row(text: str, section: str, name: str) -> list[str]:
    """The cells of one row in the table below a heading."""
    below = text.split(f"### {section}\n", 1)[1]
    line = next(line for line in below.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_a_report_is_files_in_the_sweeps_folder(tmp_path: Path) -> None:
    report.write(sweep(tmp_path, result()))
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert names == {
        "runs.csv", "curves.csv", "environment.json", "table.md", "figure.png", "report.json",
        "report.md", "report.html",
    }  # fmt: skip


def test_a_cell_is_mean_and_deviation_over_seeds_and_the_ratio_paired_by_seed(
    tmp_path: Path,
) -> None:
    text = tables_of(
        sweep(
            tmp_path,
            result(seed=0, train_seconds=10.0),
            result(seed=1, train_seconds=40.0),
            result("ddp", seed=0, train_seconds=20.0),  # ratio 2
            result("ddp", seed=1, train_seconds=40.0),  # ratio 1; the ratio of the means is 1.2
        )
    )
    assert row(text, "Seconds per epoch", "none") == ["2.50 ± 2.12 (×1.00)"]
    assert row(text, "Seconds per epoch", "ddp") == ["3.00 ± 1.41 (×1.41)"]  # √(2·1)


def test_a_seed_without_a_partner_counts_in_the_mean_and_not_in_the_ratio(tmp_path: Path) -> None:
    text = tables_of(
        sweep(
            tmp_path,
            result(seed=0, images_per_second=1000.0),
            result("dp", seed=0, images_per_second=2000.0),
            result("dp", seed=1, images_per_second=6000.0),
        )
    )
    assert row(text, "Images per second", "dp") == ["4000 ± 2828 (×2.00)"]


def test_repeats_of_a_seed_count_as_one_and_the_text_says_so(tmp_path: Path) -> None:
    times = ((0, 10.0), (0, 30.0), (1, 40.0))
    runs = [result(seed=seed, train_seconds=seconds) for seed, seconds in times]
    text = tables_of(sweep(tmp_path, *runs))
    assert row(text, "Seconds per epoch", "none") == ["3.00 ± 1.41 (×1.00)"]
    assert "same cell and seed are averaged" in text


def test_a_run_that_stopped_within_an_epoch_counts_the_fraction(tmp_path: Path) -> None:
    text = tables_of(sweep(tmp_path, result(epochs=1 / 3, train_seconds=1.0)))
    assert row(text, "Seconds per epoch", "none") == ["3.00 (×1.00)"]
    assert "batch 64, 0.333333 epochs\n" in text
    assert "; 0.333333 epochs;" in text


def test_accuracy_is_in_percent_and_its_difference_in_points(tmp_path: Path) -> None:
    text = tables_of(
        sweep(tmp_path, result(accuracy=0.9), result("none", "scaler", accuracy=0.885))
    )
    assert row(text, "Test accuracy, percent", "none") == ["90.00 (+0.00)", "88.50 (-1.50)"]


def test_memory_is_the_sum_over_devices(tmp_path: Path) -> None:
    two = result("ddp", peak_memory_bytes=[300 * 2**20, 100 * 2**20])
    text = tables_of(sweep(tmp_path, result(), two))
    assert row(text, "Peak memory, MiB", "ddp") == ["400 (×2.00)"]


def test_phases_are_shares_of_the_sampled_steps(tmp_path: Path) -> None:
    text = tables_of(sweep(tmp_path, result()))
    assert row(text, "Where the time goes", "none-fp32") == ["10.0", "10.0", "20.0", "40.0", "20.0"]


def test_a_single_seed_has_no_deviation_and_the_text_says_so(tmp_path: Path) -> None:
    text = tables_of(sweep(tmp_path, result()))
    assert row(text, "Seconds per epoch", "none") == ["2.00 (×1.00)"]
    assert "single seed" in text
    assert "±" not in text


def test_the_text_says_that_mean_and_deviation_are_no_test(tmp_path: Path) -> None:
    assert "no test of a difference" in tables_of(sweep(tmp_path, result()))


def test_rows_and_columns_stand_in_the_documented_order(tmp_path: Path) -> None:
    names = ("bf16", "scaler", "another", "tf32", "autocast", "fp32")
    runs = [result(parallel, amp) for amp in names for parallel in ("ddp", "dp", "none")]
    text = tables_of(sweep(tmp_path, *runs))
    lines = [line.split() for line in text.split("### Seconds per epoch")[1].splitlines()[4:9]]
    assert lines[0][2::2] == ["fp32", "autocast", "scaler", "tf32", "bf16", "another"]
    assert [line[1] for line in lines[2:]] == ["none", "dp", "ddp"]


def test_a_missing_cell_is_a_dash_and_a_failed_one_says_failed(tmp_path: Path) -> None:
    text = tables_of(
        sweep(tmp_path, result(), result("dp", "autocast"), failure("none", "autocast", notes=[]))
    )
    for section in ("Seconds per epoch", "Images per second", "Test accuracy, percent"):
        assert row(text, section, "none")[1] == "failed"
        assert row(text, section, "dp")[0] == "–"


def test_numbers_of_a_run_that_is_not_ok_stay_out_of_the_tables(tmp_path: Path) -> None:
    diverged = result(seed=1, status="diverged", error="error: loss=nan", train_seconds=9999.0)
    text = tables_of(sweep(tmp_path, result(), diverged))
    assert row(text, "Seconds per epoch", "none") == ["2.00 (×1.00), 1 of 2 seeds"]


def test_every_run_that_is_not_ok_is_listed_with_its_error(tmp_path: Path) -> None:
    text = tables_of(sweep(tmp_path, result(), failure("ddp", "scaler", seed=3)))
    line = next(line for line in text.splitlines() if line.startswith("- ddp-scaler, seed 3"))
    assert "failed" in line
    assert "no GPU; found cpu; use device=cpu" in line


def test_a_number_that_is_not_known_is_a_dash(tmp_path: Path) -> None:
    unknown = result("dp", images_per_second=None, phase_seconds=None, peak_memory_bytes=None)
    text = tables_of(sweep(tmp_path, result(), unknown))
    assert row(text, "Images per second", "dp") == ["–"]
    assert row(text, "Peak memory, MiB", "dp") == ["–"]
    assert row(text, "Where the time goes", "dp-fp32") == ["–"] * 5


def test_a_note_stands_once_and_marks_the_cells_it_holds_for(tmp_path: Path) -> None:
    note = "dp has one device and replicates nothing."
    text = tables_of(
        sweep(tmp_path, result(), result("dp", notes=[note]), result("dp", seed=1, notes=[note]))
    )
    assert text.count(note) == 1
    assert f"1. {note} — dp-fp32\n" in text
    assert row(text, "Seconds per epoch", "dp")[0].endswith(" ¹")
    assert not row(text, "Seconds per epoch", "none")[0].endswith(" ¹")


def test_a_note_that_holds_for_every_cell_marks_none(tmp_path: Path) -> None:
    note = "Memory is that of the process."
    text = tables_of(sweep(tmp_path, result(notes=[note]), result("dp", notes=[note])))
    assert f"1. {note} — every cell\n" in text
    assert "¹" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [("dataset", "cifar10"), ("model", "alexnet"), ("batch_size", 128), ("epochs", 20)],
)
def test_runs_of_different_conditions_get_tables_of_their_own(
    tmp_path: Path, name: str, value: object
) -> None:
    other = result(train_seconds=60.0, **{name: value})
    text = tables_of(sweep(tmp_path, result(), other))
    assert text.count("### Seconds per epoch") == 2
    assert "±" not in text.split("## ", 1)[1]


def test_a_run_that_failed_before_it_knew_its_batch_joins_the_group_it_is_missing_from(
    tmp_path: Path,
) -> None:
    text = tables_of(
        sweep(
            tmp_path, result(), result("dp"), result(batch_size=128),
            failure("dp", "fp32"),
        )
    )  # fmt: skip
    small, large = text.split("\n## ")[1:3]
    assert row(small, "Seconds per epoch", "dp") == ["2.00 (×1.00)"]
    assert row(large, "Seconds per epoch", "dp") == ["failed"]


def test_a_sweep_in_which_everything_failed_still_gets_its_report(tmp_path: Path) -> None:
    text = tables_of(sweep(tmp_path, failure("none", "fp32"), failure("dp", "fp32")))
    assert row(text, "Seconds per epoch", "none") == ["failed"]


def test_a_run_that_never_finished_is_listed_with_its_cell(tmp_path: Path) -> None:
    run = sweep(tmp_path, result()) / "deep" / "down" / "1_ddp_scaler"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(
        "parallel:\n  seed: 1\nseed: 7\nbatch_size: 64\nchoices:\n  experiments: made_up\n"
        "  parallel: ddp\n  amp: scaler\n  dataset: digits\n  model: convnet\n"
    )
    text = tables_of(tmp_path)
    assert "- ddp-scaler, seed 7 (`deep/down/1_ddp_scaler`) unfinished" in text
    assert row(text, "Seconds per epoch", "ddp") == ["–", "unfinished"]


def test_the_folder_of_an_evaluation_is_no_unfinished_run(tmp_path: Path) -> None:
    other = sweep(tmp_path, result()) / "evaluation"
    other.mkdir(parents=True)
    (other / "config.yaml").write_text("seed: 0\nchoices:\n  parallel: ddp\n")
    (other / "evaluation.json").write_text("{}")
    assert "unfinished" not in tables_of(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"accuracy": 1}', '{"status": "ok", "seed": "x"}'])
def test_a_result_that_cannot_be_read_is_listed_and_hides_no_other(
    tmp_path: Path, content: str
) -> None:
    broken = sweep(tmp_path, result()) / "broken"
    broken.mkdir()
    (broken / "result.json").write_text(content)
    text = tables_of(tmp_path)
    assert "(`broken`) unreadable" in text
    assert row(text, "Seconds per epoch", "none") == ["2.00 (×1.00)"]


def test_an_error_with_line_breaks_and_bars_breaks_no_markdown(tmp_path: Path) -> None:
    text = tables_of(sweep(tmp_path, result(), failure("dp", "fp32", error="a | b `c`\nand more")))
    assert "failed: `` a | b `c` and more ``\n" in text


def test_runs_csv_keeps_every_value_of_a_run(tmp_path: Path) -> None:
    given = result(accuracy=1 / 3, devices=["a, b", "c"], notes=['say "so"', "twice"], dtype=None)
    tables_of(sweep(tmp_path, given))
    [run] = read_csv(tmp_path / "report" / "runs.csv")
    assert run.folder == "runs/0_none_fp32"
    assert (run.accuracy, run.seed, run.grad_scaler, run.dtype) == (1 / 3, 0, False, None)
    assert (run.devices, run.notes) == (["a, b", "c"], ['say "so"', "twice"])
    assert (run.epoch_seconds, run.peak_memory_bytes) == ([2.0] * 10, [200 * 2**20])
    assert run.phase("backward") == 4.0


def test_host_names_and_absolute_paths_are_not_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "a folder of box7"
    private = (
        f"box7 could not read /home/annabel/data/x.bin, nor {folder}/runs, nor C:\\Users\\annabel"
    )
    bad = result("dp", status="failed", error=private, notes=["see file:///home/annabel/notes"])
    bad["environment"]["prefix"] = "/home/annabel/venv"
    report.write(
        sweep(folder, result(), bad, command="python train.py hydra.sweep.dir=/home/annabel/out")
    )
    for name in ("runs.csv", "environment.json", "table.md"):
        text = (folder / "report" / name).read_text()
        assert not [word for word in ("box7", "annabel", "a folder") if word in text], name
    assert ".../x.bin" in (folder / "report" / "runs.csv").read_text()


def test_the_environment_holds_what_the_runs_share_and_lists_what_differs(tmp_path: Path) -> None:
    other = result("ddp", seed=5, epochs=20, devices=["cpu", "cpu"])
    other["environment"]["torch"] = "2.16.0"
    tables_of(sweep(tmp_path, result(), other, wall_seconds=50.0, runs=2))
    environment = read_environment(tmp_path / "report" / "environment.json")
    assert environment["dataset"] == "digits"
    assert environment["epochs"] == {"values": [10, 20]}
    assert environment["devices"] == ["cpu", "cpu"]
    assert environment["environment"]["python"] == "3.12.1"
    assert environment["environment"]["torch"] == {"values": ["2.15.0", "2.16.0"]}
    assert environment["environment"]["time"] == {
        "first": "2026-01-02T03:04:00Z", "last": "2026-01-02T03:04:05Z"
    }  # fmt: skip
    assert environment["sweep"] == {"wall_seconds": 50.0, "runs": 2}
    assert "hostname" not in environment["environment"]


def test_the_head_names_the_conditions(tmp_path: Path) -> None:
    head = tables_of(sweep(tmp_path, result(), result(seed=1))).split("\n## ")[0]
    for condition in (
        "# made_up", "dataset digits", "model convnet", "batch size 64", "10 epochs",
        "2 CPU threads", "cpu (A CPU, 2 cores)", "torch 2.15.0", "commit 0123456789 clean",
        "2026-01-02", "2 runs, 2 ok", "2 seeds per cell",
    ):  # fmt: skip
        assert condition in head


def test_uncommitted_changes_in_one_run_are_named_in_the_head(tmp_path: Path) -> None:
    dirty = result(seed=1)
    dirty["environment"]["dirty"] = True
    assert "with uncommitted changes" in tables_of(sweep(tmp_path, result(), dirty))


def test_the_time_outside_training_and_evaluation_is_stated_per_run(tmp_path: Path) -> None:
    text = tables_of(sweep(tmp_path, result(), result(seed=1), wall_seconds=50.0, runs=2))
    assert (
        "Outside training and evaluation: 4.00 s a run "
        "(wall 50.0 s for 2 runs, of which 40.0 s training, 2.0 s evaluation)." in text
    )


def test_the_search_for_the_largest_batches_is_no_time_of_the_runs(tmp_path: Path) -> None:
    facts = {"wall_seconds": 62.0, "search_seconds": 12.0, "runs": 2}
    text = tables_of(sweep(tmp_path, result(), result(seed=1), **facts))
    assert "Outside training and evaluation: 4.00 s a run (wall 62.0 s" in text
    assert "2.0 s evaluation, 12.0 s the search for the largest batches)." in text


def of_alexnet(folder: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    """What the study of the published table prints beside it."""
    same = {"dataset": "cifar10", "model": "alexnet", "train_seconds": 120.0, "accuracy": 0.8}
    runs = [result(parallel, **{**same, "epochs": 20, **changes}) for parallel in ("none", "ddp")]
    report.write(sweep(folder, *runs))
    script = ROOT / "experiments" / "alexnet_cifar10" / "compare.py"
    assert runpy.run_path(str(script))["main"]([str(folder / "report")]) == 0
    return f"### Published\n{capsys.readouterr().out}"


def test_the_study_of_a_published_table_is_compared_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = of_alexnet(tmp_path, capsys)
    names = [
        f"{way}-{amp}" for way in ("none", "dp", "ddp") for amp in ("fp32", "autocast", "scaler")
    ]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("| ")][2:] == names
    ours = row(text, "Published", "none-fp32")
    assert ours == ["22", "2.00", "-20.0", "81.91", "80.00", "-1.91"]
    assert row(text, "Published", "none-scaler") == ["27", "–", "–", "not given", "–", "–"]
    assert row(text, "Published", "dp-scaler") == ["not given", "–", "–", "84.09", "–", "–"]


def test_accuracies_after_another_number_of_epochs_than_published_are_not_subtracted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = of_alexnet(tmp_path, capsys, epochs=2, train_seconds=12.0)
    ours = row(text, "Published", "none-fp32")
    assert ours == ["22", "2.00", "-20.0", "81.91", "80.00", "–"]


@pytest.mark.pictures
def test_the_figure_is_a_png_that_is_readable_at_1200_pixels(tmp_path: Path) -> None:
    report.write(sweep(tmp_path, result(), result("dp", "bf16"), failure("ddp", "fp32")))
    head = (tmp_path / "report" / "figure.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert width >= 1200
    assert height >= 800


def test_the_first_report_on_a_machine_says_nothing_of_fonts(tmp_path: Path) -> None:
    """Matplotlib logs that it makes a font cache, and Hydra shows what is logged as info."""
    folder = sweep(tmp_path / "study", result())
    (tmp_path / "empty").mkdir()
    code = (
        "import logging, pathlib\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "from ninefold.report import write\n"
        f"write(pathlib.Path({str(folder)!r}))\n"
    )
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "empty")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / "empty").glob("fontlist*")), "there was no cache to be made"


def test_every_recorded_table_follows_from_its_recorded_files(tmp_path: Path) -> None:
    """The recordings below experiments/, and one made here so that there always is one."""
    report.write(
        sweep(
            tmp_path, result(notes=["a note"]), result("dp", seed=1, accuracy=0.1 + 0.2),
            failure("ddp", "scaler"), wall_seconds=60.0, runs=3,
        )
    )  # fmt: skip
    recorded = [path.parent for path in sorted((ROOT / "experiments").glob("*/*/runs.csv"))]
    for recording in [tmp_path / "report", *recorded]:
        table = table_of(read_recording(recording))
        assert table == (recording / "table.md").read_text(encoding="utf-8"), recording


def test_a_recording_is_rebuilt_in_place(tmp_path: Path) -> None:
    report.write(sweep(tmp_path / "sweep", result(), result("dp")))
    recording = (tmp_path / "sweep" / "report").rename(tmp_path / "2026-01-02_a_machine")
    recorded = {path.name: path.read_bytes() for path in recording.iterdir()}
    for name in recorded.keys() - {"runs.csv", "curves.csv", "environment.json"}:
        (recording / name).unlink()
    report.write(recording)
    assert {path.name: path.read_bytes() for path in recording.iterdir()} == recorded


def test_reporting_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    report.write(sweep(tmp_path, result(), result("ddp", "scaler", seed=2)))
    once = {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()}
    report.write(tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()} == once


def test_a_damaged_recording_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    report.write(sweep(tmp_path, result()))
    runs = tmp_path / "report" / "runs.csv"
    runs.write_text(runs.read_text().replace("0.9,", "much,"))
    with pytest.raises(ConfigError, match=r"runs\.csv.*accuracy='much'"):
        report.write(tmp_path / "report")
    (tmp_path / "report" / "environment.json").unlink()
    runs.write_text("folder,status\na,ok\n")
    with pytest.raises(ConfigError, match=r"environment\.json"):
        report.write(tmp_path / "report")


def test_help_shows_a_share_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "3%" in shown
    assert "%%" not in shown


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["{}/none"], "folder={}/none: there is no such folder; "),
        (["{}"], "folder={}: holds no run; "),
        ([], "required"),
        (["--unknown"], "arguments="),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(tmp_path) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert wrong.format(tmp_path) in printed.err
    assert printed.err.count("\n") == 1
    assert printed.err.count("; ") >= 2


def test_the_command_prints_the_answer_and_imports_neither_torch_nor_hydra(tmp_path: Path) -> None:
    code = (
        "import atexit, runpy, sys\n"
        "late = {'torch', 'hydra', 'omegaconf'}\n"
        "atexit.register(lambda: print('loaded:', *(late & set(sys.modules))))\n"
        f"sys.argv = ['report', {str(sweep(tmp_path, result()))!r}]\n"
        "runpy.run_module('ninefold.report', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("answer: ")
    assert "\nSeconds per epoch\n" in done.stdout
    assert f"\nreport {report.place(tmp_path)}\nloaded:\n" in done.stdout


def test_runs_that_differ_in_the_folder_of_a_path_alone_are_not_averaged(tmp_path: Path) -> None:
    paths = ("init=/data/a/best.pt", "init=/data/b/best.pt")
    runs = [result(seed=seed, overrides=[path]) for seed in range(2) for path in paths]
    text = tables_of(sweep(tmp_path, *runs))
    assert "init=.../best.pt\n" in text
    assert "init=.../best.pt#2\n" in text
    assert "/data" not in text


def test_a_strategy_whose_name_has_a_hyphen_has_figures(tmp_path: Path) -> None:
    runs = [result(way, seed=seed) for way in ("none", "my-ddp") for seed in range(2)]
    assert row(tables_of(sweep(tmp_path, *runs)), "Seconds per epoch", "my-ddp")[0].startswith("2.")
    assert [each.cell for each in report.standings(tmp_path)] == ["none-fp32", "my-ddp-fp32"]
