"""Whatever users' code does to its process, and their shell to the command, the run ends.

It ends by itself, says in one line what happened and leaves nothing behind. The model, the data
set and the logger are those of tests/faults/user/.
"""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ninefold.waits import poll_until
from tests.conftest import ROOT, Shell, end, metrics, result, wait_until
from tests.faults.runs import STRATEGY, last_step

USER = Path(__file__).parent / "user"
TIMEOUT, GRACE = 6, 5  # seconds of launch.timeout and launch.grace here
SOON = 15  # seconds in which a run ends that waits for nobody
ENDLESS = "epochs=100000"
SMALL = ["clock.warmup=0", "clock.sample=0", "device=cpu"]
OPTIONS = [
    *("--config-dir", str(USER / "conf"), "model=u", "epochs=2", "logger=quiet", *SMALL),
    *(f"launch.timeout={TIMEOUT}", f"launch.grace={GRACE}", "hydra.run.dir=run"),
]
LAST = 44  # the step that this run ends with
PROCESSES = {**STRATEGY, "inline": [*STRATEGY["none"], "launch.inline=true"]}
TRAIN, EVALUATE = str(ROOT / "train.py"), str(ROOT / "evaluate.py")
LINE = r"error: [^\n]+; [^\n]+; [^\n]+\n"

Started = Any  # a Popen[str], or what tests.forked has in its place


def left_in(temporary: Path) -> set[str]:
    """What commands have there, but for a cache of torch's, which is one for all."""
    return {path.name for path in temporary.iterdir() if "torchinductor" not in path.name}


def some(cases: list[tuple[Any, ...]], *quick: str) -> list[Any]:
    """Parameters of which only the cases named `quick` are for make test."""
    found = []
    for case in cases:
        name = "-".join(map(str, case))
        marks = [] if name in quick else [pytest.mark.slow]
        found.append(pytest.param(*case, marks=marks, id=name))
    missing = set(quick) - {param.id for param in found}
    assert not missing, missing
    return found


@dataclass
class Run:
    """A command of a user's, in the shell's folder, with her model."""

    shell: Shell
    process: Started

    @property
    def folder(self) -> Path:
        return self.shell.folder / "run"

    @property
    def said(self) -> Any:
        """What the user's code said when it did what it was asked for."""
        return json.loads((self.shell.folder / "said").read_text())

    @property
    def seconds(self) -> float:
        """Since then."""
        return time.time() - (self.shell.folder / "said").stat().st_mtime

    def stderr(self) -> str:
        return (self.shell.folder / "err").read_text()

    def wait_for(self, path: str, seconds: float = 60) -> None:
        """Until there is a file in the shell's folder."""
        wait_until((self.shell.folder / path).exists, self.process, self.stderr, seconds)

    def end(self, seconds: float = 30) -> int:
        """Its exit code; the test fails if it does not end within `seconds`."""
        try:
            return int(self.process.wait(seconds))
        except subprocess.TimeoutExpired:
            end(self.shell.processes())
            pytest.fail(f"it did not end in {seconds} s: {self.stderr()}")


def start(
    shell: Shell,
    kind: str,
    mode: str,
    *changes: str,
    rank: int = 0,
    fresh: bool = False,
    **env: str,
) -> Run:
    """Start a run of the model, `kind` of PROCESSES, in which a step of `rank` does `mode`.

    Its outputs go to files: a process that it leaves would keep a pipe open.
    """
    given = {
        "PYTHONPATH": f"{USER}:{ROOT}",
        "U_MODE": mode,
        "U_RANK": str(rank),
        "U_SAID": str(shell.folder / "said"),
        **env,
    }
    overrides = {
        word.partition("=")[0]: word for word in [*OPTIONS[2:], *PROCESSES[kind], *changes]
    }
    words = [TRAIN, *OPTIONS[:2], *overrides.values()]
    with (shell.folder / "out").open("w") as out, (shell.folder / "err").open("w") as err:
        return Run(shell, shell.start(*words, env=given, stdout=out, stderr=err, fresh=fresh))


# A process that leaves in a step, or while the model is built


# What it does, in which kind of run, on which rank, in which step: 0 is while the model is built.
LEAVING = [
    ("_exit0", "none", 0, 10), ("_exit0", "ddp2", 1, 10), ("sysexit3", "ddp2", 1, 10),
    ("exit75", "none", 0, 10), ("sysexit0", "none", 0, 0), ("base", "ddp2", 0, 0),
    ("base", "inline", 0, 10), ("sysexit0", "inline", 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "kind", "rank", "step"),
    some(LEAVING, "_exit0-none-0-10", "_exit0-ddp2-1-10", "exit75-none-0-10", "sysexit0-none-0-0"),
)
def test_a_process_that_leaves_ends_the_run_and_is_named_by_its_rank(shell, mode, kind, rank, step):
    run = start(shell, kind, mode, rank=rank, U_STEP=str(step))
    code = run.end()
    assert run.seconds < SOON
    assert code in ((1,) if step else (1, 2)), run.stderr()
    assert re.fullmatch(LINE, run.stderr()), run.stderr()
    if step:
        assert run.stderr().startswith(f"error: rank={rank}: "), run.stderr()
    assert not re.search("signal|SIGTERM|result.json", run.stderr()), run.stderr()
    assert result(run.folder)["status"] == "failed"


