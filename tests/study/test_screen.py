"""A study shows a line for each run, and a terminal what is under way; run.log has the rest."""

import re
import signal
import time

import pytest

from ninefold.result import Result
from ninefold.study import screen
from tests.terminal import in_terminal, shown

STUDY = ["-m", "parallel=none,ddp", "threads=1", "launch.inline=true",
         "launch.cpu_processes=1", "hydra.sweep.dir=study"]  # fmt: skip
SHORT = ["amp=fp32,autocast", "max_steps=2"]
OWN = ("CPU thread", "test loss", "images/s", "folder ")  # of what a run prints itself
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize(
    ("seconds", "said"), [(1234.5, "1234 s/epoch"), (1.5, "1.50 s/epoch"), (0.01234, "0.0123")]
)
def test_the_seconds_of_an_epoch_have_three_digits_and_no_exponent(seconds, said):
    ended = screen.how_ended(Result("ok", train_seconds=seconds, epochs=1))
    assert ended.startswith(said)


@pytest.mark.slow
def test_a_terminal_shows_the_run_that_is_made_below_a_line_for_each_that_ended(shell):
    process, master = in_terminal(shell, *STUDY, *SHORT, columns=40)
    text = shown(master)
    assert process.wait(timeout=60) == 0, text
    before, _, answer = CONTROL.sub("", text).partition("answer: ")
    for number in range(1, 5):
        assert f"\rrun {number} of 4" in before
        assert re.search(rf"\rrun {number} of 4 .* s/epoch.*\r\n", before)
    changing = [part for part in before.split("\r") if "run" in part and "s/epoch" not in part]
    assert max(map(len, changing)) < 40
    assert not any(words in before for words in OWN)
    assert answer.count("Report: ") == 1


@pytest.mark.slow
def test_a_terminal_shows_what_a_step_takes_as_each_configuration_stands(shell):
    asked = ["study.ask=[time]", "study.rounds=2", "study.time_budget=0.6", "launch.inline=false"]
    process, master = in_terminal(shell, *STUDY, *asked, columns=80)
    text = CONTROL.sub("", shown(master))
    assert process.wait(timeout=60) == 0, text
    first, _, _ = text.partition("turn 1")
    # In an order that is drawn.
    assert re.search(r"starting (none|ddp)-fp32  (ddp|none)-fp32 \d[\d.,]* ms a step", first)


def test_elsewhere_there_is_a_line_for_each_run_and_then_the_answer(shell):
    short = ["amp=fp32", "max_steps=2", "seed=0,1", "study.ask=[score]"]
    done = shell.train(*STUDY, *short)
    assert (done.returncode, done.stderr) == (0, "")
    before, _, _ = done.stdout.partition("answer: ")
    cells, *lines = before.splitlines()
    assert re.fullmatch(r"2 configurations: none-fp32, \S+", cells)
    assert len(lines) == 4
    ending = r"accuracy \d+\.\d\d %  [\d.]+ s/epoch(  \|  about \d+ s left)?"
    for number, line in enumerate(lines, 1):
        found = rf"run {number} of 4  round [12]  \S+ seed [01]  {ending}"
        assert re.fullmatch(found, line), line
    assert not any(words in before for words in OWN)
    log = next((shell.folder / "study").glob("0_*/run.log")).read_text()
    assert log.count("CPU thread") == log.count("test loss") == 1


def test_the_error_of_a_run_that_fails_is_shown_at_once(shell):
    bad = ["optimizer.lr=1e30", "log_every=1", "amp=fp32"]
    process, master = in_terminal(shell, *STUDY, *bad, columns=100)
    text = CONTROL.sub("", shown(master))
    assert process.wait(timeout=60) == 6
    assert text.index("error: ") < text.index("run 2 of 2")
    assert "diverged" in text
    assert len([line for line in re.split(r"[\r\n]+", text) if line.startswith("error: ")]) == 2


def test_ctrl_c_ends_a_study_and_says_how_to_resume_it(shell):
    process, master = in_terminal(shell, *STUDY, "amp=fp32,autocast", "epochs=500", columns=80)
    text = shown(master, until="run 1 of 4")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    text += shown(master)
    assert process.wait(timeout=60) == 130, text
    last = [line for line in text.replace("\r", "").split("\n") if line][-1]
    assert last == "resume the study with: python train.py study.resume=study"
    (said,) = re.findall("error: signal=SIGINT: .*", CONTROL.sub("", text).replace("\r", ""))
    assert said.endswith("; resume the study")  # and not that run, or start again


def test_elsewhere_what_begins_is_a_line_only_after_a_minute_without_one(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    lines = screen.Screen()
    lines.begin(["none-fp32", "ddp-fp32"])
    for number in range(1, 21):  # every nine seconds
        now[0] += 9
        lines.running(f"round 1  turn {number}", 200.0)
    lines.ended("round 1", left=20.0)
    now[0] += 59
    lines.running("round 2")
    assert capsys.readouterr().out.splitlines() == [
        "2 configurations: none-fp32, ddp-fp32",
        "round 1  turn 7  |  about 3 min left",
        "round 1  turn 14  |  about 3 min left",
        "round 1  |  about 20 s left",
    ]


def test_a_sweep_with_one_cell_shows_what_its_runs_print(shell):
    done = shell.train("-m", "seed=0,1", "max_steps=2", "launch.inline=true", code=0)
    assert done.stdout.count("test loss") == done.stdout.count("CPU thread") == 2
    assert "run 2 of 2  round 2  none-fp32 seed 1  |  about " in done.stdout
