"""Failures: one line, an exit code and a class each; the line of the user's code; limits."""

import errno
import importlib.util
import json
import pickle
import resource
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.distributed import DistBackendError, DistNetworkError

from ninefold.engine.amp import Amp
from ninefold.errors import (
    KINDS,
    ConfigError,
    FailureReport,
    ResourceError,
    error_of_exit,
    is_users,
    memory_failure,
    users_line,
)
from ninefold.launch import workers
from ninefold.launch.failures import Raised, failure_of
from tests.conftest import ROOT

CODE = """
import json
import sys
import torch

def mine(): raise ValueError("mine")
def in_python(): json.loads("{")
def in_torch(): torch.zeros(2) @ torch.zeros(3)
def through_a_library():
    return torch.utils.data.default_collate([Odd()])
class Odd:
    def __getattr__(self, name): raise ValueError("deep")
def from_another():
    try:
        mine()
    except ValueError as error:
        raise KeyError("second") from error
def leaves(): sys.exit(0)
def breaks(): raise KeyboardInterrupt
def stops(): raise KeyboardInterrupt(2)
class Own(BaseException): pass
def own(): raise Own("odd")
"""


@pytest.fixture
def users(tmp_path: Path) -> ModuleType:
    path = tmp_path / "users.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("users", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error  # its outermost frames are of this test, which is nobody's library
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine", "def mine"),
        ("in_python", "def in_python"),
        ("in_torch", "def in_torch"),
        ("from_another", "raise KeyError"),
    ],
)
def test_the_innermost_line_of_the_users_own_code_is_named(users, name, text):
    error = raised(lambda: getattr(users, name)())
    number = next(n for n, line in enumerate(CODE.splitlines(), 1) if text in line)
    assert users_line(error) == f"{users.__file__}:{number}"


def test_an_error_that_was_raised_from_the_users_is_at_its_line(users):
    outer = RuntimeError("of a library")
    outer.__cause__ = raised(users.mine)
    assert users_line(outer) == f"{users.__file__}:6"


def test_a_file_that_is_not_python_is_named_by_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ndef f(:\n")
    error = raised(lambda: compile(path.read_text(), str(path), "exec"))
    assert users_line(error) == f"{path}:2"


def test_code_of_ours_of_python_and_of_packages_is_nobodys_own():
    for file in (
        ROOT / "ninefold" / "main.py",
        ROOT / "train.py",
        ROOT / "ninefold" / "extensions" / "fits" / "steps.py",
        json.__file__,
        torch.__file__,
        "/home/someone/.local/lib/python3.11/site-packages/x.py",
        "/usr/lib/python3/dist-packages/x.py",
        "<frozen importlib>",
        "yaml/_yaml.pyx",
    ):
        assert not is_users(str(file)), file
    assert is_users(str(ROOT / "my_model.py"))


def test_what_ends_the_process_in_the_users_code_is_refused_but_not_ctrl_c(users):
    told = {"leaves": "SystemExit: 0", "own": "Own: odd", "breaks": "KeyboardInterrupt"}
    for name, said in told.items():
        failure = error_of_exit(raised(getattr(users, name)))
        assert failure.code == 2
        assert failure.wrong == f"it raised {said}"
        assert failure.value.startswith(f"{users.__file__}:")
    assert error_of_exit(raised(users.stops)) is None  # as handlers of signals do
    assert error_of_exit(SystemExit(0)) is None  # of ours


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (OSError(errno.EMFILE, "Too many open files", "x"), "files"),
        (OSError(errno.ENFILE, "Too many open files in system"), "files"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "processes"),
        (RuntimeError("can't start new thread"), "processes"),
        (RuntimeError("Resource temporarily unavailable"), "processes"),
        (MemoryError(), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
         "memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "memory"),
    ],
    ids=str,
)  # fmt: skip
def test_a_limit_on_files_processes_or_memory_is_a_resource_whatever_raises_it(error, field):
    outer = RuntimeError("it cannot be built")
    outer.__cause__ = error
    for each in (error, outer):
        failure = memory_failure(each, "found")
        assert (failure.code, failure.field) == (5, field)
    assert memory_failure(RuntimeError("a shape is wrong"), "found") is None


def test_a_thread_that_finds_no_room_in_a_limited_address_space_lacks_memory():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 46, hard))
    try:
        failure = memory_failure(RuntimeError("can't start new thread"), "found")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert (failure.code, failure.field) == (5, "memory")


