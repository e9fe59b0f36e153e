"""What fsdp and tensor refuse is one line, before a process starts."""

import re
from typing import Any

import pytest

from benchmarks import ours
from ninefold.config.combinations import problems
from ninefold.config.options import refused_by
from ninefold.errors import ConfigError

FSDP, TENSOR = (
    "ninefold.extensions.sharded.fsdp.FSDP",
    "ninefold.extensions.sharded.tensor.TensorParallel",
)
PLAN = {"colwise": ["a"], "rowwise": None}
ADAMW, SGD = ({"_target_": f"torch.optim.{name}", "fused": True} for name in ("AdamW", "SGD"))
ROWS = [row for target in (FSDP, TENSOR) for row in refused_by(target)]
ALLOWED: list[tuple[str, dict[str, Any]]] = [
    (FSDP, {"optimizer": ADAMW, "compile": {"mode": "default"}}),
    (FSDP, {"optimizer": {**SGD, "fused": False}}),
    (FSDP, {"optimizer": {"_target_": "mine.SGD", "fused": True}}),
    (FSDP, {"parallel": {"processes": "auto", "replicas": 3}}),
    (TENSOR, {"parallel": PLAN, "optimizer": {**ADAMW, "fused": False}, "clip_grad_norm": None}),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.wrong[:40])
def test_each_row_refuses_its_example_in_one_line_of_three_parts(row):
    (failure,) = problems(row.example, [row])
    assert re.fullmatch(rf"error: {re.escape(row.field)}=.+: [^;]+(; [^;]+){{2,}}", str(failure))
    assert not set("{}") & set(str(failure))


@pytest.mark.parametrize(("target", "job"), ALLOWED, ids=str)
def test_what_can_be_honored_is_allowed(target, job):
    assert problems(job, refused_by(target)) == []


def test_processes_that_share_a_batch_need_not_divide_it():
    plan = ("parallel.colwise=[a]", "parallel.processes=2", "optimizer.fused=false")
    assert ours.job("parallel=tensor", *plan, "batch_size=15").processes == 2


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("parallel=fsdp batch_size=15", "batch_size=15: does not divide by 2 processes"),
        ("parallel=fsdp optimizer=sgd", "optimizer.fused=true: fused SGD has no rule for sharded"),
        ("parallel=tensor", "parallel.colwise=null: no layer is named to be split; "),
        ("parallel=fsdp parallel.processes=4 parallel.replicas=3",
         "parallel.replicas=3: does not divide 4 process(es); 1, 2 or 4 are allowed; choose one"),
        ("parallel=fsdp parallel.replicas=3",  # of auto: two on a CPU
         "parallel.replicas=3: does not divide 2 process(es); 1 or 2 are allowed; choose one"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_honored_is_refused(overrides, line):
    with pytest.raises(ConfigError, match=f"^error: {re.escape(line)}"):
        ours.job(*overrides.split())
