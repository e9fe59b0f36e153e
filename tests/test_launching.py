"""How runs are started, and that nothing is left of them."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, Shell, metrics, only_run, result

TRAIN = str(ROOT / "train.py")


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until `path` has content: the run is under way."""
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_folder_holds_what_was_promised_and_learns_the_digits(shell: Shell) -> None:
    done = shell.train()
    assert (done.returncode, done.stderr) == (0, "")
    run = only_run(shell.folder)
    for name in ("config.yaml", ".hydra/config.yaml", ".hydra/overrides.yaml", "run.log",
                 "metrics.jsonl", "checkpoints/last.pt", "checkpoints/best.pt",
                 "checkpoints/manifest.json", "result.json"):  # fmt: skip
        assert (run / name).is_file(), name
    assert list((run / "tensorboard").glob("events.*"))
    found = result(run)
    assert found["accuracy"] >= 0.95
    assert found["accuracy"] == metrics(run, "test_accuracy")[-1]
    assert found["best_accuracy"] == max(metrics(run, "test_accuracy"))
    assert len(found["epoch_seconds"]) == found["epochs"] == 10
    assert sum(found["epoch_seconds"]) == pytest.approx(found["train_seconds"])
    assert found["train_seconds"] < found["total_seconds"]
    assert set(found["phase_seconds"]) == {"data", "transfer", "forward", "backward", "optimizer"}
    assert found["environment"]["versions"]["torch"]


