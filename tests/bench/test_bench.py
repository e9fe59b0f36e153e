"""`ninefold bench` names the faster command, ends what it started, and leaves commands as they are.

The commands here take steps without torch, by a function of a module: they start in no time.
"""

import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from ninefold.bench import commands
from ninefold.bench.__main__ import parser
from ninefold.bench.command import Command
from ninefold.bench.turns import MARKS, Marks, Taken
from ninefold.errors import ConfigError
from tests.conftest import ROOT, Shell, wait_until

STEPS = "import sys, time\n\ndef step(seconds):\n    time.sleep(seconds)\n"
TRAIN = "import steps, sys\n\nwhile True:\n    steps.step(float(sys.argv[1]))\n"
FAST, SLOW = (f"{sys.executable} train.py {seconds}" for seconds in (0.003, 0.009))
IN_TORCH = """
import torch
from steps import step

net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    step(0.001)
"""
TRIED = f"{sys.executable} tried.py"
QUICK = ("-m", "ninefold", "bench", "--minutes=0.2", "--step=steps:step")


@pytest.fixture
def scripts(shell: Shell) -> Shell:
    (shell.folder / "steps.py").write_text(STEPS)
    (shell.folder / "train.py").write_text(TRAIN)
    return shell


def test_the_faster_command_is_named_with_an_interval_and_nothing_is_left(scripts):
    files = ("--json=found.json", "--markdown=found.md")
    done = scripts.run(*QUICK, "--minutes=0.5", *files, SLOW, FAST, code=0)
    assert re.match(r"B is [2-4]\.\d+ times as fast as A \(95 % interval ", done.stdout)
    end = r"\n\d+ rounds in \d\.\d min; next: use B\. Details: bench/\S+/details\.md\n$"
    assert re.search(end, done.stdout)
    said = r"2 commands start\nall train; first round until \d\d:\d\d\n"
    assert re.fullmatch(said, done.stderr)
    found = json.loads((scripts.folder / "found.json").read_text())
    (pair,) = found["pairs"]
    assert (pair["first"], pair["second"]) == ("A", "B")
    assert 1 < pair["low"] < pair["speedup"] < pair["high"]
    assert [command["command"] for command in found["commands"]] == [SLOW, FAST]
    assert (scripts.folder / "found.md").read_text().startswith("<!-- ninefold bench -->")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo so; exit 3", "it ended with code 3 before its first step; its output ends: so"),
        ("{ echo so; exit 3; } | cat", "it ended with code 3 before its first step"),
        ("echo CUDA out of memory; exit 1", "of memory; where all do not fit together, --apart"),
        (f"{sys.executable} -c pass", "without a step; torch was not imported; --whole"),
        (f"{sys.executable} -I -c pass", "no Python of it loaded the hook; -I, -E, -S"),
        (f"{sys.executable} -c 'import steps; [steps.step(0.02) for _ in range(6)]'", "it ends af"),
        (f"{FAST} & {FAST}", "2 of its processes take steps and no group joins them"),
    ],
)
def test_a_command_that_cannot_be_compared_is_one_line(scripts, command, words):
    done = scripts.run(*QUICK, command, FAST, code=2)
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"error: command={command}: ")
    assert done.stderr.count("error: ") == 1
    assert words in line


def test_a_step_that_its_module_does_not_have_ends_the_command_at_once(scripts):
    done = scripts.run("-m", "ninefold", "bench", "--step=steps:stop", FAST, FAST, code=2)
    assert "its output ends: ninefold bench --step: steps has no stop; " in done.stderr


METHODS = """
import time
class Trainer:
    @staticmethod
    def fixed(seconds):
        time.sleep(seconds)
    @classmethod
    def made(cls, seconds):
        cls.fixed(seconds)
"""


@pytest.mark.parametrize("name", ["fixed", "made"])
def test_a_step_may_be_a_static_method_or_one_of_a_class(scripts, name):
    (scripts.folder / "methods.py").write_text(METHODS)
    calls = f"import methods; [methods.Trainer().{name}(0.001) for _ in range(10**5)]"
    calls = f"import socket; socket.setdefaulttimeout(0.01); {calls}"  # it may wait longer for us
    command, step = f"{sys.executable} -c '{calls}'", f"--step=methods:Trainer.{name}"
    done = scripts.run("-m", "ninefold", "bench", "--minutes=0.1", step, command, command)
    assert "all train; first round until" in done.stderr


