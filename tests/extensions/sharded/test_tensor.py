"""parallel=tensor on real processes: layers that are split learn what whole ones learn."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ninefold.checkpoint.store import Checkpoints, read
from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.average import Average
from ninefold.engine.batches import Batches
from ninefold.engine.evaluation import evaluate
from ninefold.engine.parallel import RankContext, local_part
from ninefold.engine.parallel.none import Single
from ninefold.engine.state import copied
from ninefold.engine.task import Objective
from ninefold.errors import ConfigError
from ninefold.extensions.sharded.dcp import ShardedWriter
from ninefold.extensions.sharded.fsdp import FSDP
from ninefold.extensions.sharded.tensor import TensorParallel
from ninefold.task.classification import Classification
from tests.extensions.sharded.made import plain
from tests.kit import same
from tests.parallel.ranks import on_ranks

CPU = torch.device("cpu")
BATCH = 6  # which 4 does not divide
COLWISE, ROWWISE = ["head.0"], ["head.2"]
SLOW = pytest.mark.slow


class Network(nn.Module):
    """A convolution, normalized over the batch, and a head of two layers that are split."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(144, 32), nn.ReLU(inplace=True), nn.Linear(32, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(BATCH, 1, 8, 8, generator=generator)
    return images, torch.randint(0, 10, (BATCH,), generator=generator)


class Made:
    """A network whose head is split, its optimizer and its moving average."""

    def __init__(self, strategy: TensorParallel | FSDP, context: RankContext) -> None:
        self.strategy, self.context, self.model = strategy, context, network()
        self.wrapped = strategy.wrap(Objective(self.model, Classification(10)), context)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.average = Average(self.model, 0.9)

    def step(self, number: int) -> float:
        loss = self.wrapped(*batch(number))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update()
        return float(loss.detach())

    def state(self) -> Any:
        state = self.strategy.state(self.model, self.optimizer, self.average.named())
        return copied(state, torch.clone)


@contextmanager
def made(colwise: Any = COLWISE, rowwise: Any = ROWWISE) -> Iterator[Made]:
    strategy = TensorParallel(device="cpu", colwise=colwise, rowwise=rowwise)
    with strategy.join() as context:
        yield Made(strategy, context)


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=SLOW), pytest.param(4, marks=SLOW)])
def test_layers_on_several_processes_learn_what_one_process_learns(ranks, tmp_path):
    def run() -> Any:
        with made() as run:
            losses = [run.step(number) for number in range(5)]
            held = sum(local_part(p).numel() for p in run.model.head.parameters())
            return losses, held, run.state()

    expected, weights = plain(network(), [batch(number) for number in range(5)], lr=1e-2)
    (losses, held, saved), *others = on_ranks(ranks, run, tmp_path)
    assert losses == pytest.approx(expected, abs=1e-5)
    assert all(each == losses for each, *_ in others)
    assert held == pytest.approx(sum(p.numel() for p in network().head.parameters()) / ranks, abs=9)
    assert list(saved["model"]) == list(weights)
    for name, value in weights.items():
        torch.testing.assert_close(saved["model"][name], value, atol=1e-5, rtol=1e-4)


class Dropping(Network):
    """It drops features, which a process has whole, and hidden values, of which it has a part."""

    def __init__(self) -> None:
        super().__init__()
        self.features.append(nn.Dropout(0.3))
        self.head[1] = nn.Sequential(nn.ReLU(), nn.Dropout(0.3))


@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support on cpu")
def test_dropout_keeps_what_every_process_has_alike(tmp_path, monkeypatch):
    def run() -> Any:
        with made() as run:
            losses = [run.step(number) for number in range(5)]
            return losses, {
                name: local_part(p) for name, p in run.model.features.named_parameters()
            }

    monkeypatch.setattr(sys.modules[__name__], "Network", Dropping)
    (losses, weights), (others, same_weights) = on_ranks(2, run, tmp_path)
    assert losses == others
    assert len(set(losses)) == 5
    assert same(weights, same_weights)


def test_what_was_saved_is_loaded_bit_by_bit_by_any_strategy(tmp_path):
    def run() -> Any:
        with made() as run:
            run.step(0)
            saved = run.state()
            parts = run.strategy.parts(run.model, run.optimizer, run.average.named())
            ShardedWriter(Checkpoints(tmp_path / "c", 2)).save({**parts, "step": 1}, best=False)
            others = [Made(run.strategy, run.context), Made(FSDP(device="cpu"), run.context)]
            found = []
            for other in others:
                other.strategy.load(saved, other.model, other.optimizer, other.average.named())
                found.append(other.state())
            return saved, found, [run.step(1), others[0].step(1)]

    (saved, found, losses), _ = on_ranks(2, run, tmp_path)
    sharded = read(tmp_path / "c" / "last.dcp")
    for other in (*found, sharded):
        for key in ("model", "average"):
            assert same(saved[key], other[key]), key
        assert same(saved["optimizer"]["state"], other["optimizer"]["state"])
    assert losses[0] == losses[1]


def test_every_process_takes_the_whole_batch_and_counts_once_in_an_evaluation(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (21, 1, 8, 8), dtype=np.uint8)
    source = HostSource(Examples(images, np.arange(21) % 10))
    prepare = ImagePreparation(1, None, None, None)

    def judged(wrapped: nn.Module, strategy: Any, context: RankContext) -> tuple[float, float, int]:
        """Rank 1 is told to leave, which it cannot do alone."""
        found = evaluate(
            wrapped, source, task=Classification(10), batch_size=8, prepare=prepare,
            parallel=strategy, context=context, interrupted=lambda: context.rank == 1,
        )  # fmt: skip
        return found.loss, found.accuracy, found.count

    def run() -> Any:
        with made() as run:
            rows = Batches(source, 8, 0, prepare, run.context).rows(0)
            return judged(run.wrapped, run.strategy, run.context), rows.tolist()

    (first, rows), (second, same_rows) = on_ranks(2, run, tmp_path)
    alone = RankContext(0, 1, CPU)
    expected = judged(Objective(network(), Classification(10)), Single(), alone)
    assert first == pytest.approx(expected, abs=1e-6)
    assert first == second
    assert rows == same_rows == Batches(source, 8, 0, prepare, alone).rows(0).tolist()


@pytest.mark.parametrize(
    ("colwise", "rowwise", "said"),
    [
        (["head.7"], [], "parallel.colwise=[head.7]: the model has no part head.7; did you mean "),
        (["head.0"], ["head.7"], "parallel.rowwise=[head.7]: the model has no part head.7; did "),
        (["features.0"], [], "parallel.colwise=features.0: a Conv2d cannot be split so; linear"),
        ([], ["head.2"], "the network does not go with it"),
        (["head.0"], [], "the network does not go with it"),
        (["head.2"], [], "parallel.colwise=head.2: its 10 outputs do not divide by 3 processes"),
    ],
)
def test_a_plan_that_does_not_fit_the_network_is_one_line(colwise, rowwise, said, tmp_path, capfd):
    def run() -> Any:
        with pytest.raises(ConfigError) as error, made(colwise, rowwise) as run:
            run.step(0)
        return str(error.value)

    for line in on_ranks(3 if "divide" in said else 2, run, tmp_path):
        assert said in line
        assert "\n" not in line
    assert "Traceback" not in capfd.readouterr().err