def test_a_failure_is_one_line_whatever_it_was_told():
    failure = ConfigError("a\nb", "x\r\ny", "line 1\n\n  line 2", "\ttabs\t", "end here\n")
    assert str(failure) == "error: a b=x y: line 1 line 2; tabs; end here"
    assert len(str(failure).splitlines()) == 1


NCCL = "NCCL error in: ProcessGroupNCCL.cpp:94, {}, NCCL version 2.27.5\n{}\nLast error:\n{}"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee"), "2 GiB."),
        (torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
         "`cublasCreate(handle)`"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "CUDNN_STATUS_ALLOC_FAILED"),
        (DistBackendError(NCCL.format("unhandled cuda error", "ncclUnhandledCudaError: Call to "
                                      "CUDA function failed.", "Cuda failure 2 'out of memory'")),
         "=exhausted: Cuda failure 2 'out of memory'"),
        (torch.OutOfMemoryError("Caught OutOfMemoryError in replica 1 on device 1.\nOriginal "
                                "Traceback:\ntorch.OutOfMemoryError: CUDA out of memory. Tried"),
         "CUDA out of memory. Tried"),
    ],
    ids=range(6),
)  # fmt: skip
def test_a_gpu_that_is_out_of_memory_says_so_in_many_words_and_each_is_known(tmp_path, error, told):
    failure = failure_of(Raised(error, tmp_path, 0))
    assert failure.code == 5
    assert isinstance(failure, ResourceError)
    assert failure.field == "memory"
    assert f"{told}; " in str(failure)


NO_LOOPBACK = """The client socket has failed to connect to any network address of (127.0.0.1, 4).
The client socket has failed to connect to 127.85.0.0:42809 (errno: 101 - )."""


def test_a_host_without_loopback_is_no_bug(monkeypatch):
    def unreached(*given: object, **more: object) -> None:
        raise DistNetworkError(NO_LOOPBACK)

    monkeypatch.setattr(workers, "TCPStore", unreached)
    with pytest.raises(ResourceError, match=r"interface=lo: the launcher does not reach its own"):
        workers.loopback_store()


@pytest.mark.parametrize(
    ("dtype", "do"), [("bfloat16", "leave that out (amp=fp32)"), ("float32", "please report it")]
)
def test_what_torch_cannot_do_under_autocast_names_the_precision(tmp_path, dtype, do):
    with pytest.raises(RuntimeError) as raised:
        Amp(dtype).wrap(torch.nn.Linear(3, 4))(torch.zeros(2, 5))
    frames = raised.value.__traceback__
    assert frames is not None
    error = raised.value.with_traceback(frames.tb_next)  # without this line, which is a user's
    assert do in str(failure_of(Raised(error, tmp_path, 0)))


def test_each_kind_of_failure_has_its_documented_exit_code():
    assert {name: kind.code for name, kind in KINDS.items()} == {
        "Failure": 1, "ConfigError": 2, "CheckpointError": 3, "DataError": 4, "ResourceError": 5,
        "NumericsError": 6, "PeerError": 7, "Slower": 8, "Parted": 8, "Undecided": 9,
        "Preempted": 75, "Interrupted": 130, "FolderInUse": 2, "ProcessNotEnded": 7,
        "NoReader": 141,
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_relayed_failure_keeps_its_class_line_code_and_status(kind):
    failure = kind("loss", "nan", "not finite", "a number", "lower the rate")
    report = FailureReport.of(failure, rank=3)
    read = FailureReport.read(json.dumps(asdict(report)))
    assert read == report
    relayed = read.failure
    assert type(relayed) is kind
    assert str(relayed) == str(failure)
    assert (relayed.code, relayed.status) == (failure.code, failure.status)
    assert relayed.parts == ["loss", "nan", "not finite", "a number", "lower the rate"]


def test_a_failure_survives_pickling_as_hydras_launchers_do_it():
    failure = ConfigError("seed", -1, "not allowed", "0 or more", "correct seed")
    copied = pickle.loads(pickle.dumps(failure))
    assert (type(copied), str(copied), copied.field) == (ConfigError, str(failure), "seed")


def test_a_run_that_diverged_or_was_interrupted_is_not_called_failed():
    statuses = {name: kind.status for name, kind in KINDS.items() if kind.status != "failed"}
    stopped = {"Preempted": "preempted", "Interrupted": "preempted"}
    assert statuses == {"NumericsError": "diverged", **stopped}
