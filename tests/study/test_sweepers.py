"""Hydra's own sweepers and launchers, of the extras `sweepers` and `slurm`."""

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, result

SMALL = ("-m", "dataset.limit=128", "epochs=1", "max_steps=2", "logger=quiet",
         "hydra.sweep.dir=sweep")  # fmt: skip


@pytest.mark.slow
def test_optuna_finds_the_best_accuracy_and_a_failed_trial_does_not_end_its_study(shell):
    done = shell.train(
        *SMALL, "launch.inline=true", "hydra/sweeper=optuna", "hydra/sweeper/sampler=random",
        "hydra.sweeper.n_trials=3", "hydra.sweeper.sampler.seed=4", "threads=1",
        "optimizer.lr=interval(1e-4,1e-2)", "batch_size=choice(-1,64)", code=2,
    )  # fmt: skip
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    wrong = "error: batch_size=-1: not allowed; a whole number of at least 1 is allowed; "
    results = [result(path.parent) for path in (shell.folder / "sweep").glob("*/result.json")]
    failed = [r for r in results if r["status"] == "failed"]
    assert len(results) == 3
    assert len(failed) == len(errors) == 1
    assert errors[0] == failed[0]["error"]
    assert errors[0].startswith(wrong)
    best = OmegaConf.load(shell.folder / "sweep" / "optimization_results.yaml")
    assert best.best_value == max(r["best_score"] for r in results if r["status"] == "ok")


def test_an_invalid_search_space_is_reported_in_one_line(shell):
    done = shell.train(*SMALL, "hydra/sweeper=optuna", "optimizer.lr=interval(1,0)", code=2)
    assert done.stderr.startswith("error: hydra=hydra_optuna_sweeper: ValueError: The `low` value")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_runs_of_processes_that_a_launcher_starts_are_noted_and_counted(shell):
    shell.train(*SMALL, "hydra/launcher=submitit_local", "batch_size=-1,64", code=2)
    failed, ran = (result(path.parent) for path in sorted((shell.folder).glob("*/*/result.json")))
    assert (failed["status"], failed["exit_code"]) == ("failed", 2)
    assert (ran["status"], ran["exit_code"]) == ("ok", 0)
    assert ran["notes"][0].startswith("It may have run at the same time as other runs")
    assert (shell.folder / "sweep" / "report" / "report.md").is_file()


def test_a_plugin_that_is_not_installed_is_named_with_the_command_that_installs_it(shell, tmp_path):
    here = tmp_path / "packages"
    here.mkdir()
    for folder in map(Path, sys.path):  # all that there is, but the plugins
        for path in folder.iterdir() if folder.name == "site-packages" else ():
            if path.name != "hydra_plugins" and path.suffix != ".pth":
                (here / path.name).symlink_to(path)
    for choice, extra in (
        ("hydra/sweeper=optuna", "sweepers"),
        ("hydra/launcher=submitit_slurm", "slurm"),
    ):
        done = shell.run(
            "-S", str(ROOT / "train.py"), "-m", choice, "seed=1", env={"PYTHONPATH": str(here)}
        )
        assert done.returncode == 2
        line = f"error: {choice}: its plugin is not installed; the extra {extra} has it; "
        assert done.stderr.startswith(line)
