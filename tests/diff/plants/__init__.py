"""Small scripts, each with one mistake behind a flag; and what `ninefold diff` is to say of it."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import ROOT, Shell

HERE = Path(__file__).parent
PYTHON = sys.executable
RANKS = f"{PYTHON} -m torch.distributed.run --standalone --nproc-per-node 2"


class Plant(NamedTuple):
    """A pair of commands, and what the answer has. {s}: the seed of a start."""

    words: tuple[str, ...]
    expected: dict[str, Any]

    def found(self, shell: Shell, seed: int) -> dict[str, Any]:
        """The answer of `ninefold diff`, as JSON has it."""
        words = [word.replace("{s}", str(seed)) for word in self.words]
        shell.run("-m", "ninefold", "diff", "--json=found.json", *words, code=0)
        found: dict[str, Any] = json.loads((shell.folder / "found.json").read_text())
        return found


def path(script: str) -> Path:
    """Where a script is: here, or shown to readers as an example."""
    shown = ROOT / "examples" / "diff" / script.partition(" ")[0]
    return (shown.parent if shown.exists() else HERE) / script


def one(script: str) -> str:
    return f"{PYTHON} {path(script)} --seed {{s}}"


def two(script: str) -> str:
    return f"{RANKS} {path(script)} --seed {{s}}"


def resumed(lost: str) -> tuple[str, ...]:
    first = one("resumed.py --out {out}")
    return "--resume", first, f"{first} --resume {{out}}/last.pt --lose {lost}"


BEHIND = {"behind": ["equal"]}
PLANTS = {
    "accumulation": Plant(
        (one("accumulate.py"), one("accumulate.py --micro 4 --undivided")),
        {"kind": "accumulation", "step": 1},
    ),
    "tokens": Plant(
        (one("tokens.py"), two("tokens.py --mean ranks")),
        {"kind": "weights-of-examples", "phase": "loss"},
    ),
    "epoch": Plant(
        (two("ranks.py"), two("ranks.py --fixed-order")), {"kind": "epoch", "step": 5, **BEHIND}
    ),
    "seeds": Plant(
        (two("ranks.py --dropout"), two("ranks.py --dropout --rank-seeds")),
        {"kind": "dropout", "step": 1, "text": "differs on rank 1", **BEHIND},
    ),
    "schedule": Plant(
        resumed("schedule"), {"lost": ["learning rate"], "kind": "learning-rate", "step": 7}
    ),
    "optimizer": Plant(resumed("optimizer"), {"lost": ["learning rate", "optimizer"], "step": 6}),
    "scaler": Plant(resumed("scaler"), {"lost": ["GradScaler"], "kind": "scaler", "step": 6}),
    "position": Plant(
        resumed("position"), {"lost": ["position in the data"], "kind": "position", "step": 6}
    ),
    "noise": Plant((one("starts.py --noise"),), {"needed": ["numpy"], "phase": "input", "step": 1}),
    "threads": Plant(
        (one("starts.py --threads"),),
        {"text": "an order of additions that is not fixed", "needed": None, "phase": "input"},
    ),
    "batchnorm": Plant(
        (one("ranks.py --batchnorm"), two("ranks.py --batchnorm")),
        {"kind": "batchnorm", "step": 1, "behind": ["rounding"]},
    ),
    "tied": Plant(
        (one("networks.py"), one("networks.py --head copy")), {"kind": "tied", "step": 1}
    ),
    "frozen": Plant(
        (one("networks.py --frozen body"), one("networks.py --frozen encoder")),
        {"kind": "not-trained", "step": 1, "name": "body.0.weight"},
    ),
    "half": Plant(
        (one("networks.py"), one("networks.py --half")), {"kind": "underflow", "step": 1}
    ),
}
EQUAL, ROUNDING = {"kind": "equal"}, {"kind": "rounding"}
CONTROLS = {
    "divided": Plant((one("accumulate.py"), one("accumulate.py --micro 4")), ROUNDING),
    "counted": Plant((one("tokens.py"), two("tokens.py")), ROUNDING),
    "seeded": Plant((one("starts.py"),), {**EQUAL, "needed": []}),
    "complete": Plant(resumed("nothing"), {**EQUAL, "lost": [], "shift": 5}),
    "tidied": Plant((one("networks.py"), one("networks.py --tidy")), ROUNDING),
    "machine": Plant((one("machine.py"), one("machine.py --threads 2 --workers 2")), ROUNDING),
}


def wrong(plant: Plant, found: dict[str, Any]) -> dict[str, Any]:
    """What of an answer is not as expected."""
    shown = {**found, "behind": [each["kind"] for each in found["behind"]]}
    return {
        key: shown[key]
        for key, value in plant.expected.items()
        if (value not in shown[key] if key == "text" else shown[key] != value)
    }
