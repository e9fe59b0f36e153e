"""A worker process, from its fork to its end."""

import pytest
import torch

from ninefold.checkpoint.manifest import NEW
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError, FolderInUse, PeerError, ResourceError
from ninefold.launch import worker
from ninefold.launch.failures import Raised, failure_of
from tests.conftest import ROOT, wait_until


def test_a_launcher_that_is_killed_while_a_worker_starts_leaves_none(shell):
    options = ("epochs=100000", "threads=1", "logger=quiet")
    script = str(ROOT / "tests/launch/slow_start.py")
    process = shell.start(script, *options, env={"PYTHONPATH": str(ROOT)})
    wait_until((shell.folder / "forked").exists, process)
    shell.kill(process)


def test_of_two_runs_in_a_folder_the_one_that_trains_has_written_its_job(tmp_path, monkeypatch):
    monkeypatch.setattr("ninefold.launch.run_folder.LOCK_WAIT_SECONDS", 0)
    first, second = (
        RunSpec("train", f"seed: {seed}", tmp_path, 0.0, overrides_yaml=f"- seed={seed}")
        for seed in (0, 1)
    )
    overrides = tmp_path / ".hydra" / "overrides.yaml"
    overrides.parent.mkdir()
    overrides.write_text("- seed=1")  # Hydra's, of the second command

    def train(spec: RunSpec, inline: bool) -> None:
        with pytest.raises(FolderInUse):
            worker.run_spec(second, inline=True)

    monkeypatch.setitem(worker.COMMANDS, "train", train)
    worker.run_spec(first, inline=True)
    assert (tmp_path / "config.yaml").read_text() == "seed: 0"
    assert overrides.read_text() == "- seed=0"


def test_no_part_of_a_save_that_was_killed_is_left_once_a_run_begins(tmp_path, monkeypatch):
    (new := tmp_path / "checkpoints" / NEW).parent.mkdir()
    new.touch()
    left: list[bool] = []
    monkeypatch.setitem(worker.COMMANDS, "train", lambda spec, inline: left.append(new.exists()))
    worker.run_spec(RunSpec("train", "", tmp_path, started=0.0, resume=True), inline=True)
    assert left == [False]


NCCL, CUDA = torch.distributed.DistBackendError, torch.AcceleratorError


@pytest.mark.parametrize(("error", "kind", "line"), [
    (RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with ..."),
     ConfigError, "error: CUDA=initialized: a module that was imported before"),
    (NCCL("NCCL error in: x.cpp\nLast error:\nError: failed to extend /dev/shm/nccl-8 to 9 bytes, "
          "error: No space left on device (28)"),
     ResourceError, "error: file=/dev/shm: NCCL found no room there ("),
    (CUDA("CUDA error: uncorrectable ECC error encountered\nCUDA kernel"),
     ResourceError, "error: device=cuda: the GPU reports an error (CUDA error: uncorrectable ECC "),
    (CUDA("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous"),
     ConfigError, "error: device=cuda: a kernel got an index that is out of range, such as a label "
     "or a token (CUDA error: device-side assert triggered); traceback in LOG; train once with "),
    (CUDA("CUDA error: no kernel image is available for execution on the device\nSearch for"),
     ConfigError, "error: device=cuda: this torch has no kernels for this GPU (CUDA error: no "),
    (CUDA("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
     ResourceError, "error: device=cuda: the GPU reports an error (CUDA error: CUDA-capable "
     "device(s) is/are busy or unavailable); traceback in LOG; see dmesg and nvidia-smi, which "
     "also says whether it takes one process only"),
    (NCCL("NCCL error in: x.cpp, invalid usage\nLast error:\nDuplicate GPU detected : rank 1 and "
          "rank 0 both on CUDA device 1b000"), ConfigError, "error: CUDA_VISIBLE_DEVICES="),
    (torch.distributed.DistNetworkError(
        "The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
     ResourceError, "error: MASTER_PORT=29500: another program has this port (The server socket "),
    (NCCL("NCCL error\nLast error:\nsocket closed"),
     PeerError, "error: rank=1: a peer went away or did not answer (socket closed)"),
    (RuntimeError("Caught RuntimeError in replica 0\nRuntimeError: pool_backward_cuda does not "
                  "have a deterministic implementation, but you set 'torch.use_"), ConfigError,
     "error: deterministic=true: an operation has no deterministic kernel (RuntimeError: p"),
    (OSError(28, "No space left on device", "last.pt"),
     ResourceError, "error: file=last.pt: No space left on device; traceback in "),
])  # fmt: skip
def test_an_error_of_a_library_is_one_line_with_what_a_user_can_do(
    error, kind, line, tmp_path, monkeypatch
):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    failure = failure_of(Raised(error, tmp_path / "run.rank1.log", rank=1))
    assert type(failure) is kind
    assert str(failure).replace(str(tmp_path / "run.rank1.log"), "LOG").startswith(line)
    assert "\n" not in str(failure)


def test_no_peer_is_blamed_where_there_is_none(tmp_path):
    error = RuntimeError("Error 111 connecting to cache:6379. Connection refused.")
    assert not isinstance(failure_of(Raised(error, tmp_path / "run.log", rank=0)), PeerError)
