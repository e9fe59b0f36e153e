"""A command runs its sweep as a study and prints how to resume it."""

from __future__ import annotations

import shlex
import sys
from itertools import product

import pytest
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from ninefold import main, secrets
from ninefold.config import overrides as messages
from ninefold.errors import Busy
from ninefold.launch.run_folder import exclusive
from ninefold.launch.session import SESSION
from ninefold.study import sweep as sweeper
from tests.conftest import ROOT
from tests.study.conftest import CELLS, Sweep


def test_a_refused_command_changes_nothing_in_the_study_of_another(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.study().run()
    before = (made.folder / "sweep.json").read_bytes()
    SESSION.begin(here=True)
    loader = GlobalHydra.instance().config_loader()
    named = [f"study.resume={made.folder}", f"hydra.sweep.dir={made.folder}"]
    config = loader.load_configuration("train", named, RunMode.MULTIRUN)
    jobs = [[f"seed={seed}", *cell] for seed, cell in product((0, 1), CELLS)]
    SESSION.sweep = made.folder  # what is found out before the sweeper is asked
    monkeypatch.setattr("ninefold.launch.run_folder.PATIENCE", 0.0)
    with exclusive(made.folder, 0):
        (made.folder / made.names[-1] / "result.json").touch()  # it runs on
        with pytest.raises(Busy):
            sweeper.run(config, loader, BasicLauncher(), jobs)
    sweeper.count_runs_elsewhere()
    assert main._finish(Busy.code) == Busy.code
    assert (made.folder / "sweep.json").read_bytes() == before
    assert not (made.folder / "report").exists()


def test_the_printed_resume_command_can_be_pasted(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["-m", "seed=0,1", "study.budget=2.9", "hydra.sweep.dir=s", "optimizer.lr=${x}",
             "dataset.root=/the/data"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["train.py", *given])
    monkeypatch.setattr(secrets, "_KNOWN", {})
    secrets.note("DATA", "/the/data")
    given[-1] = "dataset.root=${oc.env:DATA}"
    assert f"'{given[-1]}'" in sweeper.command()
    assert shlex.split(sweeper.command()) == ["python", "train.py", *given]
    interrupted, spent = made.study(budget=2.9), made.study(budget=2.9)
    spent.run()
    for each, budget in ((interrupted, "study.budget=2.9"), (spent, "study.budget=null")):
        words = shlex.split(sweeper.resume_command(each))[2:]
        assert sorted(words) == sorted(
            ["-m", "seed=0,1", budget, *given[-2:], f"study.resume={made.folder}"]
        )
        assert messages.of_arguments(words, "train", ROOT / "conf") == []


@pytest.mark.parametrize("flags", [[], ["-m"]])
def test_a_command_that_names_two_studies_is_refused(flags: list[str]) -> None:
    given = [*flags, "experiments=nine_way,cifar10_cpu"]
    (failure,) = messages.of_arguments(given, "train", ROOT / "conf")
    assert "a command runs one study; give them one after the other" in str(failure)
