"""Timing rounds: cells that are alive at once, train in turns and wait without using the CPU."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from statistics import fmean

import pytest

from ninefold.machine import cores
from ninefold.tournament.neighbors import NeighborLoad
from tests.conftest import ROOT, Shell, launched, result, wait_until

DEFAULTS = {
    "dataset.limit": "128", "batch_size": "32", "epochs": "1", "threads": "1",
    "launch.cpu_processes": "2", "hydra.sweep.dir": "study", "study.ask": "[time]",
    "study.time_budget": "0.1", "study.turns": "2", "study.turn": "0.02",
}  # fmt: skip


def study(*given: str) -> list[str]:
    """Overrides of a short study of the time question, with those given."""
    keys = {text.partition("=")[0] for text in given}
    own = [f"{key}={value}" for key, value in DEFAULTS.items() if key not in keys]
    return ["-m", *own, *given]


SLOW = """
import os, signal, time
from pathlib import Path
import torch
from ninefold.model.convnet import ConvNet

class Slow(ConvNet):
    def forward(self, inputs):
        time.sleep(0.05)
        return super().forward(inputs)

class Late(ConvNet):
    steps = 0
    def forward(self, inputs):
        self.steps += self.training
        if self.steps > 8 and not Path(__file__).with_name("mended").exists():
            raise RuntimeError("it stopped working")
        return super().forward(inputs)

class Hung(ConvNet):
    steps = 0
    def forward(self, inputs):
        self.steps += self.training
        if self.steps == 40:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().forward(inputs)

class Unwritten(ConvNet):
    def forward(self, inputs):
        for file in Path("/proc/self/fd").iterdir():
            if file.is_symlink() and file.resolve().name == "run.log":
                file.resolve().with_name("result.json").mkdir(exist_ok=True)
        return super().forward(inputs)
"""
IMPATIENT = """
from ninefold.launch import turns
from ninefold.main import main
turns.OTHERS_SECONDS = 1
main("train")
"""


@pytest.fixture
def timed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    (shell.folder / "own.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(shell.folder))
    return shell


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which a study of two cells has been made, and what its command said."""
    words = study("parallel=none,ddp", "study.pairs=all", "study.time_budget=0.3")
    with launched(tmp_path_factory.mktemp("whole")) as shell:
        return shell.folder, shell.train(*words, code=0).stdout


def turns(folder: Path) -> dict[str, list[dict[str, object]]]:
    """The results of timing runs by the name of their cell, in the order of the rounds."""
    found: dict[str, list[dict[str, object]]] = {}
    for path in sorted((folder / "study" / "timing").glob("*/*/result.json")):
        found.setdefault(path.parent.name, []).append(result(path.parent))
    return found


def test_each_cell_is_timed_in_new_processes_each_round_every_second_one_backwards(whole):
    folder, said = whole
    lines = [line.partition("  |  ")[0] for line in said.splitlines()]
    cells, *rounds = lines[:4]
    assert cells == "2 configurations: none-fp32, ddp-fp32"
    assert rounds == [f"round {n}  2 configurations" for n in (1, 2, 3)]  # when they ended
    found = turns(folder)
    assert found.keys() == {"none-fp32", "ddp-fp32"}
    for results in found.values():
        assert len(results) >= 3
        for each in results:
            assert each["turns"] == 2
            assert each["steps"] % 2 == 0  # of turns that are equally long, without a warm-up
            assert each["score"] is None
            steps, seconds = each["turn_seconds"], each["train_seconds"]
            assert len(steps) == 2  # type: ignore[arg-type]
            assert seconds == pytest.approx(each["steps"] * fmean(steps))  # type: ignore
    assert [each["processes"] for each in found["ddp-fp32"]] == [2] * len(found["ddp-fp32"])
    sweep = json.loads((folder / "study" / "sweep.json").read_text())
    assert sweep["rounds"] == []
    first, second, *_ = (entry["runs"] for entry in sweep["timing"])
    assert sorted(first) == ["timing/0/ddp-fp32", "timing/0/none-fp32"]
    assert second == [name.replace("/0/", "/1/") for name in reversed(first)]
    assert sweep["timing_seed"]


def test_after_a_round_the_time_that_is_left_is_at_least_that_of_the_next(whole):
    """Under load more than the budget, in which the three rounds of an answer are made."""
    first = whole[1].splitlines()[1].partition("  |  ")[2]
    assert re.fullmatch(r"about [1-9]\d* s left", first)


