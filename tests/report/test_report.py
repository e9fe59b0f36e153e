"""The report: what its figures, files, texts and errors promise."""

import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ninefold import report
from ninefold.errors import ConfigError
from ninefold.report.data.privacy import Scrubber
from ninefold.report.render.templates import figure, page, report_text
from tests.report.made import (
    ROOT,
    built,
    each_text,
    failure,
    one_seed,
    recorded,
    recording,
    result,
    row,
    sweep,
    table_of,
    tables_of,
)

SVG = "{http://www.w3.org/2000/svg}"


def test_a_report_is_files_in_the_sweeps_folder(tmp_path):
    report.write(sweep(tmp_path, result()))
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert names == {
        "runs.csv", "curves.csv", "environment.json", "figure.svg", "report.json", "report.md",
        "report.html",
    }  # fmt: skip


def of(way: str = "none", amp: str = "fp32", **values: Sequence[float]) -> list[dict]:
    """A run for each seed with these values."""
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return [result(way, amp, **{"seed": seed, **row}) for seed, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("runs", "key", "expected"),
    [
        (of("ddp", train_seconds=(20, 40)), "seconds", {"mean": 3.0, "sd": 2**0.5}),
        # A rate is that of the mean seconds, beside which it stands.
        (of("ddp", examples_per_second=(2000, 6000)), "throughput", {"mean": 3000}),
        # Repeats of a seed count as one.
        (of("ddp", seed=(0, 0, 1), train_seconds=(10, 30, 40)), "seconds", {"n": 2, "mean": 3.0}),
        # A run that stopped within an epoch counts the fraction.
        (of("ddp", epochs=(1 / 3,), train_seconds=(1.0,)), "seconds", {"mean": 3.0}),
        # A score that is a share is in percent.
        (of("ddp", score=(0.885,)), "score", {"mean": 88.5}),
        # What is not ok stays out.
        ([*of("ddp", train_seconds=(20,)), result("ddp", seed=1, status="diverged")], "seconds",
         {"mean": 2.0, "n": 1, "tried": 2}),
    ],
)  # fmt: skip
def test_a_figure_is_of_the_runs_that_count(tmp_path, runs, key, expected):
    [group] = built(recorded(sweep(tmp_path, *runs))).groups
    found = group.cells[-1].measures[key]
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dataset", "cifar10"), ("model", "alexnet"), ("batch_size", 128), ("epochs", 20)],
)
def test_runs_of_different_conditions_get_tables_of_their_own(tmp_path, name, value):
    other = result(train_seconds=60.0, **{name: value})
    assert len(built(recorded(sweep(tmp_path, result(), other))).groups) == 2


def test_a_strategy_with_a_key_of_its_own_stays_in_the_table_where_all_its_runs_failed(tmp_path):
    failed = result("ddp", status="diverged", overrides=["parallel.bucket_cap_mb=1"])
    [group] = built(recorded(sweep(tmp_path, result(), failed))).groups
    assert [str(cell.cell) for cell in group.cells] == ["none-fp32", "ddp-fp32"]


def test_a_sweep_in_which_everything_failed_still_gets_its_report(tmp_path):
    report.write(sweep(tmp_path, failure("none", "fp32"), failure("ddp", "fp32")))
    text = (tmp_path / "report" / "report.md").read_text()
    assert "ddp, fp32 (failed)" in text
    assert not (tmp_path / "report" / "figure.svg").exists()


