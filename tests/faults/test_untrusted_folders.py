"""Folders that somebody else has made: links, FIFOs, devices and files without end in them.

A command either works or ends with one line, soon; and no file outside of the folder is changed.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ninefold.checkpoint.store import read
from tests.conftest import Shell
from tests.faults.refusals import LINE, Done

SMALL = ("launch.inline=true", "max_steps=1", "clock.warmup=0", "logger=quiet")
STUDY = ("-m", "amp=fp32,autocast", "seed=0", *SMALL, "study.ask=[score]")
PRECIOUS = "precious\n"

Plant = Callable[[Path, Path], object]


def link(path: Path, victim: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(victim)


def fifo(path: Path, victim: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path: Path, victim: Path) -> None:
    link(path, Path("/dev/zero"))


def huge(path: Path, victim: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 40)  # it takes no room


PLANTS: dict[str, Plant] = {"link": link, "fifo": fifo, "endless": endless, "huge": huge}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a study of ours."""
    shell = Shell(tmp_path_factory.mktemp("made"))
    for words in ([*SMALL, "hydra.run.dir=run"], [*STUDY, "hydra.sweep.dir=study"]):
        shell.train(*words, code=0)
    return shell.folder


def foreign(shell: Shell, made: Path, name: str) -> tuple[Path, Path]:
    """A copy of what `made` holds under this name, and a file of the user's own."""
    shutil.copytree(made / name, shell.folder / "foreign", symlinks=True)
    victim = shell.folder / "precious"
    victim.write_text(PRECIOUS)
    return shell.folder / "foreign", victim


def resume(shell: Shell, folder: Path) -> Done:
    return shell.train(f"resume={folder}", "max_steps=2", "launch.inline=true")


def resume_study(shell: Shell, folder: Path) -> Done:
    return shell.train(*STUDY, f"study.resume={folder}")


def evaluate(shell: Shell, folder: Path) -> Done:
    return shell.evaluate(
        f"ckpt={folder}/checkpoints/last.pt", "launch.inline=true", f"hydra.run.dir={folder}/new"
    )


def report(shell: Shell, folder: Path) -> Done:
    return shell.run("-m", "ninefold.report", str(folder))


def begin(shell: Shell, folder: Path) -> Done:
    return shell.train(*SMALL, f"hydra.run.dir={folder}/new")


# What is planted, where, the command that meets it, and the exit code: 0 where it does not matter.
CASES: list[tuple[str, str, str, Callable[[Shell, Path], Done], int]] = [
    ("link", "run", ".lock", resume, 5),
    ("fifo", "run", "metrics.jsonl", resume, 5),
    ("link", "run", "metrics.jsonl", resume, 0),
    ("huge", "run", "metrics.jsonl", resume, 5),
    ("fifo", "run", "config.yaml", resume, 2),
    ("huge", "run", "config.yaml", resume, 3),
    ("endless", "run", "result.json", resume, 0),
    ("fifo", "run", "checkpoints/manifest.json", resume, 3),
    ("link", "study", ".lock", resume_study, 5),
    ("link", "study", ".sweep.json.tmp", resume_study, 5),
    ("huge", "study", "sweep.json", resume_study, 2),
    ("link", "run", "new/run.log", evaluate, 5),
    ("link", "run", "new/.hydra/overrides.yaml", evaluate, 5),
    ("link", "run", "new/.hydra/config.yaml", begin, 5),
    ("link", "study", "report/report.md", report, 0),
    ("endless", "study", "sweep.json", report, 0),
]
QUICK = 3  # of these `make test` tries the first; the others are for `make faults`


@pytest.mark.parametrize(
    ("what", "of", "name", "command", "code"),
    [
        pytest.param(*case, id=f"{case[0]} {case[1]}/{case[2]} {case[3].__name__}",
                     marks=[] if number < QUICK else [pytest.mark.slow])
        for number, case in enumerate(CASES)
    ],
)  # fmt: skip
def test_what_was_left_is_not_followed_or_waited_for(shell, made, what, of, name, command, code):
    folder, victim = foreign(shell, made, of)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    PLANTS[what](folder / name, victim)
    done = command(shell, folder)
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    if code:
        assert len(lines) == 1, done.stderr
        assert LINE.fullmatch(lines[0]), done.stderr
        assert "please report" not in done.stderr
    assert victim.read_text() == PRECIOUS


@pytest.mark.slow
def test_a_folder_of_checkpoints_that_is_a_link_to_another_disk_is_written_to(shell, made):
    folder, _ = foreign(shell, made, "run")
    (folder / "checkpoints").rename(shell.folder / "large")
    (folder / "checkpoints").symlink_to(shell.folder / "large")
    done = resume(shell, folder)
    assert done.returncode == 0, done.stderr
    assert read(shell.folder / "large" / "last.pt")["step"] == 2