def test_a_command_that_leaves_its_environment_for_another_is_refused(scripts):
    (scripts.folder / "env" / "bin").mkdir(parents=True)
    (scripts.folder / "env" / "bin" / "python").symlink_to("/bin/true")
    done = scripts.run(*QUICK, "--env=env", f"cd . && {FAST}", f"cd . && {SLOW}", code=2)
    assert f"its Python is that of {sys.prefix}; python alone is that of --env" in done.stderr


SHARES = """
import torch

torch.multiprocessing.set_sharing_strategy("file_system")
net = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    for x in torch.utils.data.DataLoader(torch.randn(4096, 64), 16, num_workers=2):
        net(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_the_shared_memory_of_commands_that_were_killed_is_removed(scripts):
    (scripts.folder / "shares.py").write_text(SHARES)
    command, before = f"{sys.executable} shares.py", {*Path("/dev/shm").glob("torch_*")}
    bench = scripts.start("-m", "ninefold", "bench", "--minutes=0.3", command, command)
    wait_until(lambda: {*Path("/dev/shm").glob("torch_*")} - before, bench)
    done = scripts.finish(bench)
    assert done.returncode in (0, 9), done.stderr  # 9: there was no time to decide
    assert not {*Path("/dev/shm").glob("torch_*")} - before


@pytest.mark.slow
def test_one_command_at_a_time_takes_its_first_step_on_a_gpu(scripts):
    """To begin to use one is refused here, which is as good: what is waited for came before."""
    first = (
        "import steps, sys, time, torch\n"
        "try:\n    torch.cuda.init()\nexcept (AssertionError, RuntimeError):\n    pass\n"
        "began = time.time()\ntime.sleep(1)\n"
        "print(began, time.time(), file=open(f'{time.time()}.span', 'w'))\n"
    )
    (scripts.folder / "gpu.py").write_text(f"{first}{TRAIN}")
    done = scripts.run(*QUICK, *[f"{sys.executable} gpu.py 0.003"] * 3)
    assert done.returncode in (0, 9), done.stderr
    found = [file.read_text().split() for file in scripts.folder.glob("*.span")]
    spans = sorted((float(began), float(ended)) for began, ended in found)
    assert len(spans) >= 3
    assert all(before[1] < after[0] for before, after in pairwise(spans))


@pytest.mark.slow
def test_a_terminal_shows_who_has_started_and_what_is_known_so_far(scripts):
    terminal, end = pty.openpty()
    bench = scripts.start(*QUICK, FAST, SLOW, stderr=end)
    os.close(end)
    shown = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(terminal, 1 << 16):
            shown += part
    bench.communicate()
    os.close(terminal)
    for words in ("starts; ", "stands; ", "all train; first round until ", "so far: B 0."):
        assert words in shown.decode()


@pytest.mark.slow
def test_a_bench_ends_after_its_first_round_where_three_would_not_fit_with_their_starts(scripts):
    (scripts.folder / "late.py").write_text(f"import time\n\ntime.sleep(7)\n{TRAIN}")
    late = f"{sys.executable} late.py 0.003"
    done = scripts.run(*QUICK, late, late, code=9)
    first, *_, last = done.stderr.splitlines()
    assert first == "2 commands start"
    why = "error: minutes=0.2: there was time for 1 round; an answer takes 3 that count; --minutes "
    assert last.startswith(why)
    assert done.stdout.startswith("Not decided: there was time for 1 round, and an answer takes 3 ")


@pytest.mark.slow
@pytest.mark.parametrize("keep", [None, "kept"])
def test_two_benches_at_once_never_share_a_folder(scripts, keep):
    if keep:
        (scripts.folder / keep).mkdir()
    options = [f"--keep={keep}"] if keep else []
    benches = [scripts.start(*QUICK, *options, FAST, FAST) for _ in range(2)]
    said = [bench.communicate() for bench in benches]
    codes = sorted(bench.returncode for bench in benches)
    folders = [re.findall(r" Details: (.*)/details\.md$", out, re.MULTILINE) for out, _ in said]
    if keep:
        assert (codes, sorted(folders)) == ([0, 2], [[], [keep]])
        assert any(err.startswith("error: --keep=") for _, err in said)
    else:
        assert codes == [0, 0]
        assert folders[0] != folders[1]
    for folder in filter(None, folders):
        for log in (scripts.folder / folder[0]).glob("*/1.log"):
            assert log.read_text() == ""  # of one start, which prints nothing
        assert len([*(scripts.folder / folder[0]).glob("[!.]*")]) == 3


def test_a_bench_that_torchrun_starts_is_refused(refused_at_once, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert refused_at_once(FAST, FAST).startswith("error: launcher=torchrun: each of its processes")


def test_a_command_whose_working_folder_has_gone_is_one_line(tmp_path):
    command = Command("true", "A", folder=tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"its working folder, .*/gone, is gone; "):
        command.start(1, tmp_path / "log", {})


@pytest.mark.slow
def test_a_command_that_is_killed_lacked_memory_as_of_a_run(scripts):
    killed = f"{sys.executable} -c 'import os, torch; os.kill(os.getpid(), 9)'"
    done = scripts.run(*QUICK, FAST, killed, code=5)
    assert "before its first step" in done.stderr
    assert "--apart has one alive at a time" in done.stderr


@pytest.mark.slow
def test_a_command_whose_clock_stands_still_is_one_line(scripts):
    (scripts.folder / "still.py").write_text(
        f"import time\ntime.perf_counter = lambda: 1.0\n{TRAIN}"
    )
    done = scripts.run(*QUICK, f"{sys.executable} still.py 0.003", FAST, code=2)
    _, line = done.stderr.splitlines()
    assert "what it says of its steps cannot be used" in line


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--cwd=nowhere", FAST), "nowhere: there is no such folder; one that is there is needed"),
        (("--name=A", FAST), "--name=A: 1 for 2 commands; "),
        (("--minutes=1e308", FAST), "argument --minutes: 1e308 is no time below 1e+08"),
        (("--series=-", FAST), "argument --series: - is stdout, which cannot be read"),
        (("",), "command='': there is nothing in it; "),
        (("--each=x=1,2", "--each=x=3"), "--each=x, x: a name is given twice; "),
        (("--try", "--cwd=.", "--cwd=.."), "--cwd=..: it has no effect with --try, which"),
        (("--better=less",), "--better=less: it has no effect without --score; "),
        (("--try", "--max-slowdown=3%"), "--max-slowdown=0.03: it has no effect with --try; "),
        (("--setup=make",), "--setup=make: it has no effect without --revisions; "),
        (("--score=x", "--minutes=1"), "--minutes=1.0: it has no effect with --score; "),
        (("--score=x", "--whole"), "--whole=True: it has no effect with --score; "),
        (("--score=x", "-v"), "--verbose=True: it has no effect with --score; "),
        (("--score={out}/m.json",), "argument --score: {out}/m.json names no score: "),
        (("--score={out}",), "argument --score: {out} names no score: {out}/FILE.json"),
        (("--precisions=fp32", "--name=x"), "--name=x: it has no effect with --precisions; "),
        (("--score=a{99999999999}",), "argument --score: a{99999999999} is no pattern"),
        (("--env=.venv", FAST), "--env=.venv: the command names its Python, "),
        (("--env=.venv", ".venv/bin/python a"), "--env=.venv: the command names its Python, "),
        (("--env=.venv", "A=1 /opt/torchrun a"), "--env=.venv: the command names its Python, "),
        (("--env=e", "A=/a/python-b python a"), "--env=e: it has no bin/python"),
        (("--step=train", FAST, FAST), "argument --step: train names no fun"),
    ],
)
def test_what_is_refused_is_one_line_and_leaves_no_folder(scripts, refused_at_once, options, line):
    (scripts.folder / ".venv" / "bin").mkdir(parents=True)
    (scripts.folder / ".venv" / "bin" / "python").touch()
    before = sorted(scripts.folder.iterdir())
    assert line in refused_at_once(*options, FAST)
    assert sorted(scripts.folder.iterdir()) == before


def test_each_value_makes_a_command_that_it_names_and_none_is_empty() -> None:
    made = commands.with_values(parser().read(["--each=x=1,2", "--each=y=a", "echo {x} {y}"]))
    named = [(each.text, each.name) for each in made]
    assert named == [("echo 1 a", "x=1, y=a"), ("echo 2 a", "x=2, y=a")]
    with pytest.raises(ConfigError, match="there is nothing in it"):
        commands.with_values(parser().read(["--each=x= ,a", "{x}"]))


@pytest.mark.parametrize("option", ["--keep=file/in", "--keep=file"])
def test_what_cannot_be_written_is_one_line(scripts, refused_at_once, option):
    (scripts.folder / "file").touch()
    line = refused_at_once(option, FAST, FAST, code=5)
    assert line.startswith("error: file=")
    assert "see that they can be, or name others" in line


@pytest.mark.parametrize("option", ["--json", "--markdown"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("device", "it is a device, a regular file is expected; "),
        ("link", "it is a symbolic link, a regular file is expected; "),
        ("missing/file", "its folder is missing; "),
        ("/proc/new", "its folder cannot be written; "),
        ("", "a file needs a name"),
    ],
)
def test_a_file_that_is_none_is_refused_before_the_measurement_and_stays_what_it_is(
    scripts, refused_at_once, option, path, words
):
    """Of the device a node of our own: the null device would break the machine."""
    os.mknod(scripts.folder / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    (scripts.folder / "file").write_text("as it was")
    (scripts.folder / "link").symlink_to("file")
    before = {each.name: os.lstat(each).st_mode for each in scripts.folder.iterdir()}
    assert words in refused_at_once(f"{option}={path}", FAST, FAST)
    assert {each.name: os.lstat(each).st_mode for each in scripts.folder.iterdir()} == before
    assert (scripts.folder / "file").read_text() == "as it was"


@pytest.mark.slow
def test_data_on_stdout_is_alone_there_and_a_file_is_replaced_whole(scripts):
    (scripts.folder / "found.md").write_text("x" * 10000)
    done = scripts.run(*QUICK, "--json=-", "--markdown=found.md", FAST, FAST, code=0)
    assert json.loads(done.stdout)["version"] == 3
    assert "/details.md" in done.stderr
    assert (scripts.folder / "found.md").read_text().startswith("<!-- ninefold bench -->")
    both = scripts.run(*QUICK, "--json=-", "--markdown=-", FAST, FAST, code=2)
    assert both.stderr.startswith("error: --markdown=-: --json is it, too; ")


@pytest.mark.slow
def test_each_command_has_a_folder_whatever_it_is_called(scripts):
    names = ["a b", "a-b", "a b", "x" * 300, f"{'x' * 300}/", "\x1b]0;\n", "details.md"]
    options = [f"--name={name}" for name in names]
    done = scripts.run(*QUICK, "--keep=\x1b]0;kept", *options, *[FAST] * len(names))
    assert done.returncode in (0, 9)
    assert len(list((scripts.folder / "\x1b]0;kept").iterdir())) == len(names) + 1
    assert "\x1b" not in done.stdout
    assert "]0;kept/details.md" in done.stdout


@pytest.mark.slow
def test_a_script_that_clears_its_environment_is_compared(scripts):
    clears = "import os\n\nos.environ.clear()\n"
    (scripts.folder / "clears.py").write_text(f"{clears}{TRAIN}")
    done = scripts.run(*QUICK, f"{sys.executable} clears.py 0.009", FAST)
    assert "all train; " in done.stderr
    assert done.returncode in (0, 9)


@pytest.mark.slow
def test_the_peak_of_memory_is_a_column_and_a_gate(scripts):
    holds = "import sys\nheld = b'x' * (int(sys.argv[1]) << 20)\nsys.argv[1] = '0.003'\n"
    (scripts.folder / "holds.py").write_text(f"{holds}{TRAIN}")
    commands = [f"{sys.executable} holds.py {mib}" for mib in (0, 512)]
    done = scripts.run(*QUICK, "--max-memory=3%", "--json=found.json", *commands, code=8)
    told = "error: max-memory=3%: B takes .* times the memory of A, .* to .*; at most"
    assert re.search(told, done.stderr)
    assert done.stdout.startswith("Gate fails: B takes ")
    assert "  memory, GiB  " in done.stdout
    one, other = (
        command["memory"]
        for command in json.loads((scripts.folder / "found.json").read_text())["commands"]
    )
    assert max(other) - min(one) == pytest.approx(512 << 20, rel=0.05)


@pytest.mark.slow
def test_memory_that_is_given_back_before_the_first_steps_is_no_peak_in_any_round(scripts):
    loads = "import sys\nheld = b'x' * (int(sys.argv[1]) << 20)\ndel held\nsys.argv[1] = '0.003'\n"
    (scripts.folder / "loads.py").write_text(f"{loads}{TRAIN}")
    commands = [f"{sys.executable} loads.py {mib}" for mib in (0, 512)]
    done = scripts.run(*QUICK, "--max-memory=20%", "--json=found.json", *commands, code=0)
    assert done.stdout.startswith("Gate passes: B takes ")


@pytest.mark.slow
def test_a_gate_does_not_pass_where_a_command_fails_in_a_later_round(scripts):
    files = ("--json=found.json", "--markdown=found.md")
    fails = f"test $(ls left | wc -l) -gt 0 && rm left/$(ls left | head -1) && {FAST}"
    (scripts.folder / "left").mkdir()
    for name in "ab":
        (scripts.folder / "left" / name).touch()
    gate = ("--minutes=5", "--same=0.0001", "--max-slowdown=0.0001%")
    done = scripts.run(*QUICK, *gate, *files, FAST, fails, code=2)
    assert done.stdout.startswith("Not decided: it was stopped after 2 rounds")
    found = json.loads((scripts.folder / "found.json").read_text())
    assert (found["exit"], found["gate"]["verdict"]) == (2, "undecided")
    assert not (scripts.folder / "found.md").exists()


@pytest.mark.slow
def test_a_script_without_torch_cannot_be_tried(scripts):
    done = scripts.run(*QUICK, "--try", FAST, code=2)
    assert "it takes its steps without torch; changes to a use of torch are tried" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 2.0, 4.0])
def test_a_killed_bench_leaves_no_process_and_no_folder(scripts, temporary, seconds):
    bench = scripts.start(*QUICK, FAST, SLOW, env={"TMPDIR": str(temporary)})
    wait_until(lambda: [*temporary.glob("ninefold-*")], bench)
    time.sleep(seconds)
    bench.send_signal(signal.SIGKILL)
    bench.communicate()
    wait_until(lambda: not scripts.processes() and not [*temporary.glob("ninefold-*")], seconds=30)


@pytest.mark.slow
@pytest.mark.parametrize("commands", [(FAST, FAST), ("--try", TRIED)], ids=["two", "try"])
def test_ctrl_c_tells_what_complete_rounds_have_shown(scripts, commands):
    (scripts.folder / "tried.py").write_text(IN_TORCH)
    options = ("--minutes=5", "--same=0.0001", "--keep=k", "--json=found.json")
    bench = scripts.start(*QUICK, *options, *commands)
    wait_until(lambda: [*scripts.folder.glob("k/*/2.log")], bench)  # of the second round
    bench.send_signal(signal.SIGINT)
    shown = scripts.finish(bench, code=130).stdout
    assert "1 round in " in shown
    assert "next: " not in shown
    assert (scripts.folder / "k" / "details.md").exists()
    found = json.loads((scripts.folder / "found.json").read_text())
    assert (found["exit"], {turn[0] for turn in found["turns"]}) == (130, {0})


def test_a_python_that_imports_no_torch_is_as_it_was(scripts):
    seen = (
        "import json, sys; print(json.dumps([sys.path, sorted(sys.modules), "
        "getattr(sys.modules.get('sitecustomize'), '__file__', None)]))"
    )
    (scripts.folder / "own").mkdir()
    (scripts.folder / "own" / "sitecustomize.py").touch()
    inject = ROOT / "ninefold" / "bench" / "inject"

    def found(*folders: str) -> object:
        path = ":".join([*folders, "own"])
        variables = {"PYTHONPATH": path, "NINEFOLD_BENCH": str(scripts.folder / "socket")}
        done = subprocess.run(
            [sys.executable, "-c", seen],
            env=variables,
            cwd=scripts.folder,
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        return json.loads(done.stdout)

    assert found(str(inject)) == found()


def test_a_step_in_which_any_rank_does_something_else_counts_in_none():
    taken = Taken()
    seconds = [1.0, 9.0, 1.0, 1.0, 1.0]
    other = {"seconds": [2.0, 9.0, 2.0, 2.0, 2.0], "marks": {}}
    taken.add([{"seconds": seconds, "marks": {"1": MARKS[0]}}, other], Marks({*MARKS}))
    assert (taken.seconds, taken.steps, taken.marked) == (2.0, 4, {MARKS[0]: [9.0]})


def test_what_is_in_most_steps_is_part_of_a_step():
    marking = {*MARKS}
    marks, kinds = Marks(marking), MARKS[:2]
    for number in range(9):  # a turn of one step each, as that is all that is asked for
        taken = Taken()
        taken.add([{"seconds": [1.0], "marks": {"0": kinds[number % 2]}}], marks)
    assert taken.steps == 1
    assert marking == {*MARKS} - {*kinds}
