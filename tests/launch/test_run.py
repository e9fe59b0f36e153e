"""How runs are started, and that nothing is left of them."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from benchmarks import ours
from ninefold.errors import ConfigError
from tests.conftest import ROOT, Shell, launched, metrics, only_run, result, wait_until
from tests.faults.runs import last_step
from tests.terminal import in_terminal, shown

TRAIN = str(ROOT / "train.py")
NINEFOLD = str(ROOT / "ninefold" / "__main__.py")
Done = subprocess.CompletedProcess[str]
# Whatever a run does at its start that has no part in how it is started.
BARE = ("clock.warmup=0", "logger=quiet")
ONE = (*BARE, "threads=1")
TWO = (*BARE, "threads=2", "parallel=ddp", "launch.cpu_processes=2")
# What torchrun's agent tells the first of two processes.
AGENT = {
    "TORCHELASTIC_RUN_ID": "x",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "RANK": "0",
    "LOCAL_RANK": "0",
}


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until `path`, which may have a * in it, has content: the run is under way."""
    pattern = str(path.relative_to("/"))
    wait_until(lambda: any(found.stat().st_size for found in Path("/").glob(pattern)), process)


def ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


# A run with the defaults


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shell, Done]:
    """Under nohup, its terminal closed when it had begun."""
    with launched(tmp_path_factory.mktemp("whole")) as shell:
        process = shell.start(TRAIN, "epochs=5", preexec_fn=ignore_hangup)
        wait_for(shell.folder / "outputs/runs/*/metrics.jsonl", process)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGHUP)
        return shell, shell.finish(process)


def test_a_run_folder_holds_what_was_promised_and_learns_the_digits(whole):
    shell, done = whole
    assert (done.returncode, done.stderr) == (0, "")
    run = only_run(shell.folder)
    for name in (
        "config.yaml",
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        "run.log",
        "metrics.jsonl",
        "checkpoints/last.pt",
        "checkpoints/best.pt",
        "checkpoints/manifest.json",
        "result.json",
    ):
        assert (run / name).is_file(), name
    assert list((run / "tensorboard").glob("events.*"))
    found = result(run)
    assert found["score"] >= 0.95
    assert found["score"] == metrics(run, "test_score")[-1]
    assert found["best_score"] == max(metrics(run, "test_score"))
    assert len(found["epoch_seconds"]) == found["epochs"] == found["planned_epochs"] == 5
    assert sum(found["epoch_seconds"]) == pytest.approx(found["train_seconds"])
    assert found["train_seconds"] < found["total_seconds"]
    assert set(found["phase_seconds"]) == {"data", "transfer", "forward", "backward", "optimizer"}
    assert found["environment"]["versions"]["torch"]


# Cells, outside the launcher and in it


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Done, str]:
    """Three cells outside the launcher and three in it, the second of each of which fails.

    Their folders, what the sweep came to, and the line that it said before the third ended.
    """
    with launched(tmp_path_factory.mktemp("cells")) as shell:
        process = shell.start(
            TRAIN, "-m", "launch.inline=false,true", "launch.cpu_processes=1",
            "dataset.limit=200,10,100", *BARE, "threads=1", "parallel=ddp", "max_steps=5",
            "hydra.sweep.dir=s",
        )  # fmt: skip
        line = process.stderr.readline()
        third = shell.folder / "s" / "2_ddp_fp32_seed0" / "result.json"
        assert not third.exists(), "the error came only after the next cell had run"
        done = shell.finish(process)
        return sorted((shell.folder / "s").glob("*_ddp_*")), done, line


def test_a_failed_cell_says_so_at_once_and_the_other_cells_run_on(cells):
    runs, done, line = cells
    assert line.startswith("error: batch_size=64: larger than the training set; examples found: 10")
    assert done.stderr.count("\n") == 1, "the line of the cell that fails in the launcher"
    assert done.returncode == 4
    assert [result(run)["status"] for run in runs[:3]] == ["ok", "failed", "ok"]
    assert result(runs[1])["error"] == line.strip()
    assert (runs[0].parent / "report" / "report.md").is_file()


def test_a_cell_that_fails_inside_the_launcher_leaves_the_next_a_clean_process_group(cells):
    runs, done, line = cells
    again = f"error: batch_size=64: the same as above; in {runs[4].name}; see above\n"
    assert done.stderr == again
    assert result(runs[4])["error"] == line.strip()
    assert [result(run)["status"] for run in runs[3:]] == ["ok", "failed", "ok"]


def test_a_process_in_the_launcher_trains_the_same_weights_as_one_outside(cells):
    runs, _, _ = cells
    for outside, inline in ((runs[0], runs[3]), (runs[2], runs[5])):
        assert metrics(outside, "test_loss")
        assert metrics(inline, "test_loss") == metrics(outside, "test_loss")
        assert result(outside)["peak_memory_bytes"]
        assert not result(inline)["peak_memory_bytes"], "it would be that of all jobs so far"


