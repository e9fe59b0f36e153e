"""What parallel=fsdp cannot be combined with is refused before a process starts."""

from __future__ import annotations

from typing import Any

import pytest

from ninefold.config.sharding import parts_of_a_batch, problems, require_whole_copies
from ninefold.errors import ConfigError
from tests.conftest import Shell
from tests.faults.runs import one_after_another

FSDP = {"_target_": "ninefold.parallel.fsdp.FSDP"}
DDP = {"_target_": "ninefold.parallel.ddp.DDP"}


def job(optimizer: str, fused: bool, parallel: Any = FSDP, mode: str | None = None) -> Any:
    return {
        "parallel": parallel,
        "optimizer": {"_target_": optimizer, "fused": fused},
        "compile": {"mode": mode},
    }


@pytest.mark.parametrize(
    ("optimizer", "fused", "fits"),
    [
        ("torch.optim.SGD", True, False),
        ("torch.optim.SGD", False, True),
        ("torch.optim.Adagrad", True, False),
        ("torch.optim.AdamW", True, True),
        ("torch.optim.Adam", True, True),
        ("mine.SGD", True, True),
    ],
)
def test_fused_optimizers_without_a_rule_for_parts_are_refused(
    optimizer: str, fused: bool, fits: bool
) -> None:
    assert [failure.field for failure in problems(job(optimizer, fused))] == (
        [] if fits else ["optimizer.fused"]
    )
    assert not problems(job(optimizer, fused, DDP))


def test_compile_modes_that_record_cuda_graphs_are_refused() -> None:
    (failure,) = problems(job("torch.optim.AdamW", True, mode="reduce-overhead"))
    assert failure.field == "compile.mode"
    assert not problems(job("torch.optim.AdamW", True, mode="default"))


TENSOR = {"_target_": "ninefold.parallel.tensor.TensorParallel", "colwise": ["a"], "rowwise": []}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, None),
        ({"parallel": {**TENSOR, "colwise": None}}, "parallel"),
        ({"optimizer": {"_target_": "torch.optim.AdamW", "fused": True}}, "optimizer.fused"),
        ({"optimizer": {"_target_": "torch.optim.SGD", "foreach": True}}, "optimizer.foreach"),
        ({"amp": {"scaler": True}}, "amp.scaler"),
        ({"clip_grad_norm": 1.0}, "clip_grad_norm"),
        ({"clip_grad_value": 1.0}, "clip_grad_value"),
        ({"compile": {"mode": "default"}}, "compile.mode"),
        ({"launch": {"dry": True}}, "launch.dry"),
    ],
    ids=str,
)
def test_what_cannot_work_on_parts_beside_whole_parameters_is_refused(
    change: Any, field: str | None
) -> None:
    fits = {
        **job("torch.optim.AdamW", False, TENSOR),
        "amp": {"scaler": False},
        "clip_grad_norm": None,
        "launch": {"dry": False},
    }
    found = problems({**fits, **change})
    assert [failure.field for failure in found] == ([field] if field else [])
    assert all("\n" not in str(failure) for failure in found)


def test_processes_that_share_a_batch_need_not_divide_it() -> None:
    assert (parts_of_a_batch(TENSOR, 3), parts_of_a_batch(FSDP, 3)) == (1, 3)


@pytest.mark.parametrize(
    ("replicas", "processes", "allowed"),
    [(3, 4, "1, 2 or 4 are allowed"), (2, 1, "1 is allowed"), (4, 6, "1, 2, 3 or 6 are allowed")],
)
def test_copies_must_divide_the_processes(replicas: int, processes: int, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_whole_copies(replicas, processes)
    name = "process" if processes == 1 else "processes"
    assert str(caught.value) == (
        f"error: parallel.replicas={replicas}: does not divide {processes} {name}; {allowed}; "
        "choose one"
    )
    require_whole_copies(processes, processes)


def test_one_line_says_so_before_a_folder_is_made(shell: Shell) -> None:
    fused, copies = one_after_another(
        shell,
        ["train.py", "parallel=fsdp", "optimizer=sgd"],
        ["train.py", "parallel=fsdp", "parallel.processes=4", "parallel.replicas=3"],
    )
    assert (fused.returncode, fused.stderr) == (
        2,
        "error: optimizer.fused=true: fused SGD has no rule for sharded parameters; Adam and AdamW "
        "have one; set optimizer.fused=false\n",
    )
    assert copies.returncode == 2
    assert copies.stderr.startswith("error: parallel.replicas=3: does not divide 4 processes;")
    assert not (shell.folder / "outputs").exists()