# Processes and threads that a step leaves running, and a logger that does not close

# What is in the line where the run waits for it, and whether it is left: it is the user's.
STAYING: dict[str, tuple[str | None, bool]] = {
    "fork": (None, True), "mpdaemon": (None, False),  # multiprocessing ends those that are daemons
    "mpprocess": ("reader", True), "thread": ("feeder", False), "logger": ("", False),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "kind"),
    [("fork", "none"), ("fork", "inline"), ("mpdaemon", "ddp2"), ("mpprocess", "none"),
     ("mpprocess", "inline"), ("thread", "none"), ("thread", "ddp2"), ("logger", "ddp2")],
)  # fmt: skip
def test_a_run_ends_what_is_left_after_its_timeout_and_says_what_it_waits_for(shell, mode, kind):
    timeout, (name, stays) = 3, STAYING[mode]
    logger = ["logger=[jsonl,stuck]"] if mode == "logger" else []
    run = start(shell, kind, "" if logger else mode, *logger, f"launch.timeout={timeout}")
    run.wait_for("said" if logger else "run/result.json")
    ended = time.monotonic()
    code, child = run.end(), run.said
    took = time.monotonic() - ended
    left = [child] if stays else []
    poll_until(lambda: set(shell.processes()) <= set(left), timeout=5)
    end(found := shell.processes())
    assert set(found) <= set(left), "a process of ours is left"
    assert logger or result(run.folder)["status"] == "ok"
    if name is None:
        assert took < 10
        assert (code, run.stderr()) == (0, "")
        return
    assert took < timeout + 12
    assert code == 7, run.stderr()
    assert re.fullmatch(LINE, run.stderr()), run.stderr()
    # Inline it is the command that waits for threads and processes.
    who = "process=" if kind == "inline" and not logger else "rank=0: "
    assert run.stderr().startswith(f"error: {who}"), run.stderr()
    assert name in run.stderr()


def test_a_rank_that_dies_of_a_real_time_signal_is_one_line_with_its_number(shell):
    run = start(shell, "none", "realtime")
    assert run.end() == 1
    number = signal.SIGRTMIN + 5
    assert run.stderr().startswith(f"error: rank=0: its process died of signal {number}; ")
    assert re.fullmatch(LINE, run.stderr()), run.stderr()


def test_what_users_code_forks_twice_ends_with_the_run(shell):
    run = start(shell, "none", "forktwice", "logger=jsonl", "log_every=1")
    assert run.end() == 0, run.stderr()
    assert (run.said, run.stderr()) == (1, "")  # the exit code of the child
    assert len(metrics(run.folder, "loss")) == LAST


def test_an_exception_that_cannot_be_shown_is_one_line_and_leaves_no_file(shell, temporary):
    run = start(shell, "none", "unsaid", TMPDIR=str(temporary))
    assert run.end() == 1
    assert re.fullmatch(LINE, run.stderr()), run.stderr()
    said = "error: rank=0: Unsaid: <str() of a Unsaid failed>; "
    assert run.stderr().startswith(f"{said}{USER / 'user_model.py'}:")
    assert left_in(temporary) == set()


# Where a Pool is made and terminated: the environment, and the options.
POOLS = {
    "step": ({"U_MODE": "pool"}, []),
    "model": ({"U_MODE": "pool", "U_STEP": "0"}, []),
    "dataset": ({"U_DATA": "pool"}, ["dataset=scanned", "loader.workers=0"]),
}


@pytest.mark.parametrize(
    ("where", "kind"),
    some([("step", "ddp2"), ("model", "inline"), ("dataset", "none")], "model-inline"),
)
def test_a_pool_of_processes_can_be_made_and_ended_wherever_users_do(shell, where, kind):
    env, changes = POOLS[where]
    run = start(shell, kind, env.get("U_MODE", ""), *changes, **env)
    assert run.end() == 0, run.stderr()
    assert run.said == "scanned"
    assert run.stderr() == ""


# Signals


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "inline"])
def test_a_signal_ends_a_sweep_though_the_run_that_it_came_to_has_failed(shell, kind):
    run = start(shell, kind, "late", "seed=0,1", "-m")
    run.wait_for("said")
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 75, run.stderr()
    assert "too late" in run.stderr()
    assert len([*shell.folder.rglob("result.json")]) == 1


