"""What did not take effect is not compared, whatever was to change."""

from __future__ import annotations

from typing import Any

import pytest

from ninefold.bench.change import require_effect
from ninefold.bench.precisions import PRECISIONS
from ninefold.errors import ConfigError
from tests.bench.test_strategies import BY_DDP, DDP, NONE, rank

CHANGES = {
    **{name: (change,) for name, change in PRECISIONS.items()},
    "none": NONE.changes,
    "ddp": DDP.changes,
}


def computes(dtype: str | None, **more: object) -> list[Any]:
    said = {"computes": dtype, "framework": None, "called": True, **more}
    return [{"precision": said}]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"fp32": computes("float32"), "bf16": computes("bfloat16"), "fp16": computes(None)}, None),
        (
            {name: computes("bfloat16") for name in ("fp32", "bf16")},
            "--precisions=fp32,bf16: the script sets its precision itself: the commands do not "
            "differ; all compute in bfloat16; take that out",
        ),
        (
            {name: computes(None, called=False) for name in ("fp32", "bf16")},
            "no network of torch.nn is seen in its first step: the commands do not differ",
        ),
        (
            {"fp32": computes("float32"), "fp16": computes("bfloat16", framework="lightning")},
            "fp16 computes in bfloat16; float16 was asked for; take",
        ),
        (
            {"fp32": computes("float32"), "fp16": computes("float32")},
            "fp16 is not tried in a loop without a framework; the loop would need a GradScaler",
        ),
        ({"none": [rank(1)], "ddp": BY_DDP}, None),
        (
            {"none": [rank(1)], "ddp": [rank(1), rank(1)]},
            "each of the 2 processes of ddp trains a copy of its own; the script "
            "joins no process group, though torchrun has started it; have the script",
        ),
        (
            {"none": [rank(1)], "ddp": [rank(2), rank(2)]},
            "whether the 2 processes of ddp average gradients is not seen; no ",
        ),
        (
            {"none": BY_DDP, "ddp": BY_DDP},
            "--strategies=none,ddp: the script sets its processes itself: the commands do not "
            "differ; all train in 2 processes; ",
        ),
        (
            {"none": [rank(1)], "ddp": [rank(4, averages="FSDPModule")] * 4},
            "ddp trains in 4 processes; 2 were asked for; have the script",
        ),
    ],
)
def test_what_did_not_take_effect_is_not_compared(said: Any, words: str | None) -> None:
    changes = {name: CHANGES[name] for name in said}
    if words is None:
        require_effect(changes, said)
        return
    with pytest.raises(ConfigError, match=words):
        require_effect(changes, said)


def test_what_a_script_chooses_is_asked_once_all_have_said_it_and_copies_are_told_at_once() -> None:
    require_effect(CHANGES, {"fp32": computes("bfloat16")})
    with pytest.raises(ConfigError, match="=none,ddp: each of the 2 processes"):
        require_effect(CHANGES, {"ddp": [rank(1), rank(1)]})