def test_host_names_and_absolute_paths_are_not_recorded(tmp_path):
    folder = tmp_path / "a folder of box7"
    private = (
        f"box7 could not read /home/annabel/data/x.bin, nor {folder}/runs, nor C:\\Users\\annabel"
    )
    bad = result("dp", status="failed", error=private, notes=["see file:///home/annabel/notes"])
    bad["environment"]["prefix"] = "/home/annabel/venv"
    report.write(
        sweep(folder, result(), bad, command="python train.py hydra.sweep.dir=/home/annabel/out")
    )
    for name in ("runs.csv", "environment.json", "report.md"):
        text = (folder / "report" / name).read_text()
        assert not [word for word in ("box7", "annabel", "a folder") if word in text], name
    assert ".../x.bin" in (folder / "report" / "runs.csv").read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("root=/home/ann/ninefold/data", "root=.../data"),
        ("root=/home/ann/ninefold-data/x", "root=.../ninefold-data/x"),
        ("root=/home/ann/ninefold.old/x", "root=.../ninefold.old/x"),
        ("root=/home/annabel/secret/x.bin", "root=.../x.bin"),
        ("in /home/ann/my ninefold, and /home/ann.", "in ..., and ...."),
    ],
)
def test_a_folder_is_left_out_where_its_name_ends(text, shown):
    folders = map(Path, ("/home/ann", "/home/ann/ninefold", "/home/ann/my ninefold"))
    assert Scrubber([], folders).text(text) == shown


@pytest.mark.parametrize("host", ["none", "digits", "cpu", "ok"])
def test_a_host_that_is_called_as_a_part_of_a_run_takes_nothing_from_it(tmp_path, host):
    runs = [result(way, environment={"hostname": host}) for way in ("none", "ddp")]
    usual = [result(way, environment={"hostname": "box7"}) for way in ("none", "ddp")]
    said, expected = (sweep(tmp_path / name, *of) for name, of in (("a", runs), ("b", usual)))
    assert recorded(said).runs == recorded(expected).runs


def test_no_text_of_a_run_is_markup_in_report_md(tmp_path):
    evil = "\\<img src=x onerror=alert(1)> &lt;b> **bold** `code` [x](y) | z"
    report.write(sweep(tmp_path, result(), failure("ddp", "fp32", error=evil)))
    text = (tmp_path / "report" / "report.md").read_text()
    assert r"\\\<img src=x onerror=alert(1)> \&lt;b> \*\*bold\*\* \`code\` \[x](y) \| z" in text


@pytest.mark.parametrize(("epochs", "difference"), [(20, "-1.91"), (2, "–")])
def test_a_study_is_compared_with_the_table_after_its_epochs(tmp_path, capsys, epochs, difference):
    same = {"dataset": "cifar10", "model": "alexnet", "score": 0.8, "epochs": epochs}
    runs = [result(way, train_seconds=6.0 * epochs, **same) for way in ("none", "ddp")]
    report.write(sweep(tmp_path, *runs))
    script = ROOT / "experiments" / "alexnet_cifar10" / "compare.py"
    assert runpy.run_path(str(script))["main"]([str(tmp_path / "report")]) == 0
    text = f"### Published\n{capsys.readouterr().out}"
    ours = row(text, "Published", "none-fp32")
    assert ours == ["22", "2.00", "-20.0", "81.91", "80.00", difference]
    assert row(text, "Published", "dp-scaler") == ["not given", "–", "–", "84.09", "–", "–"]


def test_the_console_is_a_sentence_a_table_and_a_command_in_few_lines(tmp_path):
    ways, amps = ("none", "dp", "ddp", "fsdp"), ("fp32", "autocast", "tf32", "bf16", "mine")
    shown = report.write(sweep(tmp_path, *(result(way, amp) for way in ways for amp in amps))).text
    lines = shown.splitlines()
    below = lines[lines.index("", 2) :]
    assert len(below) <= 6
    assert lines[0].startswith("answer: ")
    assert sum("Report: " in line for line in lines) == 1
    assert "configuration  s/epoch" not in shown  # the matrix has these figures
    few = report.write(sweep(tmp_path / "few", *(result("none", amp) for amp in amps))).text
    assert len([line for line in few.splitlines() if re.match(r"\w+, \w+ ", line)]) == 5


def test_long_times_have_no_exponent_anywhere(tmp_path):
    runs = [
        result(way, seed=seed, train_seconds=seconds + seed)
        for way, seconds in (("none", 56789.0), ("ddp", 34567.0)) for seed in range(2)
    ]  # fmt: skip
    report.write(sweep(tmp_path, *runs))
    for name in ("report.md", "report.html"):
        assert not re.search(r"[0-9]e\+0", (tmp_path / "report" / name).read_text()), name


