"""`ninefold bench --precisions` compares a script in several precisions, and sees that it is so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ninefold.bench.command import Command
from ninefold.bench.precisions import in_precisions
from ninefold.errors import ConfigError
from tests.conftest import Shell


def test_each_precision_is_a_command_with_the_variables_that_frameworks_read() -> None:
    made = in_precisions(Command("python train.py", variables={"A": "1"}), ["bf16", "fp32"])
    assert [command.name for command in made] == ["bf16", "fp32"]
    assert made[0].variables == {
        "A": "1", "PL_TRAINER_PRECISION": "bf16-mixed", "LT_PRECISION": "bf16-mixed",
        "ACCELERATE_MIXED_PRECISION": "bf16",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="fp8 is none; fp32, bf16, fp16 are allowed"):
        in_precisions(Command("python train.py"), ["fp32", "fp8"])


def compiled(seen: list[torch.dtype], in_place: bool) -> Any:
    """A compiled network, whose compiler notes in what its linear layer computes."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def noting(graph: torch.fx.GraphModule, examples: object) -> Any:
        def run(*inputs: Any) -> Any:
            found = graph(*inputs)
            seen.append(found[0].dtype)
            return found

        return run

    if in_place:
        model.compile(backend=noting, fullgraph=True)
        return model
    return torch.compile(model, backend=noting, fullgraph=True)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("wanted", "computes"), [("bf16", "bfloat16"), ("fp32", None)])
def test_a_compiled_network_of_a_plain_loop_computes_in_the_precision(
    watching: Callable[..., Any], wanted: str, computes: str | None, in_place: bool
) -> None:
    seen: list[torch.dtype] = []
    watch, model = watching(wanted), compiled(seen, in_place)
    assert model(torch.ones(6, 4)).dtype == torch.float32
    assert (watch.said()["computes"], watch.said()["called"]) == (computes, True)
    watch.calls.end()
    seen.clear()
    model(torch.ones(6, 4))
    if not in_place:  # else it ends with what makes float32 of it
        assert {*seen} == {torch.bfloat16 if wanted == "bf16" else torch.float32}


def test_a_compiled_network_in_the_scripts_own_autocast_is_seen(
    watching: Callable[..., Any],
) -> None:
    watch, model = watching("fp32"), compiled([], in_place=False)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(6, 4))
    assert watch.said()["computes"] == "bfloat16"


def test_a_compiled_network_is_seen_by_a_torch_that_asks_for_autocast_without_a_device(
    watching: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, model = watching("fp32"), compiled([], in_place=False)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda: False)
    watch.see(model, (), {}, outermost=True)
    assert (watch.said()["computes"], watch.said()["called"]) == (None, True)


TWO = """
import os

import torch
from torch import nn

first, second = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (first, second)]
steps = 0
while True:
    for network, optimizer in zip((first, second), optimizers):
        loss = network(torch.randn(32, 64)).square().mean()
        assert loss.dtype == torch.float32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    steps += 1
    if steps == 30 and os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16":
        open("seen.txt", "w").write(str("forward" in vars(second)))
"""


@pytest.mark.slow
def test_a_network_that_comes_after_the_first_optimizers_step_gets_the_precision(
    shell: Shell,
) -> None:
    (shell.folder / "train.py").write_text(TWO)
    command = ("--minutes=0.5", f"{sys.executable} train.py")
    done = shell.run("-m", "ninefold", "bench", "-v", "--precisions=fp32,bf16", *command)
    assert done.returncode in (0, 9), done.stderr
    seen = "Seen in the first step: fp32 in float32, bf16 in bfloat16, by autocast that bench adds."
    assert seen in done.stdout
    assert (shell.folder / "seen.txt").read_text() == "True"
