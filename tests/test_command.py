"""The command `ninefold`, and `python -m ninefold`: what it is told, and which command that is."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from ninefold import __main__ as command
from ninefold import machine
from ninefold.config import options
from tests.conftest import ROOT

CELLS = ["parallel=none,ddp", "amp=fp32", "study.ask=[time]", "study.control=true"]


@pytest.fixture(autouse=True)
def _no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared by default depends on the processor: this one has no bfloat16."""
    monkeypatch.setenv(machine.MOST, "AVX512_CORE")


def test_it_imports_nothing_of_others_and_no_module_of_its_own():
    asked = (
        "import sys; before = {*sys.modules}; import ninefold; print(*({*sys.modules} - before))"
    )
    found = subprocess.check_output([sys.executable, "-c", asked], text=True, cwd=ROOT)
    names = {
        name for name in found.split() if name.partition(".")[0] not in sys.stdlib_module_names
    }
    assert names == {"ninefold"}


def test_compare_is_a_sweep_of_what_differs_here_unless_the_arguments_say_otherwise():
    assert command.compared([]) == ["-m", *CELLS]
    assert command.compared(["model=mlp"]) == ["-m", *CELLS, "model=mlp"]
    assert command.compared(["-m", "amp=fp32"]) == [CELLS[0], *CELLS[2:], "-m", "amp=fp32"]
    assert command.compared(["study.ask=[score]"])[1:3] == CELLS[:2]


def test_compare_says_that_it_leaves_bf16_out_unless_precisions_are_named(capsys):
    command.compared(["model=mlp"])
    assert capsys.readouterr().out.startswith("bf16 is not compared, as this CPU has no instructio")
    command.compared(["amp=fp32,bf16"])
    assert capsys.readouterr().out == ""


def test_help_of_compare_is_short_and_each_of_its_examples_can_be_run(shell, capsys, monkeypatch):
    from ninefold.config import composition, list_commands, resolvers
    from ninefold.study import checks, sweep

    monkeypatch.setenv("NINEFOLD_TYPED", "python -m ninefold")
    assert list_commands.compare(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100
    after = lines[lines.index("Examples:") + 1 :]
    examples = after[: after.index("")]
    assert len(examples) == 3
    resolvers.register()
    monkeypatch.chdir(shell.folder)
    data = shell.folder / "data" / "cifar-10-batches-bin"
    data.mkdir(parents=True)
    (data / "test_batch.bin").touch()  # nothing is downloaded where some of it is
    timed = []
    for example in examples:
        python, *words = shlex.split(example)
        assert [python, *words[:3]] == ["python", "-m", "ninefold", "compare"]
        given = command.compared(words[3:])
        found = composition.compose("train", composition.flags_of(given))
        assert found.sweeps
        assert checks.of_a_sweep(found) == []
        timed.append(len(sweep.planned(found).plan.timed))
    assert timed == [3, 3, 5]
    for line in lines[lines.index("What to compare and for how long:") + 1 :]:
        if key := re.match(r"  ([a-z_.]+)=", line):
            assert key[1].startswith("hydra.") or options.find(key[1]), line


@pytest.mark.parametrize(
    "given", [["--cfg", "job"], ["--help"], ["--info"], ["-c", "job"], ["experiments=nine_way"]]
)
def test_compare_adds_nothing_to_what_only_shows_or_names_a_study(given):
    assert command.compared(given) == given


@pytest.mark.parametrize("name", [*command.COMMANDS, *command.extensions.COMMANDS])
def test_help_of_each_command_that_is_listed_says_more_than_its_line(name, shell, capsys):
    assert command.none_of_them("--help") == 0
    listed = capsys.readouterr().out.splitlines()
    assert "help(ninefold.compare)" in listed[-1]
    assert [line for line in listed if f"{name} " in line or f"{name}.py " in line]
    for asked in ("--help", "-h"):
        done = shell.run("-m", "ninefold", name, asked, code=0)
        assert len(done.stdout.splitlines()) > 5
        assert name in done.stdout.splitlines()[0]
        assert done.stderr == ""


def test_options_and_keys_are_printed(shell, capsys):
    from ninefold.config.list_commands import conf, keys

    assert conf([]) == conf(["amp"]) == conf(["model/mlp"]) == 0
    out = capsys.readouterr().out
    assert "parallel: control, ddp, dp, fsdp, none\n" in out
    assert (ROOT / "conf" / "model" / "mlp.yaml").read_text() in out
    assert "experiments: " in out
    assert conf(["experiments"]) == 0
    assert "@package" not in capsys.readouterr().out
    assert keys(["study.t*"]) == 0
    out = capsys.readouterr().out
    assert "study.time_budget=3" in out
    assert "study.turn=0.1" in out
    assert "study.seed" not in out
    assert keys(["time_budget"]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).startswith(
        "study.time_budget=3 a number above 0 and below 1e+08. Minutes of the speed comparison"
    )
    assert keys(["time_bugdet"]) == conf(["mode"]) == conf(["model/mlq"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 3
    assert said.startswith("error: keys=time_bugdet: no key has such a name; ")
    assert os.listdir(shell.folder) == []
