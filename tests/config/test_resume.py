"""Which run a command resumes, and which of its overrides a resumed run takes."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image

from ninefold.checkpoint.store import Checkpoints
from ninefold.config import resolvers, resume
from ninefold.config.composition import compose, flags_of
from ninefold.config.job import asked, check
from ninefold.config.like import expanded
from ninefold.config.schema import is_any_of
from ninefold.errors import CheckpointError
from ninefold.launch.command import composed
from ninefold.launch.ready import ready
from ninefold.machine import cores
from tests.conftest import Shell, metrics, only_run, result
from tests.faults.runs import one_after_another
from tests.launch.test_per_rank import ends_of

JOB = ("logger=quiet", "clock.warmup=0", "log_every=1")


def stored(folder: Path) -> dict[str, Any]:
    tree = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def interrupted(folder: Path) -> None:
    """Make a run that ended look like one that the machine was taken from."""
    (folder / "result.json").unlink()


# The jobs of the runs that the tests resume; each test has a copy.
BEGUN: dict[str, tuple[str, ...]] = {
    "plain": ("max_steps=3",),
    "cosine": ("max_steps=1", "scheduler=cosine"),
    "ddp": ("max_steps=2", "parallel=ddp", "parallel.processes=2"),
    "limited": ("max_steps=1", "parallel=ddp", "dataset.limit=640", "threads=1"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each job of BEGUN, which ended, in a folder of its name."""
    shell = Shell(tmp_path_factory.mktemp("begun"))
    commands = [["train.py", *JOB, *job, f"hydra.run.dir={run}"] for run, job in BEGUN.items()]
    one_after_another(shell, *commands, code=0)
    return shell.folder


def copied(begun: Path, name: str, folder: Path) -> Path:
    """A copy of a run that ended, in `folder`."""
    shutil.copytree(begun / name, folder)
    return folder


# resume=auto


@pytest.mark.slow
def test_the_same_command_begins_goes_on_and_begins_anew_when_the_run_has_ended(shell):
    command = ("train.py", *JOB, "resume=auto", "epochs=2", "max_steps=3")
    (first,) = one_after_another(shell, command, code=0)
    started = "resume=auto: no unfinished run of this job under outputs/runs, starting one\n"
    assert first.stdout.startswith(started)
    run = only_run(shell.folder)
    assert (run / ".hydra" / "config.yaml").is_file()

    interrupted(run)
    second, third = one_after_another(shell, (*command[:-1], "max_steps=5"), command)
    assert second.returncode == 0, second.stderr
    name = f"outputs/runs/{run.name}"
    assert second.stdout.startswith(f"resume=auto: resuming {name}\n")
    assert len(metrics(run, "loss")) == 5
    assert result(run)["steps"] == 5

    assert third.stdout.startswith(started)
    assert len(list((shell.folder / "outputs" / "runs").iterdir())) == 2


@pytest.mark.slow
def test_auto_finds_the_newest_unfinished_run_of_this_job_and_no_other(shell, begun):
    runs = shell.folder / "runs"
    copied(begun, "cosine", runs / "old")
    for age, name in enumerate(["new", "other", "ended", "broken"]):
        shutil.copytree(runs / "old", runs / name)
        if name != "ended":
            interrupted(runs / name)
        os.utime(runs / name / "checkpoints" / "manifest.json", (2e9 + age, 2e9 + age))
    interrupted(runs / "old")
    seed = (runs / "other" / "config.yaml").read_text().replace("seed: 0", "seed: 1")
    (runs / "other" / "config.yaml").write_text(seed)
    (runs / "broken" / "config.yaml").write_text("- [")
    # epochs may change, and with it a cosine's T_max, which stays as it was laid out
    job = (*JOB, *BEGUN["cosine"], "epochs=20")
    done = shell.train(*job, "hydra.run.dir=runs/next", "resume=auto", code=0)
    assert done.stdout.startswith("resume=auto: resuming runs/new\n")
    job_now = stored(runs / "new")
    assert (job_now["epochs"], job_now["scheduler"]["T_max"]) == (20, 10)
    assert not (runs / "next").exists()
    interrupted(runs / "new")  # its T_max is now that of no epochs
    done = shell.train(*job, "hydra.run.dir=runs/next", "resume=auto", code=0)
    assert done.stdout.startswith("resume=auto: resuming runs/new\n")