# What ends a run


def test_under_torchrun_the_strategy_must_take_its_processes(monkeypatch):
    for name, value in AGENT.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"^error: parallel.processes=1: torchrun started 2"):
        ours.job("parallel=none")
    ours.job("parallel=ddp")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done, str, Done]:
    """A run of two processes, ended by Ctrl-C and then resumed.

    Its folder, the first sitting, the status that this left, and the second sitting.
    """
    with launched(tmp_path_factory.mktemp("resumed")) as shell:
        process = shell.start(
            TRAIN, *TWO, "amp=scaler", "seed=3", "epochs=100000", "checkpoint.every=5",
            "hydra.run.dir=run",
        )  # fmt: skip
        wait_for(shell.folder / "run/checkpoints/last.pt", process)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: every process gets it
        first = shell.finish(process)
        assert not shell.survivors()
        run = shell.folder / "run"
        status = result(run)["status"]
        return run, first, status, shell.train("resume=run", "epochs=1")


def test_ctrl_c_ends_the_run_with_130_and_it_can_be_resumed(resumed):
    run, first, status, second = resumed
    assert first.returncode == 130
    assert first.stderr.startswith("error: signal=SIGINT: the run was stopped;")
    assert first.stderr.count("\n") == 1
    assert status == "preempted"
    assert second.returncode == 0, second.stderr
    assert result(run)["status"] == "ok"


def test_a_resumed_run_that_fails_does_not_keep_the_result_of_before(shell, resumed):
    run = shell.folder / "run"
    shutil.copytree(resumed[0], run)
    assert result(run)["status"] == "ok"
    before = last_step(run)
    process = shell.start(TRAIN, "resume=run", "epochs=100000")
    wait_until(lambda: last_step(run) != before, process)
    assert not (run / "result.json").exists()
    process.send_signal(signal.SIGINT)
    shell.finish(process)
    found = result(run)
    assert (found["status"], found["amp"], found["seed"]) == ("preempted", "scaler", 3)


def test_a_forkserver_that_is_killed_takes_its_workers_along_and_is_named(shell):
    process = shell.start(TRAIN, *ONE, "epochs=100000", "hydra.run.dir=run")
    wait_for(shell.folder / "run/checkpoints/last.pt", process)
    worker = max(shell.processes())
    status = Path(f"/proc/{worker}/status").read_text()
    os.kill(int(status.partition("PPid:\t")[2].split()[0]), signal.SIGKILL)
    done = shell.finish(process, code=5)
    assert done.stderr.startswith("error: forkserver=killed:")
    assert done.stderr.count("\n") == 1


LOOKS = (
    [TRAIN, "--help"], [NINEFOLD, "compare", "--help"], [NINEFOLD, "keys", "batch"],
    [TRAIN, "--cfg", "job"], [TRAIN, "--info", "config"],
    [TRAIN, "epochs=-1"], [TRAIN, "parallel=ddpp"], [TRAIN, "epohcs=1"],
)  # fmt: skip
LOOKING = f"""
import atexit, os, runpy, sys
import ninefold.main  # once for all of them
for arguments in {LOOKS!r}:
    if os.fork() == 0:
        atexit.register(lambda: print("looked:", "torch" in sys.modules, flush=True))
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    print("left:", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_looking_at_a_configuration_imports_no_torch(shell):
    done = shell.run("-c", LOOKING, env={"PYTHONPATH": str(ROOT)}, code=0)
    assert re.findall("^looked: (.*)", done.stdout, re.MULTILINE) == ["False"] * len(LOOKS)
    assert re.findall("^left: (.*)", done.stdout, re.MULTILINE) == [*"00000222"]


@pytest.mark.parametrize("words", [["max_steps=1"], ["-m", "seed=0,1", "max_steps=1"]])
def test_who_waits_at_a_terminal_sees_that_a_command_works_before_it_imports_torch(shell, words):
    (shell.folder / "torch.py").write_text("raise SystemExit(9)  # found before the real one")
    env = {"PYTHONPATH": f"{shell.folder}:{ROOT}"}
    process, master = in_terminal(shell, *words, typed=True, env=env)
    assert shown(master).startswith("starting, in outputs/")
    process.wait(timeout=60)


def test_a_terminal_shows_the_folder_of_the_run_its_loss_speed_and_time_left(shell):
    process, master = in_terminal(shell, "epochs=3", "~logger.tensorboard", typed=True)
    text = shown(master)
    assert process.wait(timeout=60) == 0
    assert (shell.folder / text.partition("starting, in ")[2].split()[0] / "result.json").exists()
    for words in ("images/s", "loss ", "<00:0"):  # the time left
        assert words in text
