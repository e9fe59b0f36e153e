"""Checks and errors: what is wrong is found before anything starts, and told in one line."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch.distributed import DistBackendError

from ninefold.config.rules import breach, inner_keys, problems
from ninefold.config.schema import KEYS
from ninefold.errors import (
    KINDS,
    ConfigError,
    Failure,
    FailureReport,
    ResourceError,
    memory_failure,
)
from ninefold.launch.failures import Raised, failure_of
from ninefold.places import option_files
from ninefold.study.max_batch import of_memory

# Of these, any text or an empty list is allowed.
ANY = (
    *("dataset.root", "dataset.cache_dir", "dataset.class_names", "dataset.mask_suffix"),
    *("dataset.train", "dataset.test", "dataset.keys", "dataset.name", "dataset.config"),
    *("dataset.revision", "dataset.image", "dataset.label", "dataset.landmarks"),
    *("ckpt", "model.output", "task.loss", "optimizer.groups", "init", "freeze"),
    *("init_without", "checkpoint_activations", "parallel.units", "parallel.colwise"),
    "parallel.rowwise",
)
FIELDS = [field for field, key in KEYS.items() if not key.is_section and field not in ANY]


def nested(field: str, value: Any) -> dict[str, Any]:
    group, _, key = field.rpartition(".")
    return {group: {key: value}} if group else {key: value}


NEVER = [math.nan, math.inf, -math.inf, [], "no such value"]
MAYBE = (("dataset.shape", []), ("task.shape", []))  # the shape of an example that is one number
BELOW_0 = ("report.target",)  # which may be -1 too: the score of a task may be any number


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in FIELDS
        for value in (*NEVER, *[-1] * (field not in BELOW_0))
        if (field, value) not in MAYBE
    ],
)
def test_every_field_refuses_what_cannot_be_meant(field: str, value: Any) -> None:
    (problem,) = problems(nested(field, value), {field.partition(".")[0]})
    assert isinstance(problem, ConfigError)
    assert str(problem).startswith(f"error: {field}={value}: not allowed; ")
    assert str(problem).endswith(f"; correct {field}")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("amp.growth_factor", 1.0, False),
        ("amp.growth_factor", 1.5, True),
        ("amp.backoff_factor", 0.0, False),
        ("amp.backoff_factor", 0.5, True),
        ("amp.backoff_factor", 1.0, False),  # torch's GradScaler insists
        ("optimizer.lr", 0, False),
        ("optimizer.weight_decay", 0, True),
        ("epochs", 0, True),
        ("seed", 0, True),
        ("batch_size", 0, False),
        ("log_every", 0, False),
        ("max_steps", None, True),
        ("threads", None, False),
        ("threads", "auto", True),
        ("checkpoint.keep", 1, False),
        ("checkpoint.keep", 2, True),
        ("checkpoint.every", None, True),
        ("ema", None, True),
        ("ema", 1.0, False),
        ("patience", None, True),
        ("patience", 0, False),
        ("accumulate", 0, False),
        ("launch.max_restarts", 0, True),
        ("launch.timeout", 1e300, False),
        ("threads", 1025, False),
        ("dataset.root", None, True),
        ("dataset.root", "folder", True),
        ("dataset.root", " ", False),
        ("dataset.root", 5, False),
        ("dataset.shape", [1, 8, 8], True),
        ("dataset.shape", [8, 8], True),
        ("dataset.shape", [[3], []], True),
        ("dataset.shape", {"ids": [8]}, True),
        ("dataset.shape", {"ids": "8"}, False),
        ("dataset.shape", [[8], 3], False),
        ("dataset.shape", {}, False),
        ("dataset.shape", None, True),
        ("dataset.shape", [1, 8, 0], False),
        ("dataset.mean", [0.5], True),
        ("dataset.mean", [math.nan], False),
        ("dataset.mean", [], False),
        ("dataset.std", [0.5, 2], True),
        ("dataset.std", [0.5, 0], False),
        ("dataset.limit", 0, False),
        ("dataset.limit", None, True),
        ("model.input_size", None, True),
    ],
)
def test_the_edges_of_what_a_field_may_be(field: str, value: Any, allowed: bool) -> None:
    found = problems(nested(field, value), {field.partition(".")[0]})
    assert (found == []) is allowed


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "path",
    [*ROOT.glob("conf/*.yaml"), *option_files(), *ROOT.glob("experiments/*.yaml")],
    ids=lambda path: path.stem,
)
def test_what_we_configure_ourselves_is_allowed(path: Path) -> None:
    tree = OmegaConf.to_container(OmegaConf.load(path))
    group = f"{path.parent.name}." if path.parent.parent.name == "conf" else ""
    for key, value in tree.items():
        inner = value.items() if isinstance(value, dict) else ()
        for field, each in ((f"{group}{key}", value), *((f"{key}.{n}", v) for n, v in inner)):
            if not isinstance(each, dict):  # it is merged into what the groups say
                assert breach(field, each) == []


# All of a job


def test_a_job_without_problems_has_none() -> None:
    job = {"seed": 0, "batch_size": 64, "checkpoint": {"every": 0, "keep": 2}, "model": None}
    assert problems(job, {"seed", "batch_size", "checkpoint", "model"}) == []


def test_an_unknown_key_is_told_with_the_one_it_resembles() -> None:
    (problem,) = problems({"epocs": 3}, {"epochs", "seed", "batch_size"})
    assert str(problem) == (
        "error: epocs=3: no such key; did you mean epochs?; remove it or correct its name"
    )


def test_an_unknown_key_that_resembles_none_is_told_with_all() -> None:
    (problem,) = problems({"zzz": 3}, {"seed", "epochs"})
    assert "known are epochs, seed" in str(problem)


def test_all_problems_are_told_at_once() -> None:
    job = {"seed": -1, "epochs": True, "extra": 1, "amp": {"scaler": 1, "dtype": "int8"}}
    found = problems(job, {"seed", "epochs", "amp"})
    fields = {str(problem).split("=")[0].removeprefix("error: ") for problem in found}
    assert fields == {"seed", "epochs", "extra", "amp.scaler", "amp.dtype"}
    assert {problem.code for problem in found} == {2}


def test_null_is_spelled_as_in_yaml() -> None:
    (problem,) = problems({"seed": None}, {"seed"})
    assert "seed=null: " in str(problem)


def test_a_group_that_is_left_out_has_no_problems() -> None:
    assert problems({"optimizer": None, "amp": {}}, {"optimizer", "amp"}) == []


@pytest.mark.parametrize("section", ["checkpoint", "clock", "launch"])
def test_a_section_that_is_no_section_is_a_problem(section: str) -> None:
    found = problems({section: 5}, {section})
    assert [str(problem) for problem in found] == [
        f"error: {section}=5: not a section; {section}.NAME=value is allowed; leave {section} whole"
    ]


def test_a_mistyped_key_in_a_section_is_told_where_its_keys_are_known() -> None:
    job = {"amp": {"dtyp": "float16"}, "optimizer": {"momentun": 1}}
    (problem,) = problems(job, {"amp", "optimizer"}, {"amp": ["dtype", "scaler"]})
    assert str(problem).startswith("error: amp.dtyp=float16: no such key; did you mean dtype?; ")


def test_the_keys_of_an_option_are_those_in_its_file() -> None:
    inner = inner_keys({"amp": "fp32", "dataset": "digits"}, False)
    assert inner["amp"] == set(OmegaConf.load(ROOT / "conf" / "amp" / "fp32.yaml"))
    assert inner["dataset"] == set(OmegaConf.load(ROOT / "conf" / "dataset" / "digits.yaml"))
    assert inner["clock"] == {"warmup", "sample", "ceiling", "link"}
    assert "model" not in inner


def test_what_is_required_and_not_there_is_told() -> None:
    required = ["epochs", "clock", "clock.warmup", "checkpoint.keep"]
    found = problems({"checkpoint": {}}, {"checkpoint"}, required=required)
    fields = [str(problem).split("=")[0] for problem in found]
    assert fields == ["error: epochs", "error: clock", "error: checkpoint.keep"]


# Errors


def test_a_failure_reads_field_value_wrong_allowed_do() -> None:
    failure = ConfigError("seed", -1, "not allowed; 0 or more is allowed; correct seed")
    assert str(failure) == "error: seed=-1: not allowed; 0 or more is allowed; correct seed"


def test_a_failure_is_one_line_whatever_it_was_told() -> None:
    failure = ConfigError("a\nb", "x\r\ny", "line 1\n\n  line 2; \ttabs\t; end here\n")
    assert str(failure) == "error: a b=x y: line 1 line 2; tabs; end here"
    assert len(str(failure).splitlines()) == 1


def test_a_very_long_value_is_cut_in_the_line() -> None:
    line = str(ConfigError("seed", "7" * 5000, "not allowed; a number is allowed; correct it"))
    assert len(line) < 300
    assert line.endswith("(5000 characters): not allowed; a number is allowed; correct it")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_running_out_of_memory_is_known_whatever_raises_it(error: Exception) -> None:
    outer = RuntimeError("it cannot be built")
    outer.__cause__ = error
    for each in (error, outer):
        failure = memory_failure(each, "found")
        assert failure is not None
        assert failure.code == 5
    assert memory_failure(RuntimeError("a shape is wrong"), "found") is None


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
def test_a_gpu_that_is_out_of_memory_says_so_in_many_words_and_each_is_known(
    tmp_path: Path, error: Exception, told: str
) -> None:
    failure = failure_of(Raised(error, tmp_path, 0))
    assert failure.code == 5
    assert isinstance(failure, ResourceError)
    assert of_memory(failure)
    assert f"{told}; " in str(failure)


def test_each_kind_of_failure_has_its_documented_exit_code() -> None:
    assert {name: kind.code for name, kind in KINDS.items()} == {
        "Failure": 1, "ConfigError": 2, "CheckpointError": 3, "DataError": 4, "ResourceError": 5,
        "NumericsError": 6, "PeerError": 7, "Slower": 8, "Preempted": 75,
        "Interrupted": 130, "FolderInUse": 2, "ProcessNotEnded": 7, "NoReader": 141,
    }  # fmt: skip


def test_every_kind_of_failure_can_be_relayed() -> None:
    direct = Failure.__subclasses__()
    indirect = [kind for parent in direct for kind in parent.__subclasses__()]
    assert set(KINDS.values()) == {Failure, *direct, *indirect}


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_relayed_failure_keeps_its_class_line_code_and_status(kind: type[Failure]) -> None:
    failure = kind("loss", "nan", "not finite", "a number", "lower the rate")
    report = FailureReport.of(failure, rank=3)
    assert FailureReport.read(report.text) == report
    relayed = FailureReport.read(report.text).failure
    assert type(relayed) is kind
    assert str(relayed) == str(failure)
    assert (relayed.code, relayed.status) == (failure.code, failure.status)
    assert relayed.parts == ["loss", "nan", "not finite", "a number", "lower the rate"]


def test_a_failure_survives_pickling_as_hydras_launchers_do_it() -> None:
    failure = ConfigError("seed", -1, "not allowed; 0 or more; correct seed")
    copied = pickle.loads(pickle.dumps(failure))
    assert (type(copied), str(copied), copied.field) == (ConfigError, str(failure), "seed")


def test_a_run_that_diverged_or_was_interrupted_is_not_called_failed() -> None:
    statuses = {name: kind.status for name, kind in KINDS.items() if kind.status != "failed"}
    stopped = {"Preempted": "preempted", "Interrupted": "preempted"}
    assert statuses == {"NumericsError": "diverged", **stopped}