def test_a_failed_cell_says_so_at_once_and_the_other_cells_run_on(shell: Shell) -> None:
    process = shell.start(
        TRAIN, "-m", "dataset.limit=200,10,100", "max_steps=2", "hydra.sweep.dir=sweep"
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    last = shell.folder / "sweep" / "2_none_fp32_seed0" / "result.json"
    assert not last.exists(), "the error came only after the next cell had run"
    _, rest = process.communicate(timeout=120)
    assert line.startswith("error: batch_size=64: larger than the training set; 10 examples found")
    assert rest == ""
    assert process.returncode == 4
    runs = sorted((shell.folder / "sweep").glob("*_none_*"))
    assert [result(run)["status"] for run in runs] == ["ok", "failed", "ok"]
    assert result(runs[1])["error"] == line.strip()
    assert (shell.folder / "sweep" / "report" / "table.md").is_file()


def test_a_loss_that_is_not_finite_ends_the_run_with_6(shell: Shell) -> None:
    done = shell.train("optimizer=sgd", "optimizer.lr=1e30", "log_every=1", "hydra.run.dir=run")
    assert done.returncode == 6
    assert done.stderr.startswith("error: loss=nan: not finite at step ")
    assert done.stderr.count("\n") == 1
    assert result(shell.folder / "run")["status"] == "diverged"


def test_a_killed_worker_is_one_line_and_the_exit_code_of_a_lost_resource(shell: Shell) -> None:
    process = shell.start(TRAIN, "epochs=100000", "hydra.run.dir=run")
    wait_for(shell.folder / "run" / "metrics.jsonl", process)
    os.kill(max(shell.processes()), signal.SIGKILL)  # the youngest is the worker
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 5
    assert stderr.startswith("error: rank=0: its process was killed (SIGKILL);")
    assert stderr.count("\n") == 1
    assert result(shell.folder / "run")["status"] == "failed"


def test_under_torchrun_all_ranks_share_one_run_folder(shell: Shell) -> None:
    done = shell.torchrun("parallel=ddp", "max_steps=20")
    assert done.returncode == 0, done.stderr
    run = only_run(shell.folder)
    assert result(run)["processes"] == 2
    assert [path.name for path in run.glob("result*.json")] == ["result.json"]


def test_under_torchrun_a_signal_saves_before_the_end(shell: Shell) -> None:
    process = shell.start(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(TRAIN, "parallel=ddp", "epochs=100000", "hydra.run.dir=run"),
    )
    wait_for(shell.folder / "run" / "checkpoints" / "manifest.json", process)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: signal=SIGTERM: the run was stopped; it is saved at step ")
    assert shell.train("resume=run", "parallel.processes=2", "epochs=1").returncode == 0


def test_under_torchrun_a_rejected_configuration_is_one_line_for_all_ranks(shell: Shell) -> None:
    done = shell.torchrun("parallel=ddp", "epochs=-1")
    assert done.stderr.count("error: ") == 1
    assert "error: epochs=-1:" in done.stderr
    assert not (shell.folder / "outputs").exists()


def test_under_torchrun_the_strategy_must_take_its_processes(shell: Shell) -> None:
    done = shell.torchrun("parallel=none")
    assert done.stderr.count("error: ") == 1
    assert "error: parallel.processes=1: torchrun started 2" in done.stderr


def test_a_process_in_the_launcher_trains_the_same_weights_as_one_outside(shell: Shell) -> None:
    done = shell.train("-m", "launch.inline=true,false", "max_steps=5", "hydra.sweep.dir=s")
    assert done.returncode == 0, done.stderr
    inline, outside = sorted((shell.folder / "s").glob("*_none_*"))
    assert metrics(inline, "test_loss") == metrics(outside, "test_loss")


def test_a_cell_that_fails_inside_the_launcher_leaves_the_next_a_clean_process_group(
    shell: Shell,
) -> None:
    done = shell.train("-m", "parallel=ddp", "launch.inline=true", "dataset.limit=200,10,100",
                       "max_steps=2", "hydra.sweep.dir=s")  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    runs = sorted((shell.folder / "s").glob("*_ddp_*"))
    assert [result(run)["status"] for run in runs] == ["ok", "failed", "ok"]


def test_ctrl_c_ends_the_run_with_130_and_it_can_be_resumed(shell: Shell) -> None:
    process = shell.start(TRAIN, "parallel=ddp", "launch.cpu_processes=2", "epochs=100000",
                          "checkpoint.every=5", "hydra.run.dir=run")  # fmt: skip
    wait_for(shell.folder / "run" / "checkpoints" / "last.pt", process)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: every process gets it
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.startswith("error: signal=SIGINT: the run was stopped;")
    assert stderr.count("\n") == 1
    assert not shell.survivors()
    assert result(shell.folder / "run")["status"] == "preempted"
    done = shell.train("resume=run", "epochs=1")
    assert done.returncode == 0, done.stderr
    assert result(shell.folder / "run")["status"] == "ok"


def test_a_scheduler_that_stops_a_run_with_a_checkpoint_is_answered_with_75(shell: Shell) -> None:
    process = shell.start(TRAIN, "epochs=100000", "hydra.run.dir=run")
    wait_for(shell.folder / "run" / "checkpoints" / "last.pt", process)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert stderr.startswith("error: signal=SIGTERM: the run was stopped;")
    assert stderr.count("\n") == 1


def test_a_run_under_nohup_outlives_its_terminal(shell: Shell) -> None:
    process = shell.start(TRAIN, "epochs=40", "hydra.run.dir=run", preexec_fn=ignore_hangup)
    wait_for(shell.folder / "run" / "metrics.jsonl", process)
    os.killpg(process.pid, signal.SIGHUP)
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr) == (0, "")


def ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_ctrl_c_between_two_cells_ends_the_sweep(shell: Shell) -> None:
    seeds = ",".join(map(str, range(50)))
    process = shell.start(TRAIN, "-m", f"seed={seeds}", "max_steps=1", "hydra.sweep.dir=s")
    wait_for(shell.folder / "s" / "1_none_fp32_seed1" / "result.json", process)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.startswith("error: signal=SIGINT:")
    assert stderr.count("\n") == 1
    assert len(list((shell.folder / "s").glob("*_none_*"))) < 50
    assert (shell.folder / "s" / "report" / "table.md").is_file()


def test_a_resumed_run_that_fails_does_not_keep_the_result_of_before(shell: Shell) -> None:
    assert shell.train("epochs=1", "amp=scaler", "seed=3", "hydra.run.dir=run").returncode == 0
    process = shell.start(TRAIN, "resume=run", "epochs=100000", "checkpoint.keep=1000")
    wait_for(shell.folder / "run" / "checkpoints" / "step-00000088.pt", process)
    assert not (shell.folder / "run" / "result.json").exists()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    found = result(shell.folder / "run")
    assert (found["status"], found["amp"], found["seed"]) == ("preempted", "scaler", 3)