def test_auto_leaves_what_is_not_typed_as_the_run_has_it(shell, begun):
    """Once by a command with other epochs, and then by the one that began it."""
    run = copied(begun, "plain", shell.folder / "runs" / "plain")
    (run / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace("epochs: 10", "epochs: 20")
    )
    interrupted(run)
    command = (*JOB, *BEGUN["plain"], "hydra.run.dir=runs/next", "resume=auto", "log_every=2")
    done = shell.train(*command, code=0)
    assert done.stdout.startswith("resume=auto: resuming runs/plain\n")
    assert (stored(run)["epochs"], stored(run)["log_every"]) == (20, 2)


def test_auto_goes_on_where_the_ranks_are_started_one_by_one(shell, begun):
    run = copied(begun, "ddp", shell.folder / "outputs" / "runs" / "ddp")
    interrupted(run)
    job = (run / "config.yaml").read_text()  # of a machine with other cores
    (run / "config.yaml").write_text(re.sub(r"^threads: \d+", "threads: 77", job, flags=re.M))
    rank = {"argv": [*JOB, "parallel=ddp", "resume=auto", "max_steps=4"]}
    ends = ends_of(shell, {"auto": {"ranks": [rank, rank]}})["auto"]
    assert [each["code"] for each in ends] == [0, 0], ends
    said = "".join(each["stdout"] for each in ends)
    assert said.count("resume=auto: resuming") == 1
    assert (only_run(shell.folder), result(run)["steps"]) == (run, 4)
    assert stored(run)["threads"] == cores()


def test_a_job_that_slurm_requeued_goes_on_in_its_folder(shell, begun):
    run = copied(begun, "plain", shell.folder / "run")
    command = [*JOB, "max_steps=4", "hydra.run.dir=run"]
    done = shell.train(*command, env={"SLURM_RESTART_COUNT": "1"}, code=0)
    assert "the job was requeued: resuming run" in done.stdout
    assert (result(run)["steps"], metrics(run, "loss")[:3]) == (4, metrics(begun / "plain", "loss"))


RESTARTED, REQUEUED = "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"
NAMED = "hydra.run.dir=given"  # else each start has a folder of its own


@pytest.mark.parametrize(
    ("variable", "words", "state", "resumed"),
    [
        (RESTARTED, [NAMED], "killed before its first save", None),
        (RESTARTED, [NAMED], "ended", "given"),
        (RESTARTED, [NAMED], "not there", None),
        (RESTARTED, [], "not there", "beside"),
        (RESTARTED, [NAMED, "resume=auto"], "ended", "given"),
        (REQUEUED, [NAMED], "killed before its first save", None),
        (REQUEUED, [NAMED, "resume=auto"], "ended", "given"),
        (REQUEUED, [NAMED, "resume=auto"], "not there", "beside"),
    ],
)
def test_a_command_that_is_started_again_stays_in_the_folder_that_it_was_given(
    begun, tmp_path, monkeypatch, variable, words, state, resumed
):
    monkeypatch.setenv(variable, "1")
    monkeypatch.chdir(tmp_path)
    interrupted(copied(begun, "plain", Path("beside")))
    if state == "ended":
        copied(begun, "plain", Path("given"))
    elif state != "not there":
        Path("given").mkdir()
    config = composed([*JOB, *BEGUN["plain"], *words, "launch.inline=true"], "")
    assert ready(asked(config, config.hydra), Path("given")).resume == resumed


# What a resumed run may be told


def test_a_run_that_has_gone_further_than_is_asked_for_is_refused(shell, begun):
    run = copied(begun, "plain", shell.folder / "run")
    before = stored(run)
    done = shell.train("resume=run", "max_steps=2", code=2)
    assert stored(run) == before
    assert done.stderr.startswith("error: max_steps=2: the run is at step 3 already; it has 2 ")


def test_a_resume_that_fails_before_it_trains_leaves_job_words_and_result_as_they_were(
    shell, begun
):
    run = copied(begun, "plain", shell.folder / "run")
    (run / "profile").touch()  # where the last step of the warm-up would write
    names = ("config.yaml", "result.json", ".hydra/overrides.yaml")
    before = [(run / name).read_bytes() for name in names]
    done = shell.train("resume=run", "max_steps=5", "profile=true", code=5)
    assert "run/profile" in done.stderr
    assert [(run / name).read_bytes() for name in names] == before


