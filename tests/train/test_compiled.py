"""A compiled network computes the same."""

import pytest
import torch
from torch import nn

from ninefold.engine.amp import Amp
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.errors import ConfigError
from ninefold.train.kernels import Compiled, require_one_device

CPU = torch.device("cpu")
HERE = RankContext(rank=0, world_size=1, device=CPU)


def test_a_compiled_network_computes_and_learns_as_the_plain_one_and_evaluates_as_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    keys = list(model.state_dict())
    network = Amp("bfloat16").wrap(model)
    forward = Single().wrap(Compiled(network, "default", backend="aot_eager"), HERE)
    inputs = torch.randn(4, 6)

    before = torch._dynamo.utils.counters["frames"]["total"]
    forward.train()
    output = forward(inputs)
    output.square().mean().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    network(inputs).square().mean().backward()
    assert output.dtype == torch.float32
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        assert gradient == pytest.approx(parameter.grad, abs=1e-2)
    assert list(model.state_dict()) == keys

    forward.eval()
    frames = torch._dynamo.utils.counters["frames"]["total"]
    assert torch.equal(forward(inputs), network(inputs))
    forward(inputs[:3])
    assert torch._dynamo.utils.counters["frames"]["total"] == frames == before + 1


@pytest.mark.parametrize("replicas", [1, 2])  # of split, of dp
def test_a_process_with_several_devices_is_refused_before_it_trains(replicas):
    require_one_device("default", RankContext(0, 4, CPU, replicas=4))
    with pytest.raises(ConfigError, match=r"^error: compile.mode=default: .*it has 2 here"):
        require_one_device("default", RankContext(0, 1, CPU, replicas=replicas, devices=(CPU, CPU)))