def test_workers_die_with_a_launcher_that_is_killed(shell: Shell) -> None:
    process = shell.start(TRAIN, "parallel=ddp", "launch.cpu_processes=2", "epochs=100000",
                          "hydra.run.dir=run")  # fmt: skip
    wait_for(shell.folder / "run" / "metrics.jsonl", process)
    assert len(shell.processes()) >= 4  # launcher, forkserver, two workers
    shell.kill(process)


def test_a_forkserver_that_is_killed_takes_its_workers_along_and_is_named(shell: Shell) -> None:
    process = shell.start(TRAIN, "epochs=100000", "hydra.run.dir=run")
    wait_for(shell.folder / "run" / "checkpoints" / "last.pt", process)
    worker = max(shell.processes())
    status = Path(f"/proc/{worker}/status").read_text()
    os.kill(int(status.partition("PPid:\t")[2].split()[0]), signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 5
    assert stderr.startswith("error: forkserver=killed:")
    assert stderr.count("\n") == 1


def test_a_run_folder_has_one_writer(shell: Shell) -> None:
    process = shell.start(TRAIN, "epochs=100000", "hydra.run.dir=run")
    wait_for(shell.folder / "run" / "checkpoints" / "last.pt", process)
    second = shell.train("resume=run")
    assert second.returncode == 2
    assert not (shell.folder / "run" / "result.json").exists()
    assert "another process is writing to this run folder" in second.stderr
    assert second.stderr.count("\n") == 1
    assert process.poll() is None, "the first writer was disturbed"
    shell.kill(process)


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["--info", "config"],
                                       ["epochs=-1"], ["parallel=ddpp"], ["epohcs=1"]])  # fmt: skip
def test_looking_at_a_configuration_imports_no_torch(shell: Shell, arguments: list[str]) -> None:
    program = (
        "import runpy, sys\n"
        f"sys.argv = {[TRAIN, *arguments]!r}\n"
        "try:\n"
        f"    runpy.run_path({TRAIN!r}, run_name='__main__')\n"
        "except SystemExit:\n"
        "    pass\n"
        "assert 'torch' not in sys.modules\n"
        "print('clean')\n"
    )
    done = shell.run("-c", program, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout.endswith("clean\n"), done.stderr


def test_a_study_runs_from_any_working_directory_and_ends_with_its_report(shell: Shell) -> None:
    done = shell.train(
        "experiments=nine_way", "seed=0", "epochs=1", "amp=fp32", "parallel=none,ddp"
    )
    assert done.returncode == 0, done.stderr
    (sweep,) = (shell.folder / "outputs" / "nine_way").iterdir()
    assert "Seconds per epoch" in done.stdout
    for name in ("table.md", "runs.csv", "environment.json", "figure.png"):
        assert (sweep / "report" / name).is_file()
    runs = sorted(sweep.glob("*/result.json"))
    assert [result(run.parent)["study"] for run in runs] == ["nine_way", "nine_way"]


def test_environment_references_are_resolved_in_the_worker_and_written_nowhere(
    shell: Shell,
) -> None:
    secret = "a-secret-that-must-not-be-written"
    done = shell.train(
        "dataset=synthetic", "dataset.root=${oc.env:NINEFOLD_SECRET}", "max_steps=2",
        "dataset.train_count=64", "dataset.test_count=8", env={"NINEFOLD_SECRET": secret},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = only_run(shell.folder)
    stored = OmegaConf.to_container(OmegaConf.load(run / "config.yaml"))
    assert isinstance(stored, dict)
    assert stored["dataset"]["root"] == "${oc.env:NINEFOLD_SECRET}"
    for path in run.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path
    assert secret not in done.stdout


def test_a_terminal_shows_loss_speed_and_time_left(shell: Shell) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = shell.start(TRAIN, "epochs=3", stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while block := os.read(master, 4096):
            shown += block
    except OSError:  # the terminal's other side is closed
        pass
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    assert "images/s" in text
    assert "loss " in text
    assert "<00:0" in text  # the time left