def test_where_three_rounds_do_not_fit_one_is_made_and_a_line_says_what_they_take(timed):
    slow = "model.net._target_=ninefold.model.convnet.ConvNet,own.Slow"
    done = timed.train(*study(slow, "study.time_budget=0.001"), code=0)
    line = r"^study.time_budget=0.001: an answer takes 3 rounds; study.time_budget=0.5 makes them$"
    assert len(re.findall(line, done.stdout, re.MULTILINE)) == 1
    assert {len(results) for results in turns(timed.folder).values()} == {1}


def test_a_cell_that_sleeps_in_its_step_is_slower_by_that(timed):
    timed.train(*study("model.net._target_=ninefold.model.convnet.ConvNet,own.Slow"), code=0)
    plain, slow = (
        [each["turn_seconds"] for name, results in turns(timed.folder).items() for each in results
         if ("own.Slow" in name) == wanted] for wanted in (False, True)
    )  # fmt: skip
    least = min(min(seconds) for seconds in slow) - min(min(seconds) for seconds in plain)
    assert 0.045 < least < 0.09


@pytest.mark.slow
def test_a_control_that_cannot_be_is_told(timed):
    done = timed.train(*study("study.control=true", "study.ask=[time]", "parallel=ddp,dp"))
    assert "\nno A/A control: it takes a first configuration with parallel=none" in done.stdout


def test_the_control_of_a_study_is_timed_beside_what_it_repeats_and_not_trained(timed):
    given = ["study.control=true", "study.ask=[time,score]", "max_steps=2", "parallel=none,ddp"]
    done = timed.train(*study(*given, "threads=auto"), code=0)
    assert "\nand control-fp32, a copy of none-fp32, for the A/A test\n" in done.stdout
    assert "\nA/A test " in done.stdout
    found = turns(timed.folder)
    assert set(found) == {"none-fp32", "ddp-fp32", "control-fp32"}
    assert {each["no_op"] for each in found["control-fp32"]} == {True}
    threads = {each["threads"] for results in found.values() for each in results}
    assert threads <= {cores(), max(cores(), 2)}  # all of them: none tries what one does
    trained = [path.parent.name for path in timed.folder.glob("study/*/result.json")]
    assert trained
    assert not any("control" in name for name in trained)


@pytest.mark.slow
def test_a_cell_that_fails_keeps_no_other_from_its_times_and_has_its_own_when_it_is_mended(timed):
    networks = "model.net._target_=ninefold.model.convnet.ConvNet,own.Late"
    given = study(networks, "parallel=none,ddp")
    done = timed.train(*given)
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2, done.stderr
    sweep = json.loads((timed.folder / "study" / "sweep.json").read_text())
    assert [len(entry["runs"]) for entry in sweep["timing"]] == [4, 2, 2]
    ended = [timed.folder / "study" / name for name in sweep["timing"][0]["runs"]]
    assert sum(result(folder)["status"] == "failed" for folder in ended) == 2
    (timed.folder / "mended").touch()
    timed.train("study.resume=study", "study.time_budget=0.2", "trust=true", code=0)
    found = turns(timed.folder)
    assert {each["status"] for each in chain.from_iterable(found.values())} == {"ok"}
    assert sum("Late" in name for name in found) == 2
    superseded = [each.name for each in (timed.folder / "study" / "superseded").iterdir()]
    assert ["Late" in name for name in superseded] == [True, True]


@pytest.mark.slow
def test_a_cell_that_hangs_or_cannot_write_its_times_does_not_keep_the_others_from_theirs(timed):
    networks = "model.net._target_=ninefold.model.convnet.ConvNet,own.Hung,own.Unwritten"
    done = timed.run(
        *("-c", IMPATIENT, *study(networks, "study.turns=20", "study.time_budget=0.5")),
        forked=True,
        env={"PYTHONPATH": f"{timed.folder}:{ROOT}"},
    )
    assert done.returncode != 0
    hung, unwritten = sorted(
        (text for text in done.stderr.splitlines() if text.startswith("error: ")),
        key=lambda text: "did not answer" not in text,
    )
    assert re.match(r"error: study.ask=time: none-fp32.* did not answer in \d s; ", hung)
    assert re.match(r"error: .*result\.json.*: Is a directory; ", unwritten)
    sweep = json.loads((timed.folder / "study" / "sweep.json").read_text())
    assert [len(entry["runs"]) for entry in sweep["timing"]] == [3, 1, 1]


@pytest.mark.slow
def test_a_schedule_of_so_many_steps_begins_again_in_turns_beyond_them(shell):
    one_cycle = (
        "~scheduler.patience", "~scheduler.factor", "+scheduler.max_lr=0.01", "scheduler.per=step",
        "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR", "+scheduler.total_steps=16",
    )  # fmt: skip
    shell.train(*study("amp=fp32,bf16", "study.turns=12", "epochs=4", *one_cycle), code=0)
    found = turns(shell.folder)
    assert len(found) == 2
    for results in found.values():
        assert {each["status"] for each in results} == {"ok"}
        assert min(each["steps"] for each in results) > 16  # type: ignore[type-var]


