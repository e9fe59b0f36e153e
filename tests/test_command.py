"""The command `ninefold`, and `python -m ninefold`: what it is told, and which command that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ninefold import __main__ as command
from tests.conftest import ROOT, Shell, only_run, result

CELLS = ["parallel=none,dp,ddp", "amp=fp32,autocast,scaler", "study.ask=[time]"]


def test_it_imports_nothing_that_the_package_alone_does_not_need() -> None:
    asked = (
        "import sys; before = {*sys.modules}; import ninefold; print(*({*sys.modules} - before))"
    )
    found = subprocess.check_output([sys.executable, "-c", asked], text=True, cwd=ROOT)
    names = {
        name for name in found.split() if name.partition(".")[0] not in sys.stdlib_module_names
    }
    assert names == {"ninefold"}


def test_compare_is_a_sweep_of_the_nine_cells_unless_the_arguments_say_otherwise() -> None:
    assert command.compared([]) == ["-m", *CELLS]
    assert command.compared(["model=mlp"]) == ["-m", *CELLS, "model=mlp"]
    assert command.compared(["-m", "amp=fp32"]) == [CELLS[0], CELLS[2], "-m", "amp=fp32"]
    assert command.compared(["study.ask=[accuracy]"])[1:3] == CELLS[:2]


@pytest.mark.parametrize(
    "given", [["--cfg", "job"], ["--help"], ["--info"], ["-c", "job"], ["experiments=nine_way"]]
)
def test_compare_adds_nothing_to_what_only_shows_or_names_a_study(given: list[str]) -> None:
    assert command.compared(given) == given


def test_a_module_of_a_needed_name_in_the_working_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["bin", "/site"])
    assert command.look_in_working_folder() is None
    assert sys.path == [str(tmp_path), "/site"]
    (tmp_path / "numpy").mkdir()
    assert command.look_in_working_folder() is None  # no module
    (tmp_path / "numpy" / "__init__.py").touch()
    said = command.look_in_working_folder()
    assert said is not None
    assert said.startswith(f"error: module={tmp_path}/numpy/__init__.py: Python finds it before ")


def test_another_ninefold_in_the_working_folder_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ninefold").mkdir()
    (tmp_path / "ninefold" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["bin", "/site"])
    assert command.look_in_working_folder() is None
    assert sys.path == ["/site"]


@pytest.mark.slow  # as the wheel's tests do
def test_a_run_by_the_module_finds_what_is_in_the_working_folder_and_prints_its_command(
    shell: Shell,
) -> None:
    (shell.folder / "mynet.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, channels, classes, width):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    words = ("model.net._target_=mynet.Net", "parallel=ddp", "launch.cpu_processes=2")
    done = shell.run("-m", "ninefold", "train", *words, "max_steps=2", "dataset.limit=128")
    assert (done.returncode, done.stderr) == (0, "")
    run = only_run(shell.folder)
    assert result(run)["processes"] == 2
    done = shell.run("-m", "ninefold", "train", "--help")
    assert done.stdout.startswith("python -m ninefold train ")


def test_options_and_keys_are_printed(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    from ninefold.config import shown

    assert shown.conf([]) == shown.conf(["amp"]) == shown.conf(["model/mlp"]) == 0
    out = capsys.readouterr().out
    assert "parallel: ddp, dp, fsdp, none, tensor\n" in out
    assert f"$schema={ROOT}/conf/schema/model.json\n" in out  # wherever the text is written to
    assert "experiments: " in out
    assert shown.keys(["study.t*"]) == 0
    out = capsys.readouterr().out
    assert "study.time_budget=3" in out
    assert "study.slice" not in out
    assert shown.keys(["no such"]) == shown.conf(["mode"]) == shown.conf(["model/mlq"]) == 2
    assert capsys.readouterr().err.count("\n") == 3
    assert os.listdir(shell.folder) == []
