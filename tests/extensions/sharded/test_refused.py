"""What fsdp refuses is one line, before a process starts."""

import re
from typing import Any

import pytest

from benchmarks import ours
from ninefold.config.combinations import problems
from ninefold.config.options import refused_by
from ninefold.errors import ConfigError

FSDP = "ninefold.extensions.sharded.fsdp.FSDP"
ADAMW, SGD = ({"_target_": f"torch.optim.{name}", "fused": True} for name in ("AdamW", "SGD"))
ALLOWED: list[dict[str, Any]] = [
    {"optimizer": ADAMW, "compile": {"mode": "default"}},
    {"optimizer": {**SGD, "fused": False}},
    {"optimizer": {"_target_": "mine.SGD", "fused": True}},
]


@pytest.mark.parametrize("row", refused_by(FSDP), ids=lambda row: row.wrong[:40])
def test_each_row_refuses_its_example_in_one_line_of_three_parts(row):
    (failure,) = problems(row.example, [row])
    assert re.fullmatch(rf"error: {re.escape(row.field)}=.+: [^;]+(; [^;]+){{2,}}", str(failure))
    assert not set("{}") & set(str(failure))


@pytest.mark.parametrize("job", ALLOWED, ids=str)
def test_what_can_be_honored_is_allowed(job):
    assert problems(job, refused_by(FSDP)) == []


def test_the_optimizer_of_conf_has_the_keys_that_the_rows_ask_for():
    line = r"^error: optimizer\.fused=true: fused SGD has no rule for sharded"
    with pytest.raises(ConfigError, match=line):
        ours.job("parallel=fsdp", "optimizer=sgd")