@pytest.mark.slow
def test_cells_that_do_not_fit_into_memory_together_are_timed_in_groups(shell):
    code = (
        "from ninefold.study import timing; timing.RESERVE = 1e9; from ninefold.main import main; "
    )
    code += "main('train')"
    done = shell.run("-c", code, *study("amp=fp32,autocast,bf16"), forked=True,
                     env={"PYTHONPATH": str(ROOT)}, code=0)  # fmt: skip
    assert {len(results) for results in turns(shell.folder).values()} <= {3, 4}
    assert "timed in 2 groups" in done.stdout


FULL = """
from ninefold.errors import Failure
from ninefold.launch import turns
from ninefold.main import main

start, take, alive = turns.TurnTaker.__init__, turns.TurnTaker.turn, []

def started(self, spec, processes, name="", *more):
    if name in LACKS and alive:
        raise Failure("model", "net", "it cannot find an engine", "one is needed", "get one")
    start(self, spec, processes, name, *more)
    self.free, self.taken = {"gpu": FREE}, {"gpu": 10}
    alive.append(self)

def taken(self, turn):
    if self.name in FAILS and len(alive) > 1:
        raise Failure("model", "net", "it failed", "nothing is known", "see the log")
    return take(self, turn)

def close(self):
    self._workers.close()
    alive.remove(self) if self in alive else None

turns.TurnTaker.__init__, turns.TurnTaker.turn, turns.TurnTaker.close = started, taken, close
main("train")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("free", "lacks", "fails", "alive"),
    [
        (12, (), (), [3, 3]),  # not even a second one is begun
        (13, (), (), [1, 1]),
        (13, ("none-bf16",), (), [2, 2]),
        (13, (), ("none-bf16",), [1, 2]),
    ],
    ids=["full", "room", "lacks", "fails"],
)
def test_on_a_gpu_what_fails_beside_others_is_tried_once_more_alone(
    shell, free, lacks, fails, alive
):
    code = FULL.replace("FREE", str(free)).replace("LACKS", str(lacks)).replace("FAILS", str(fails))
    shell.run("-c", code, *study("amp=fp32,autocast,bf16"), forked=True,
              env={"PYTHONPATH": str(ROOT)}, code=0)  # fmt: skip
    assert all(turns(shell.folder).values())
    made = [path.parent.name for path in shell.folder.glob("study/timing/[012]/*/result.json")]
    assert made.count("none-fp32") == 3
    assert made.count("none-bf16") == 3 - len(fails)  # its first round was for nothing
    said = (shell.folder / "study" / "report" / "report.md").read_text()  # the screen has 3 notes
    groups = [int(found) for found in re.findall(r"timed in (\d) groups", said)]
    # One that is alone is a group, and so are those drawn before it and behind it.
    assert all(max(alive) <= found <= 3 for found in groups)
    assert bool(groups) is (max(alive) > 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_processes_and_the_study_can_be_resumed(shell, number):
    process = shell.start(str(ROOT / "train.py"), *study("parallel=none,ddp", "study.turns=10000"))
    wait_until(lambda: len(list(shell.folder.glob("study/timing/0/*/run*.log"))) == 3, process)
    time.sleep(0.5)
    if number == signal.SIGKILL:
        shell.kill(process)
    else:
        process.send_signal(number)
        done = shell.finish(process, code=130 if number == signal.SIGINT else 75)
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert not shell.survivors()
    turns_of = f"study.turns={DEFAULTS['study.turns']}"
    shell.train("study.resume=study", turns_of, code=0)
    assert [len(results) for results in turns(shell.folder).values()] == [3, 3]


def test_what_other_programs_use_of_the_cpus_is_told_from_ones_own():
    spin = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    # Its parent ends at once, so that it is nobody's.
    orphan = ["sh", "-c", f"{sys.executable} -c '{spin}' >/dev/null 2>&1 & echo $!"]
    other = int(subprocess.run(orphan, capture_output=True, check=True).stdout)
    try:
        ours, all_others, unknown = map(NeighborLoad, ([other], [], [2**30]))
        time.sleep(1.5)
        own, every = ours.share([other]), all_others.share([])
    finally:
        os.kill(other, signal.SIGKILL)
    assert own is not None
    assert every is not None
    # A share of one CPU: it may have little of it beside other tests.
    assert every > own + 0.15 / len(os.sched_getaffinity(0))
    assert unknown.share([]) is None