def test_a_run_whose_dataset_has_other_numbers_of_examples_is_refused(shell):
    for place in ("train/a/0", "train/a/1", "train/b/0", "test/a/0", "test/b/0"):
        file = shell.folder / "set" / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(file)
    images = ("dataset=folder", "dataset.root=set", "dataset.shape=[1,8,8]", "dataset.mean=null")
    shell.train(*JOB, *images, "dataset.std=null", "model=mlp", "batch_size=1", "max_steps=1",
                "hydra.run.dir=run", code=0)  # fmt: skip
    (shell.folder / "set").rename(shell.folder / "moved")
    shell.train("resume=run", "max_steps=2", "dataset.root=moved", code=0)
    shutil.copy(shell.folder / "moved/train/a/0.png", shell.folder / "moved/train/a/2.png")
    done = shell.train("resume=run", "max_steps=3", code=3)
    assert "its dataset has other numbers of examples by now; for training, validation and test " \
        "[3, 0, 2] and [4, 0, 2] are those then and now; " in done.stderr  # fmt: skip


def computed_by(run: Path, **changed: str) -> None:
    """Change what the checkpoint of a run says that it was computed by."""
    content = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    content["where"].update(changed)
    Checkpoints(run / "checkpoints", 3).save(content, best=False)


def test_a_run_does_not_go_on_on_another_kind_of_device(shell, begun):
    computed_by(copied(begun, "plain", shell.folder / "run"), device="cuda")
    done = shell.train("resume=run", "max_steps=4", code=3)
    assert "its run was on cuda, and this one would go on on cpu; " in done.stderr


def test_what_a_run_was_resumed_with_is_noted_also_after_another_resume(shell, begun):
    run = copied(begun, "plain", shell.folder / "run")
    computed_by(run, torch="2.0", parallel="ddp")
    for steps in (4, 5):
        shell.train("resume=run", f"max_steps={steps}", code=0)
        (note,) = [note for note in result(run)["notes"] if "was resumed with" in note]
        assert (
            f"with parallel=none instead of ddp, torch={torch.__version__} instead of 2.0:" in note
        )


def test_variables_that_hydra_would_set_too_late_are_refused(shell):
    done = shell.train("+hydra.job.env_set.A=1", code=2)
    assert done.stderr.startswith("error: hydra.job.env_set=A: a run's processes do not get it; ")


def test_what_repeats_the_run_is_fine_and_what_differs_is_named_in_one_line(shell, begun):
    run = copied(begun, "limited", shell.folder / "run")
    before = (run / "result.json").read_bytes()
    done = shell.train("resume=run", "seed=3", "model=resnet18", "dataset={limit: 600}",
                       "+optimizer.eps=0.1", "~scheduler.factor", "epochs=4", code=2)  # fmt: skip
    assert done.stderr.startswith(
        "error: resume=run: seed=3 (was 0), model=resnet18 (was convnet), dataset.limit=600 "
        "(was 640), optimizer.eps=0.1 (was absent), scheduler.factor=absent (was 0.1) cannot "
    )
    assert (run / "result.json").read_bytes() == before
    shell.train(
        "resume=run", "parallel=ddp", "seed=0", "model=convnet", "optimizer={lr: 0.001}",
        "dataset.limit=640", "dataset.mean=[0.3053]", "max_steps=2",
        "launch.timeout=77", "logger=default", "~logger.console", code=0,
    )  # fmt: skip
    job = stored(run)
    assert job["parallel"]["timeout"] == job["launch"]["timeout"] == 77
    assert (set(job["logger"]), job["choices"]["logger"]) == ({"jsonl", "tensorboard"}, "default")
    assert (job["log_every"], job["max_steps"], job["threads"]) == (1, 2, 1)
    shell.train("resume=run", "max_steps=3", "launch.timeout=78", code=0)
    assert stored(run)["parallel"]["timeout"] == 78  # though its command has parallel=none


@pytest.mark.parametrize(
    ("begun", "resumed", "together"),
    [
        (["max_steps=null", "seed=1"], [], ["max_steps=null", "seed=1"]),
        (["max_steps=3", "seed=1"], ["max_steps=null"], ["max_steps=null", "seed=1"]),
        (["epochs=1"], ["epochs=2", "+optimizer.eps=1"], ["epochs=2", "+optimizer.eps=1"]),
        (["~logger.console"], ["logger.console=null"], ["logger.console=null"]),
    ],
    ids=str,
)
def test_a_resumed_run_has_the_overrides_of_one_command(tmp_path, begun, resumed, together):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text(OmegaConf.to_yaml(begun))
    assert resume.all_overrides(tmp_path, resumed) == together