# Signals that are repeated


@dataclass(frozen=True)
class Phase:
    """When signals begin: as soon as there is the file `ready` in the shell's folder."""

    ready: str
    mode: str = ""
    changes: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


SIGNALED = {
    "start": Phase("", "", (ENDLESS,)),  # as soon as signals are handled
    "data": Phase("said", "", (ENDLESS, "dataset=scanned"), (("U_DATA", "sleep"),)),
    "training": Phase("said", "slow", (ENDLESS,)),
    "saving": Phase("said", "slowsave", (ENDLESS, "checkpoint.every=5")),
    "last step": Phase("said", "pause", (), (("U_STEP", str(LAST)),)),
    "ended": Phase("run/result.json"),
}


def handles_signals(process: int) -> bool:
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
    return bool(int(found[1], 16) >> (signal.SIGTERM - 1) & 1)


REPEATED = [
    (number, phase, "ddp2" if number % 4 == 3 else "none")
    for number, phase in enumerate([*SIGNALED] * 3)
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "phase", "kind"), REPEATED)
def test_repeated_signals_change_nothing_about_the_end(shell, temporary, number, phase, kind):
    chance, when = random.Random(number), SIGNALED[phase]
    signals = [signal.SIGTERM] * chance.choice([2, 3, 5, 10, 40])
    if number % 5 == 4:
        signals[chance.randrange(len(signals))] = signal.SIGINT
    pauses = [chance.uniform(0.1, 1) for _ in signals]
    if chance.random() < 0.5:
        pauses = [0.1] * len(signals)
    env = {**dict(when.env), "TMPDIR": str(temporary)}
    run = start(shell, kind, when.mode, *when.changes, fresh=not when.ready, **env)
    if when.ready:
        run.wait_for(when.ready)
    else:
        wait_until(lambda: handles_signals(run.process.pid), run.process, look=0.002)
    sent = []
    for number, pause in zip(signals, pauses, strict=True):
        if run.process.poll() is not None:
            break
        run.process.send_signal(number)
        sent.append(number)
        time.sleep(pause)
    code = run.end()
    said = run.stderr()
    ended = result(run.folder)["status"] if (run.folder / "result.json").exists() else ""
    expected = {130 if number == signal.SIGINT else 75 for number in sent}
    if ended == "ok":
        assert phase in ("last step", "ended")
        expected = {0}
    elif phase == "ended":
        pytest.fail(f"it was {ended}")
    assert code in expected, said
    assert re.fullmatch(r"error: signal=[^\n]+\n" if code else "", said), said
    assert not shell.survivors()
    assert left_in(temporary) == set()
    if saved := re.search(r"it is saved at step (\d+)", said):
        assert last_step(run.folder) == int(saved[1])
    elif "checkpoint is in" in said:
        assert last_step(run.folder) > 0


WAITS = {
    "data": Phase("said", "", ("dataset=scanned",), (("U_DATA", "sleep"),)),
    "model": Phase("said", "hang", (), (("U_STEP", "0"),)),
    "step": Phase("said", "hang"),
    "gone": Phase("said", "_exit0", ("launch.timeout=60",)),
    "logger": Phase("said", "", ("logger=[jsonl,stuck]", "launch.timeout=60")),
    "thread": Phase("run/result.json", "thread", ("launch.timeout=60",)),
    "process": Phase("run/result.json", "mpprocess", ("launch.timeout=60",)),
    "manager": Phase("run/result.json", "manager", ("launch.timeout=60",)),
}
WAITING = [
    ("data", "none"), ("data", "inline"), ("model", "ddp2"), ("step", "ddp2"), ("step", "inline"),
    ("gone", "ddp2"), ("logger", "none"), ("thread", "inline"), ("process", "none"),
    ("manager", "inline"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "kind"), some(WAITING, "data-none", "step-ddp2"))
def test_two_ctrl_c_end_a_command_at_once_whatever_it_waits_for(shell, temporary, what, kind):
    when = WAITS[what]
    env = {**dict(when.env), "TMPDIR": str(temporary)}
    run = start(shell, kind, when.mode, *when.changes, "launch.grace=60", **env)
    run.wait_for(when.ready)
    time.sleep(0.5)
    began = time.monotonic()
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    code = run.end()
    took = time.monotonic() - began
    end(shell.survivors(1))  # a child of the user's
    assert took < 10
    done = (run.folder / "result.json").exists() and result(run.folder)["status"] == "ok"
    assert code in ((0, 7, 130) if done else (1, 130) if what == "gone" else (130,)), run.stderr()
    assert re.fullmatch(r"(error: [^\n]+\n)?", run.stderr()), run.stderr()
    assert left_in(temporary) == set()


# The working directory


