"""An installed ninefold does what a clone does: its commands, its runs, and what they print."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import zipapp
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from ninefold.config import fingerprint
from tests.conftest import ROOT, Shell, only_run, result, wait_until

pytestmark = pytest.mark.slow

SHORT = ("max_steps=4", "dataset.limit=256", "launch.cpu_processes=2")
NET = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""
MODEL = """
net: {_target_: mynet.Net}
input_channels: 1
input_size: null
"""


class Installed(NamedTuple):
    """An environment with the wheel. bin: of its commands. package: its files."""

    bin: Path
    package: Path


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `tree` and `sdist`, each with the wheel that was built from there."""
    folder = tmp_path_factory.mktemp("built")
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
    for name in filter(None, tracked.stdout.decode().split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "copy" / name)
    build = [sys.executable, "-m", "build", "--no-isolation", str(folder / "copy")]
    for kinds, place in ((("--wheel",), "tree"), ((), "sdist")):  # the latter by way of an sdist
        subprocess.run([*build, *kinds, "--outdir", folder / place], check=True)
    return folder


@pytest.fixture(scope="session")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A new environment with the wheel, which finds its requirements where these tests do."""
    (wheel,) = (built / "tree").glob("*.whl")
    folder = tmp_path_factory.mktemp("a new") / "environment"
    return new_environment(folder, "--no-deps", "--no-index", "--ignore-installed", wheel)


def new_environment(folder: Path, *what: object) -> Installed:
    """An environment with nothing but what these tests run with, and what pip is to install."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    known = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "requirements.pth").write_text("\n".join(known))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q"]
    subprocess.run([*pip, *map(str, what)], check=True)
    return Installed(folder / "bin", packages / "ninefold")


def typed(shell: Shell, bin: Path, *words: str, **options: object) -> Done:
    """Type a command in the shell's folder, with the environment's commands first on PATH."""
    process = start(shell, bin, *words, **options)
    out, err = process.communicate(timeout=300)
    return Done(process.returncode, out, err)