def test_what_a_resume_changed_belongs_to_the_words_of_the_run_from_then_on(shell, begun):
    run = copied(begun, "plain", shell.folder / "run")
    shell.train("resume=run", "max_steps=4", "log_every=2", code=0)
    shell.train("resume=run", "max_steps=5", code=0)
    words = ["clock.warmup=0", "log_every=2", "max_steps=5"]
    assert result(run)["overrides"] == words
    assert expanded([f"like={run}"]) == ["logger=quiet", *words]


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        (["parallel=ddp", "parallel.devices=[0,1]"], ["parallel=none"], []),
        (["parallel.device=cpu"], ["parallel=none"], ["parallel.device=cpu"]),  # the run's own
        (["logger=quiet"], ["~logger.tensorboard"], []),
        (["~logger.tensorboard"], ["logger=quiet"], []),
    ],
    ids=str,
)
def test_no_word_is_left_of_a_strategy_or_of_loggers_that_a_resume_replaced(
    begun, tmp_path, before, now, kept
):
    run = copied(begun, "ddp" if "parallel=ddp" in before else "plain", tmp_path / "run")
    (run / ".hydra" / "overrides.yaml").write_text(OmegaConf.to_yaml([*before, "seed=0"]))
    resolvers.register()
    config = compose("train", flags_of([f"resume={run}", *now])).config
    resumed = check(asked(config, config.hydra))
    assert resumed.overrides == [*kept, "seed=0", f"resume={run}", *now]


def test_a_run_that_was_moved_without_its_words_gets_none_by_a_resume(shell, begun):
    run = copied(begun, "plain", shell.folder / "run")
    shutil.rmtree(run / ".hydra")
    shell.train("resume=run", "max_steps=4", code=0)
    assert stored(run)["max_steps"] == 4
    assert not (run / ".hydra").exists()


def test_a_run_that_is_over_and_resumed_keeps_what_it_measured(shell, begun):
    """What is lost with its result.json is not known: the process that goes on trains nothing."""
    run = copied(begun, "plain", shell.folder / "run")
    before = (run / "result.json").read_bytes()
    shell.train("resume=run", code=0)
    assert (run / "result.json").read_bytes() == before
    interrupted(run)
    shell.train("resume=run", code=0)
    found = result(run)
    assert found["score"] == json.loads(before)["score"]
    assert (found["peak_memory_bytes"], found["phase_seconds"]) == ([], {})
    assert any("resumed at its end" in note for note in found["notes"])


def test_another_strategy_may_resume_a_run_but_auto_takes_it_for_another_job():
    varying = resume.may_vary()
    for key in ("parallel", "parallel.least", "optimizer.fused"):
        assert resume.may_change(key)
        assert not is_any_of(key, varying)
    assert all(is_any_of(key, varying) for key in ("parallel.processes", "parallel.devices"))


def test_what_ended_is_not_unfinished_and_the_newest_comes_first(tmp_path):
    states = {"a": None, "b": "ok", "c": "diverged", "d": "failed", "e": "preempted", "f": 7,
              "h": "killed in its first save"}  # fmt: skip
    for age, (name, status) in enumerate(states.items()):
        manifest = tmp_path / name / "checkpoints" / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(
            json.dumps(
                {"format": 2, "files": {"last.pt": [{"step": age, "sha256": "", "size": 0}]}}
            )
        )
        os.utime(manifest, (1_000 - age, 1_000 - age))
        if status != "killed in its first save":
            (manifest.parent / "last.pt").touch()
        if status is not None:
            (tmp_path / name / "result.json").write_text(json.dumps({"status": status}))
    (tmp_path / "g").mkdir()
    found = resume.unfinished(tmp_path)
    assert [folder.name for folder in found] == ["a", "d", "e", "f"]


def test_a_run_of_an_earlier_version_is_refused_by_its_keys_with_a_way_on(begun, tmp_path, capsys):
    run = copied(begun, "plain", tmp_path / "run")
    interrupted(run)
    job = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(job.replace("\nlaunch:", "\nlaunch:\n  dry: false"))
    with pytest.raises(CheckpointError) as refused:
        resume.read(run)
    assert str(refused.value) == (
        f"error: resume={run}: its config.yaml cannot be used; this version has no launch.dry; "
        f"resume it with the version that wrote it, or start a new run with init={run}"
    )
    config = composed([*JOB, "resume=auto", "launch.inline=true"], "")
    assert ready(asked(config, config.hydra), tmp_path / "next").resume is None
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"resume=auto: 1 cannot be read; resume={run} says why"
    assert second.startswith("resume=auto: no unfinished run of this job under ")
