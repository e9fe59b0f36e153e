"""A command is refused before it touches the folder of a run that there is."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ninefold.config import resolvers
from ninefold.config.composition import compose, flags_of
from ninefold.errors import Refused
from ninefold.launch.run_folder import exclusive
from ninefold.main import job_of

Command = Callable[..., int]
WITH_A_RUN: dict[str, dict[str, str]] = {
    "saved": {"checkpoints/last.pt": ""},
    "saved, and failed": {"checkpoints/last.pt": "", "result.json": '{"status": "failed"}'},
    "ended with nothing saved": {"result.json": '{"status": "ok"}'},
}
WITHOUT: dict[str, dict[str, str]] = {
    "failed with nothing saved": {"result.json": '{"status": "failed"}'},
    "killed in its first save": {"checkpoints/.new.pt": "", "checkpoints/manifest.json": "{}"},
    "an evaluation": {"evaluation.json": "{}"},
}


@pytest.fixture
def command() -> Command:
    """The code that a command is refused with, by its configuration's name; 0: it is not."""
    resolvers.register()

    def look(name: str, *overrides: str) -> int:
        given = [*overrides, "launch.inline=true"]  # or torch would be imported beside us
        try:
            job_of(compose(name, flags_of(given)))
        except Refused as refused:
            print(*refused.failures, sep="\n", file=sys.stderr)
            return refused.failures[0].code
        return 0

    return look


def a_folder(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {"config.yaml": "seed: 0\n", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("files", WITH_A_RUN.values(), ids=WITH_A_RUN)
def test_a_folder_with_a_run_takes_no_new_run_or_evaluation(tmp_path, command, capsys, files):
    run, weights = a_folder(tmp_path / "run", files), tmp_path / "weights.pt"
    weights.touch()
    line = f"error: hydra.run.dir={run}: there is a run in it; each has a folder of its own; choose"
    assert command("train", f"hydra.run.dir={run}") == 2
    assert capsys.readouterr().err == f"{line} another, or resume it with resume={run}\n"
    assert command("evaluate", f"ckpt={weights}", f"hydra.run.dir={run}") == 2
    assert capsys.readouterr().err == f"{line} another\n"
    (run / "config.yaml").unlink()  # what is left is of something else
    assert command("train", f"hydra.run.dir={run}", "resume=auto") == 0


def test_a_folder_in_which_a_run_trains_keeps_the_command_that_began_it(
    tmp_path, command, capsys, monkeypatch
):
    monkeypatch.setattr("ninefold.launch.run_folder.LOCK_WAIT_SECONDS", 0)
    run = a_folder(tmp_path / "run", {".hydra/overrides.yaml": "- seed=0\n"})
    with exclusive(run, 0):
        assert command("train", f"hydra.run.dir={run}", "seed=1") == 2
    assert "another process is writing to this run folder" in capsys.readouterr().err
    assert (run / ".hydra" / "overrides.yaml").read_text() == "- seed=0\n"


@pytest.mark.parametrize("files", WITHOUT.values(), ids=WITHOUT)
def test_a_folder_in_which_nothing_can_be_lost_is_tried_again(tmp_path, command, files):
    run = a_folder(tmp_path / "run", files)
    assert command("train", f"hydra.run.dir={run}") == 0