def command(name: str, trained: Path) -> list[str]:
    """A small command: none, ddp2, sweep, evaluate or job."""
    options = ["max_steps=3", *SMALL]
    return {
        "none": [TRAIN, *options, "hydra.run.dir=run"],
        "ddp2": [TRAIN, *options, *STRATEGY["ddp2"], "hydra.run.dir=run"],
        "inline": [TRAIN, *options, *PROCESSES["inline"], "hydra.run.dir=run"],
        "sweep": [TRAIN, "-m", "seed=0,1", *options],
        "evaluate": [EVALUATE, f"ckpt={trained}", "hydra.run.dir=run"],
        "job": [TRAIN, "--cfg", "job"],
    }[name]


# Modules of Python's library.
STANDARD = ("random", "json", "difflib", "socket", "statistics", "argparse")
WORDS = ("report {run}", "fits memory=1GiB dataset.limit=64")
TYPED = [f"{how} evaluate ckpt={{run}}" for how in ("{script}", "-m ninefold")]
TYPED += [f"{how} {words}" for how in ("{script}", "-m ninefold") for words in WORDS]
TYPED += ["-m ninefold.report {run}"]


@pytest.mark.slow
@pytest.mark.parametrize("typed", TYPED)
def test_no_file_of_the_working_directory_stands_for_a_module_of_python(shell, trained, typed):
    canary, script = shell.folder / "canary", shell.folder / "bin" / "ninefold"
    script.parent.mkdir()
    text = "if __name__ == '__main__':\n    from ninefold.__main__ import main\n    main()\n"
    script.write_text(text)  # as pip installs it
    for module in STANDARD:
        text = f"open({str(canary)!r}, 'a').write({module!r} + ' ')\nraise SystemExit(9)\n"
        (shell.folder / f"{module}.py").write_text(text)
    done = shell.run(*typed.format(script=script, run=trained).split(" "), fresh=True)
    assert not canary.exists(), canary.read_text()
    assert done.returncode == 0, done.stderr


# Where the output goes


CLOSED = [("none", ">&- 2>&-"), ("ddp2", "<&- >&- 2>&-"), ("inline", "2>&-"), ("sweep", ">&-"),
          ("evaluate", "<&-"), ("job", ">&-")]  # fmt: skip


@pytest.mark.parametrize(("name", "which"), some(CLOSED, "job->&-"))
def test_a_command_whose_output_is_closed_does_what_it_does_otherwise(shell, trained, name, which):
    words = shlex.join([sys.executable, *command(name, trained)])
    process = shell.spawn(["bash", "-c", f"exec {words} {which}"])
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert stderr == "" or name == "inline", stderr  # see the test of what torchvision prints
    assert "Traceback" not in stderr
    if not which.count(">&-") - which.count("2>&-"):
        assert stdout
    if name in ("none", "ddp2", "inline"):
        assert result(shell.folder / "run")["status"] == "ok"
    if name == "evaluate":
        assert (shell.folder / "run" / "evaluation.json").exists()


READERS = [("none", "head -1"), ("sweep", "head -1"), ("evaluate", "head -0")]


@pytest.mark.parametrize(("name", "reader"), some(READERS, "none-head -1", "evaluate-head -0"))
def test_a_reader_that_goes_away_ends_it_with_141_and_no_message(shell, trained, name, reader):
    words = command(name, trained)
    if name == "none" and reader == "head -1":  # the reader goes away while the training goes on
        words = [*words, "max_steps=3000", "log_every=1"]
        words.remove("max_steps=3")
    pipe, writer = os.pipe()
    reading = subprocess.Popen(reader.split(), stdin=pipe, stdout=subprocess.DEVNULL)
    process = shell.start(*words, stdout=writer)
    os.close(pipe), os.close(writer)
    _, stderr = process.communicate(timeout=120)
    reading.wait()
    assert stderr == ""
    assert process.returncode == 141


@pytest.mark.parametrize("name", ["job", "conf"])
def test_a_full_disk_under_its_output_ends_a_command_with_one_line(shell, trained, name):
    words = ["-m", "ninefold", "conf"] if name == "conf" else command(name, trained)
    process = shell.spawn(["bash", "-c", f"exec {shlex.join([sys.executable, *words])} >/dev/full"])
    _, stderr = process.communicate(timeout=120)
    assert re.fullmatch(LINE, stderr), stderr
    assert stderr.startswith("error: file=stdout: No space left on device; ")
    assert process.returncode == 5


# The last line


def test_stderr_is_the_line_that_matters_though_the_launcher_imports_torchvision(shell):
    net = "model.net={_target_: torchvision.models.resnet18, nonsense: 3}"
    done = shell.run(TRAIN, "dataset=cifar10", net, fresh=True)
    assert "nanobind" not in done.stderr + done.stdout
    assert done.returncode == 2
    assert re.fullmatch(r"(?:[^\n]+\n)*" + LINE, done.stderr), done.stderr
