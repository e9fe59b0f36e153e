"""checkpoint_activations: the same training in less memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ninefold.errors import ConfigError
from ninefold.train.activations import checkpoint_activations


def network() -> nn.Sequential:
    torch.manual_seed(0)
    parts = [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3)),
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(8 * 12 * 12, 10)),
    ]
    return nn.Sequential(*parts)


def trained(model: nn.Module, dtype: torch.dtype | None) -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(1)
    for _ in range(4):
        inputs, targets = torch.randn(6, 3, 16, 16), torch.randint(0, 10, (6,))
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            output = model(inputs)
        nn.functional.cross_entropy(output.float(), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {key: value.clone() for key, value in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_weights_and_statistics_are_bitwise_those_without_checkpoints(
    dtype: torch.dtype | None,
) -> None:
    plain = network()
    other = copy.deepcopy(plain)
    checkpoint_activations(other, ["0", "1"])
    expected, found = trained(plain, dtype), trained(other, dtype)
    assert list(expected) == list(found)
    for key, value in expected.items():
        assert torch.equal(value, found[key]), key


def test_a_compiled_network_may_have_checkpointed_parts() -> None:
    plain = network()
    for part in plain.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # compiled code draws other random numbers
    other = copy.deepcopy(plain)
    checkpoint_activations(other, ["0", "1"])
    other.compile(backend="aot_eager")
    expected, found = trained(plain, None), trained(other, None)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # other tests count too


def saved_bytes(model: nn.Module) -> int:
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(64, 3, 16, 16))
    return sum(seen.values())


def test_a_forward_pass_keeps_less_for_the_backward_pass() -> None:
    plain, other = network(), network()
    checkpoint_activations(other, ["0", "1"])
    assert saved_bytes(other) < 0.5 * saved_bytes(plain)


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (["2.x"], "checkpoint_activations=2.x: the model has no part 2.x; "),
        (["0", "0.1"], "checkpoint_activations=0.1: it is part of 0; "),
        (["1", "1"], "checkpoint_activations=1: it is named twice; "),
        (["parts"], "checkpoint_activations=parts: it is a list of parts, which are called one by"),
    ],
)
def test_parts_that_cannot_be_checkpointed_are_one_line(names: list[str], wrong: str) -> None:
    model = network()
    model.add_module("parts", nn.ModuleList([nn.Identity()]))
    with pytest.raises(ConfigError) as raised:
        checkpoint_activations(model, names)
    assert str(raised.value).startswith(f"error: {wrong}")