def test_the_figure_is_one_picture_of_all_that_does_work_of_its_own():
    usual = recording("nine_way")
    drawn = figure(each_text(usual, lambda text: text.replace("none, ", "n & <b>, ")))
    assert drawn is not None
    texts = ["".join(each.itertext()) for each in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
    names = [text for text in texts if text.startswith(("n & <b>, ", "ddp, ", "dp, "))]
    assert [name.replace("n & <b>", "none") for name in names] == [
        "none, fp32", "none, autocast (bf16)", "ddp, fp32", "ddp, autocast (bf16)",
        "none, scaler (bf16)", "ddp, scaler (bf16)",
    ]  # fmt: skip
    assert texts.count("scaler not needed") == 2
    assert "href" not in drawn


def test_a_damaged_recording_is_an_error_that_names_the_file(tmp_path):
    report.write(sweep(tmp_path, result()))
    runs = tmp_path / "report" / "runs.csv"
    runs.write_text(runs.read_text().replace("0.9,", "much,"))
    with pytest.raises(ConfigError, match=r"runs\.csv.*score='much'"):
        report.write(tmp_path / "report")
    (tmp_path / "report" / "environment.json").unlink()
    runs.write_text("folder,status\na,ok\n")
    with pytest.raises(ConfigError, match=r"environment\.json"):
        report.write(tmp_path / "report")


def test_the_command_answers_without_torch_and_hydra(tmp_path):
    code = (
        "import atexit, runpy, sys\n"
        "late = {'torch', 'hydra', 'omegaconf'}\n"
        "atexit.register(lambda: print('loaded:', *(late & set(sys.modules))))\n"
        f"sys.argv = ['report', {str(sweep(tmp_path, result()))!r}]\n"
        "runpy.run_module('ninefold.report', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("answer: No other configuration was measured ")
    assert "\nconfiguration  s/epoch" in done.stdout
    page, command = done.stdout.splitlines()[-3:-1]
    assert page.startswith(f"Report: {report.place(tmp_path)}")
    assert command.startswith("train with it: ")
    assert done.stdout.endswith("\nloaded:\n")


def test_runs_that_differ_in_the_folder_of_a_path_alone_are_not_averaged(tmp_path):
    paths = ("init=/data/a/best.pt", "init=/data/b/best.pt")
    runs = [result(seed=seed, overrides=[path]) for seed in range(2) for path in paths]
    text = tables_of(sweep(tmp_path, *runs))
    assert re.findall(r"\| \**(init=\S+?)\** ", text) == ["init=.../best.pt", "init=.../best.pt#2"]
    assert "/data" not in text


def test_a_strategy_whose_name_has_a_hyphen_has_figures(tmp_path):
    runs = [result(way, seed=seed) for way in ("none", "my-ddp") for seed in range(2)]
    assert row(tables_of(sweep(tmp_path, *runs)), "Results", "my-ddp, fp32")[1].startswith("2.")


def test_a_report_of_one_seed_claims_no_score_and_tells_fewer_rounds_and_slow_precisions(tmp_path):
    text = table_of(recorded(one_seed(tmp_path)))
    assert "Each accuracy is of one seed: whether a configuration keeps it is open" in text
    assert "kept |" not in text
    assert "times are of 3 to 8 rounds in turns" in text
    reason = "This CPU has no instructions for bfloat16"
    assert reason in text.partition("## Keep in mind")[2].partition("## ")[0]
    assert text.count(reason) == 1


@pytest.mark.parametrize("study", ["nine_way", "larger_batch"])
def test_the_page_and_report_md_have_the_same_sections_in_the_same_order(study):
    found = recording(study)
    headings = re.findall(r"<h[123][^>]*>(.*?)</h", page(found))
    assert headings == re.findall(r"^#+ (.*)$", report_text(found), re.MULTILINE)
    assert len(headings) > 9


def test_every_pair_is_compared_by_time_and_a_score_with_the_baselines_alone():
    _, _, below = report_text(recording("nine_way")).partition("## Every pair")
    pairs, _, _ = below.partition("\n## ")
    assert pairs.count(" | 12 ") == 15
    assert "accuracy" not in pairs
    assert "## Every pair" not in report_text(recording("camvid_cpu", "*_scores"))
