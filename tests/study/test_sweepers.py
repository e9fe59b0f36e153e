"""Hydra's own sweepers and launchers, of the extras `sweepers` and `slurm`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, Shell, result

SMALL = ("-m", "dataset.limit=128", "epochs=1", "max_steps=2", "logger=quiet",
         "hydra.sweep.dir=sweep")  # fmt: skip


@pytest.mark.slow
def test_optuna_finds_the_best_accuracy_and_a_failed_trial_does_not_end_its_study(
    shell: Shell,
) -> None:
    done = shell.train(
        *SMALL, "launch.inline=true", "hydra/sweeper=optuna", "hydra/sweeper/sampler=random",
        "hydra.sweeper.n_trials=3", "hydra.sweeper.sampler.seed=4", "threads=1",
        "optimizer.lr=interval(1e-4,1e-2)", "batch_size=choice(-1,64)",
    )  # fmt: skip
    assert done.returncode == 2  # the failed one's
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    wrong = "error: batch_size=-1: not allowed; a whole number of at least 1 is allowed; "
    results = [result(path.parent) for path in (shell.folder / "sweep").glob("*/result.json")]
    failed = [r for r in results if r["status"] == "failed"]
    assert len(results) == 3
    assert len(failed) == len(errors) == 1
    assert errors[0] == failed[0]["error"]
    assert errors[0].startswith(wrong)
    best = OmegaConf.load(shell.folder / "sweep" / "optimization_results.yaml")
    assert best.best_value == max(r["best_accuracy"] for r in results if r["status"] == "ok")
    assert json.loads((shell.folder / "sweep" / "sweep.json").read_text())["runs"] == 3


def test_an_invalid_search_space_is_reported_in_one_line(shell: Shell) -> None:
    done = shell.train(*SMALL, "hydra/sweeper=optuna", "optimizer.lr=interval(1,0)")
    assert done.returncode == 2
    assert done.stderr.startswith("error: hydra=hydra_optuna_sweeper: ValueError: The `low` value")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_joblib_makes_concurrent_runs_and_a_failed_one_is_reported_once(shell: Shell) -> None:
    done = shell.train(
        *SMALL, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "batch_size=-1,64"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: batch_size=-1: not allowed; ")
    assert done.stderr.count("\n") == 1
    failed, ran = (result(path.parent) for path in sorted((shell.folder).glob("*/*/result.json")))
    assert (failed["status"], failed["exit_code"]) == ("failed", 2)
    assert (ran["status"], ran["exit_code"]) == ("ok", 0)
    assert ran["notes"][0].startswith("It may have run at the same time as other runs")
    assert json.loads((shell.folder / "sweep" / "sweep.json").read_text())["runs"] == 2
    assert (shell.folder / "sweep" / "report" / "report.md").is_file()


@pytest.mark.slow
def test_a_study_that_asks_both_times_its_cells_in_turns_and_trains_concurrently(
    shell: Shell,
) -> None:
    done = shell.train(
        "-m", "dataset.limit=128", "batch_size=32", "epochs=1", "threads=1", "amp=fp32,autocast",
        "seed=0,1", "study.ask=[time,accuracy]", "study.time_budget=0.0001", "study.turns=2",
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = json.loads((shell.folder / "sweep" / "sweep.json").read_text())
    assert [len(entry["runs"]) for entry in content["timing"]] == [2, 2]
    runs = [shell.folder / "sweep" / name for entry in content["rounds"] for name in entry["runs"]]
    assert [result(run)["status"] for run in runs] == ["ok"] * 4
    notes = [result(run)["notes"][0] for run in runs]
    assert all(note.startswith("It may have run at the same time as") for note in notes)


@pytest.mark.slow
def test_a_signal_ends_the_runs_of_joblib_and_none_begins(shell: Shell) -> None:
    command = shell.start(
        str(ROOT / "train.py"), "-m", "dataset.limit=128", "epochs=100000", "threads=1",
        "launch.inline=true", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
        "optimizer.lr=0.001,0.002,0.003", "logger=quiet", "hydra.sweep.dir=sweep",
    )  # fmt: skip
    sweep = shell.folder / "sweep"
    while len(list(sweep.glob("*/checkpoints/last.pt"))) < 2 and command.poll() is None:
        time.sleep(0.05)
    command.terminate()
    out, err = command.communicate(timeout=60)
    assert command.returncode == 75, err
    assert err == (
        "error: signal=SIGTERM: interrupted; nothing of it runs on this host now; "
        "resume the study\n"
    )
    assert not shell.survivors()
    assert len(list(sweep.glob("*/checkpoints/last.pt"))) == 2
    assert "resume the study with: python train.py -m " in out


def test_a_plugin_that_is_not_installed_is_named_with_the_command_that_installs_it(
    shell: Shell, tmp_path: Path
) -> None:
    here = tmp_path / "packages"
    here.mkdir()
    for folder in map(Path, sys.path):  # all that there is, but the plugins
        for path in folder.iterdir() if folder.name == "site-packages" else ():
            if path.name != "hydra_plugins" and path.suffix != ".pth":
                (here / path.name).symlink_to(path)
    for choice, extra in (
        ("hydra/sweeper=optuna", "sweepers"),
        ("hydra/launcher=joblib", "sweepers"),
        ("hydra/launcher=submitit_slurm", "slurm"),
    ):
        done = shell.run(
            "-S", str(ROOT / "train.py"), "-m", choice, "seed=1", env={"PYTHONPATH": str(here)}
        )
        assert done.returncode == 2
        assert done.stderr == (
            f"error: {choice}: its plugin is not installed; the extra {extra} has it; "
            f"pip install '.[{extra}]' in a clone, or pip install 'WHEEL[{extra}]'\n"
        )