def start(
    shell: Shell, bin: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    path = {"PATH": f"{bin}:{os.environ['PATH']}", "PYTHONPATH": ""}
    # The program is looked for on this process's PATH.
    first = str(bin / words[0]) if (bin / words[0]).exists() else words[0]
    return shell.spawn([first, *words[1:]], env={**path, **(env or {})})


def pasted(shell: Shell, bin: Path, line: str) -> Done:
    """Paste a line that was printed into a shell."""
    return typed(shell, bin, "sh", "-c", line)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_has_the_configuration_and_no_recording_and_an_sdist_makes_the_same(built):
    (wheel,), (other,) = (built / "tree").glob("*.whl"), (built / "sdist").glob("*.whl")
    found = names(wheel)
    assert found == names(other)
    for pattern in ("conf/**/*.yaml", "experiments/*.yaml"):
        for path in ROOT.glob(pattern):
            assert f"ninefold/{path.relative_to(ROOT).as_posix()}" in found
    tracked = set(subprocess.check_output(["git", "-C", ROOT, "ls-files"], text=True).split("\n"))
    code = {name for name in tracked if re.match("ninefold/(?!.*/README.md)", name)}
    assert code <= found
    rest = {name for name in found - code if ".dist-info/" not in name}
    assert {name.split("/")[1] for name in rest} == {"conf", "experiments"}
    assert {name.split("/")[0] for name in found if ".dist-info/" not in name} == {"ninefold"}
    assert wheel.stat().st_size < 1_000_000
    (sdist,) = (built / "sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if re.search(r"/20\d\d-|/tests/", name)]


def test_an_editable_installation_has_no_copy_of_the_configuration(built, tmp_path):
    shutil.copytree(built / "copy", tmp_path / "clone")
    before = {path for path in (tmp_path / "clone").rglob("*") if path.is_file()}
    how = ("--no-deps", "--no-index", "--ignore-installed", "--no-build-isolation", "--editable")
    found = new_environment(tmp_path / "venv", *how, tmp_path / "clone")
    python, packages = found.bin / "python", found.package.parent
    assert not list(packages.rglob("train.yaml"))
    asked = "from ninefold.places import CONF, INSTALLED; print(CONF, INSTALLED)"
    env = {**os.environ, "PYTHONPATH": ""}
    said = subprocess.check_output([python, "-c", asked], text=True, cwd="/", env=env)
    assert said.split() == [str(tmp_path / "clone" / "conf"), "False"]
    new = {path for path in (tmp_path / "clone").rglob("*") if path.is_file()} - before
    assert all("egg-info" in str(path) or "__pycache__" in str(path) for path in new)


def test_the_commands_work_in_an_empty_folder_and_print_themselves(shell, installed):
    bin = installed.bin
    done = typed(shell, bin, "ninefold", "train", "parallel=ddp", *SHORT)
    assert (done.code, done.err) == (0, "")
    run = only_run(shell.folder)
    assert result(run)["processes"] == 2
    assert result(run)["environment"]["commit"] is None  # the clone that is around is no other's
    for words in (("ninefold",), ("python", "-m", "ninefold")):
        done = typed(shell, bin, *words, "train", "--help")
        assert done.code == 0
        assert done.out.startswith(f"{' '.join(words)} train ")
        assert "ddp" in done.out
        assert "docs/" not in done.out
        done = typed(shell, bin, *words, "evaluate", f"ckpt={run}", "batch_siz=2")
        assert done.code == 2
    done = typed(shell, bin, "ninefold", "evaluate", f"ckpt={run}")
    assert (done.code, done.err) == (0, "")
    done = typed(shell, bin, "ninefold", "conf", "model/convnet")
    assert "_target_: ninefold.model.convnet.ConvNet" in done.out
    done = typed(shell, bin, "ninefold", "keys", "study.time_budget")
    assert "study.time_budget=3" in done.out
    done = typed(shell, bin, "ninefold", "trian")
    assert (done.code, done.out) == (2, "")
    assert "did you mean train" in done.err
    assert done.err.count("\n") == 1
    done = typed(shell, bin, "ninefold", "fits", "memory=24")
    assert done.code == 2
    assert "type memory=24GiB" in done.err


def test_extensions_work_in_an_empty_folder_without_a_flag(shell, installed):
    words = ("model=timm", "model.net.name=test_vit", "model.input_size=32", "batch_size=8",
             "parallel=fsdp", "parallel.checkpoint=sharded")  # fmt: skip
    done = typed(
        shell, installed.bin, "ninefold", "train", *words, "max_steps=2", "hydra.run.dir=run"
    )
    assert (done.code, done.err) == (0, "")
    done = typed(shell, installed.bin, "ninefold", "fits", *words[:4], "memory=1GiB")
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert done.err.startswith("counting a step's memory: timm on digits")


def test_a_comparison_prints_lines_that_train_and_resume_when_they_are_pasted(shell, installed):
    # dp does the work of none on a CPU, so that the answer is decided however busy the machine is.
    small = ("parallel=none,dp", "amp=fp32", "dataset.limit=256", "epochs=1")
    process = start(
        shell, installed.bin, "ninefold", "compare", *small, "study.time_budget=10",
        "hydra.sweep.dir=a study"
    )  # fmt: skip
    wait_until(lambda: list(shell.folder.glob("a study/timing/*1*/*")), process)
    process.send_signal(signal.SIGINT)
    said = shell.finish(process, code=130).stdout
    (line,) = re.findall("^resume the study with: (.*)$", said, re.MULTILINE)
    assert line.startswith("ninefold train 'study.resume=")
    done = pasted(shell, installed.bin, f"{line} study.time_budget=0.1")
    assert done.code == 0, done.err
    assert (shell.folder / "a study" / "report" / "report.html").is_file()
    recorded = json.loads((shell.folder / "a study" / "sweep.json").read_text())["command"]
    assert recorded.startswith("ninefold train -m 'study.ask=[time]' study.control=true ")
    (line,) = re.findall("^train with it: (.*)$", done.out, re.MULTILINE)
    assert line.startswith("ninefold train ")
    done = pasted(shell, installed.bin, f"{line} max_steps=4 hydra.run.dir=run")
    assert done.code == 0, done.err
    assert result(shell.folder / "run")["status"] == "ok"
    # A clone's report of it keeps the words; its console has those of who looks.
    report = shell.folder / "a study" / "report" / "report.md"
    before = report.read_text()
    shell.run("-m", "ninefold.report", "a study", code=0)
    assert report.read_text() == before
    assert "ninefold train " in before


def test_a_clone_and_a_wheel_share_runs_and_studies(shell, installed):
    asked = "from ninefold.config.fingerprint import code; print(code())"
    done = typed(shell, installed.bin, "python", "-c", asked)
    assert done.out.strip() == fingerprint.code()
    words = ("amp=fp32,autocast", "seed=0,1", "max_steps=4", "dataset.limit=256")
    small = ("-m", *words, "study.ask=[score]")
    done_here = shell.train(*small, "study.budget=0.001", "hydra.sweep.dir=study", code=0)
    (line,) = re.findall("^resume the study with: (.*)$", done_here.stdout, re.MULTILINE)
    assert "to be surer" not in done_here.stdout
    words = shlex.split(line)
    assert words[:2] == ["python", "train.py"]
    done = typed(shell, installed.bin, "ninefold", "train", *words[2:])
    assert (done.code, done.err) == (0, "")
    assert len(list(shell.folder.glob("study/**/result.json"))) == 4
    run = next(shell.folder.glob("study/**/result.json")).parent
    done = typed(shell, installed.bin, "ninefold", "evaluate", f"ckpt={run}")
    assert done.code == 0
    (found,) = (shell.folder / "outputs" / "evaluate").glob("*/evaluation.json")
    assert json.loads(found.read_text())["score"] == result(run)["score"]


@pytest.mark.parametrize("name", ["mine", "with a space, a : and é"])
def test_code_and_options_of_the_working_folder_are_found_by_all_processes(shell, installed, name):
    folder = shell.folder = shell.folder / name
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "mynet.yaml").write_text(MODEL)
    (folder / "mynet.py").write_text(NET)
    for name in ("train.py", "torch.py"):  # the latter comes after the installed one
        (folder / name).write_text(f"raise SystemExit('another {name} was run')")
    words = ("ninefold", "train", "--config-dir", "conf", "model=mynet", "parallel=ddp", *SHORT)
    done = typed(shell, installed.bin, *words)
    assert (done.code, done.err) == (0, "")
    run = only_run(folder)
    done = typed(shell, installed.bin, *words, env={"PYTHONSAFEPATH": "1"})
    assert done.code == 2
    assert "mynet" in done.err
    assert done.err.count("\n") == 1
    done = typed(shell, installed.bin, "ninefold", "evaluate", f"ckpt='{run}'", "trust=true")
    assert (done.code, done.err) == (0, "")


def test_torchrun_starts_the_installed_command(shell, installed):
    run = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ninefold")
    words = ("train", "parallel=ddp", "max_steps=4", "dataset.limit=256")
    done = typed(shell, installed.bin, "python", "-m", *run, *words)
    assert done.code == 0, done.err
    assert result(only_run(shell.folder))["processes"] == 2


def test_a_zip_archive_is_refused_in_one_line(shell, built):
    source = shell.folder / "source"
    (wheel,) = (built / "tree").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(source)
    zipapp.create_archive(source, shell.folder / "app.pyz", main="ninefold.__main__:main")
    done = typed(shell, Path(sys.executable).parent, "python", "app.pyz", "train")
    assert done.code == 2, done.err
    assert done.err.startswith("error: ninefold=")
    assert done.err.count("\n") == 1
