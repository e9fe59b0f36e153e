"""A command runs its sweep as a study and prints how to resume it."""

import json
import re
import shlex

from ninefold import main, secrets
from ninefold.errors import FolderInUse
from ninefold.launch.run_folder import exclusive
from ninefold.study import sweep


def test_a_refused_command_changes_nothing_in_the_study_of_another(made, monkeypatch):
    made.study().run()
    before = (made.folder / "sweep.json").read_bytes()
    cells = ["seed=0,1", "parallel=none,dp,ddp"]
    command = main.Command("train", ["-m", *cells, f"study.resume={made.folder}"])
    monkeypatch.setattr("ninefold.launch.run_folder.LOCK_WAIT_SECONDS", 0.0)
    with exclusive(made.folder, 0):
        (made.folder / made.names[-1] / "result.json").touch()  # the other command continues
        assert command.execute() == FolderInUse.code
    assert command.sweep.finish(FolderInUse.code) == FolderInUse.code
    assert (made.folder / "sweep.json").read_bytes() == before
    assert not (made.folder / "report").exists()


def test_the_printed_resume_command_can_be_pasted(made, monkeypatch):
    argv = ["-m", "seed=0,1", "study.budget=2.9", "hydra.sweep.dir=s", "optimizer.lr=${x}"]
    monkeypatch.setattr(secrets, "_KNOWN", {})
    secrets.note("DATA", "/the/data")
    given, argv = [*argv, "dataset.root=${oc.env:DATA}"], [*argv, "dataset.root=/the/data"]
    assert f"'{given[-1]}'" in sweep.typed(argv)
    assert shlex.split(sweep.typed(argv)) == ["python", "train.py", *given]
    interrupted, spent = made.study(budget=2.9), made.study(budget=2.9)
    spent.run()
    resumes = f"study.resume={made.folder}"
    for each, words in ((interrupted, [resumes]), (spent, [resumes, "study.budget=null"])):
        assert shlex.split(sweep.resume_command(each))[2:] == words


def test_a_study_that_its_budget_ends_with_an_answer_prints_one_next_step(shell):
    done = shell.train(
        "-m", "parallel=none,dp", "amp=fp32", "seed=0,1", "max_steps=4", "dataset.limit=256",
        "study.time_budget=0.1", "study.budget=0.001", code=0,
    )  # fmt: skip
    assert "seeds 1 were not run" in done.stdout
    steps = re.findall(r"^(train with it|to be surer|resume the study)", done.stdout, re.MULTILINE)
    assert steps == ["train with it"]


def test_a_sweep_of_values_that_its_budget_ends_says_how_to_go_on(shell):
    done = shell.train(
        "-m", "optimizer.lr=0.1,0.01", "seed=0,1", "max_steps=4", "dataset.limit=256",
        "study.budget=0.001", code=0,
    )  # fmt: skip
    assert "seeds 1 were not run" in done.stdout
    assert re.search(r"^resume the study with: .*study.budget=null$", done.stdout, re.MULTILINE)


def test_a_study_of_scores_alone_records_nothing_of_turns(shell):
    shell.train("-m", "seed=0,1", "max_steps=1", "launch.inline=true", "hydra.sweep.dir=s", code=0)
    recorded = json.loads((shell.folder / "s" / "sweep.json").read_text())
    assert (recorded["timing"], recorded["timing_seed"]) == ([], None)


def test_a_study_none_of_whose_cells_can_run_says_each_reason_once_and_writes_nothing(shell):
    cells = ["-m", "parallel=none,dp", "amp=fp32,autocast", "seed=0,1,2"]
    done = shell.train(*cells, "dataset=cifar10", "dataset.root=nowhere", code=4)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: dataset.root=nowhere: CIFAR-10 is not there;")
    done = shell.train(*cells, "init=weights.pt,other.pt")
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert list(shell.folder.iterdir()) == []
