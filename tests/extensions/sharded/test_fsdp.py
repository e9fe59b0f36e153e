"""parallel=fsdp on real processes: what they hold, save, load and evaluate, and what it costs."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import TCPStore
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor.debug import CommDebugMode

from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.amp import Amp
from ninefold.engine.average import Average
from ninefold.engine.evaluation import evaluate, most_passes
from ninefold.engine.parallel import RankContext, local_part
from ninefold.engine.parallel.ddp import DDP
from ninefold.errors import ConfigError
from ninefold.extensions.sharded.fsdp import FSDP, large
from ninefold.extensions.sharded.spread import nested
from ninefold.task import Objective
from ninefold.task.classification import Classification
from ninefold.train.initial import LOADED
from tests.extensions.sharded.made import Made, batch, made, network, plain
from tests.parallel.ranks import environment, on_ranks

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


SLOW = pytest.mark.slow
WAYS: list[Any] = [
    (2, {}),
    pytest.param(1, {}, marks=SLOW),
    pytest.param(2, {"reshard_after_forward": False}, marks=SLOW),
    pytest.param(4, {"units": ["features.0", "classifier"]}, marks=SLOW),
]


@pytest.mark.parametrize(("ranks", "options"), WAYS, ids=str)
def test_parts_on_several_processes_learn_what_one_process_learns(ranks, options, tmp_path):
    def run() -> Any:
        with made(network().to(memory_format=torch.channels_last), **options) as run:
            for number in range(3):
                run.step(number)
            held = sum(local_part(p).numel() for p in run.model.parameters())
            return run.whole()["model"], held

    (saved, held), *others = on_ranks(ranks, run, tmp_path)
    _, expected = plain(network(), [batch(number) for number in range(3)], lr=1e-3)
    assert saved.keys() == expected.keys()
    for name, value in saved.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5)
        for meta, _ in others:  # they need memory for no whole model
            assert (meta[name].is_meta, meta[name].shape) == (True, value.shape)
    count = sum(p.numel() for p in network().parameters())
    assert [held, *(each for _, each in others)] == [
        pytest.approx(count / ranks, rel=0.02 if ranks > 1 else 0)
    ] * ranks


def test_what_was_saved_is_loaded_bit_by_bit_though_only_rank_0_has_it(tmp_path):
    """Also -0.0, and an optimizer's state of channels-last weights, as one process saves it."""

    def run() -> Any:
        with made() as run:
            run.step()
            saved = run.whole()
            if run.context.rank == 0:
                saved["model"]["features.0.weight"][0] = -0.0
                momentum = saved["optimizer"]["state"][0]["exp_avg"]
                momentum.copy_(torch.arange(momentum.numel()).view(momentum.shape))
                last = momentum.contiguous(memory_format=torch.channels_last)
                saved["optimizer"]["state"][0]["exp_avg"] = last
            run.step(1)
            run.strategy.load(saved, run.model, run.optimizer, {})
            again = run.whole()
            return (
                saved,
                again,
                [type(p.data).__name__ for p in run.optimizer.param_groups[0]["params"]],
            )

    (saved, again, kinds), *_ = on_ranks(2, run, tmp_path)
    for name, value in saved["model"].items():
        assert torch.equal(value.view(torch.uint8), again["model"][name].view(torch.uint8)), name
    for index, values in saved["optimizer"]["state"].items():
        for name, value in values.items():
            assert torch.equal(value, again["optimizer"]["state"][index][name]), (index, name)
    assert {*kinds} == {"DTensor"}


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_counts_of_steps_are_after_a_load_where_a_new_optimizer_has_them(fused, monkeypatch):
    """On the host, unless kernels take them on the GPU: else each step waits for every one."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
    for name, value in environment(0, 1, store.port).items():
        monkeypatch.setenv(name, value)
    strategy, model = FSDP(device="cuda"), network()
    with strategy.join() as context:
        wrapped = strategy.wrap(Objective(model, Classification(10)), context)
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        wrapped(*(part.to(context.device) for part in batch())).backward()
        optimizer.step()
        new = {values["step"].device.type for values in optimizer.state.values()}
        strategy.load(strategy.state(model, optimizer, {}), model, optimizer, {})
        loaded = {values["step"].device.type for values in optimizer.state.values()}
    assert loaded == new == {"cuda" if fused else "cpu"}


def saved_bytes(run: Made) -> int:
    """Bytes of weights, not of activations, that a forward pass keeps for the backward pass."""
    sizes, kept = {p.numel() for p in run.model.parameters() if p.ndim > 1}, []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        run.wrapped(*batch())
    return sum(t.untyped_storage().nbytes() for t in kept if t.numel() in sizes)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=SLOW)])
def test_in_a_short_precision_no_copy_of_gathered_weights_is_kept(dtype, tmp_path):
    def run(param_dtype: str) -> int:
        net = nn.Sequential(nn.Linear(64, 48), nn.LayerNorm(48), nn.Linear(48, 10))
        model = Amp(dtype).wrap(nn.Sequential(nn.Flatten(), net))
        with made(model, param_dtype=param_dtype, least=100, units=["1.0", "1.2"]) as it:
            return saved_bytes(it)

    found = {
        name: on_ranks(2, partial(run, name), tmp_path)[0] for name in ("auto", "float32")
    }  # fmt: skip
    assert found["auto"] == 0 < found["float32"]


@pytest.mark.parametrize(
    ("weights", "dtypes"),
    [("float32", {torch.float32}), ("bfloat16", {torch.bfloat16, torch.float32})],
)
def test_in_bf16_the_losses_are_those_of_ddp_within_its_rounding(weights, dtypes, tmp_path):
    """Of weights in bfloat16 those of batch normalization stay float32."""

    def run(kind: type[FSDP] | type[DDP]) -> tuple[list[float], set[torch.dtype]]:
        options = {"least": 1000} if kind is FSDP else {}
        strategy = kind(device="cpu", **options)  # type: ignore[arg-type]
        with strategy.join() as context:
            model = network()
            model.features.append(nn.BatchNorm2d(32))
            amp = Amp("bfloat16", weights=weights)
            amp.cast(model)
            objective = Objective(amp.wrap(model), Classification(10))
            wrapped = strategy.wrap(objective, context)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            made = Made(strategy, context, model, wrapped, optimizer)
            losses = [float(made.step(number)) for number in range(4)]
            return losses, {p.dtype for p in model.parameters()}

    (fsdp, found), (ddp, _) = (on_ranks(2, partial(run, kind), tmp_path)[0] for kind in (FSDP, DDP))
    assert fsdp == pytest.approx(ddp, rel=2**-8)
    assert found == dtypes


def test_a_checkpoint_of_another_model_is_refused_on_every_process(tmp_path):
    def run() -> Any:
        with made() as run:
            run.step()
            saved = run.whole()
            found = []
            for change in ("missing", "shape", "groups"):
                other = {**saved, "model": dict(saved["model"])}
                weight = other["model"].pop("classifier.weight")
                if change == "shape":
                    other["model"]["classifier.weight"] = weight.new_empty(3, 2)
                if change == "groups":
                    other = {**saved, "optimizer": {**saved["optimizer"], "param_groups": []}}
                try:
                    run.strategy.load(other, run.model, run.optimizer, {})
                except (KeyError, ValueError, RuntimeError) as error:
                    found.append(type(error).__name__)
            return found

    found = on_ranks(2, run, tmp_path)
    assert found == [["RuntimeError", "RuntimeError", "ValueError"]] * 2


class Counts(nn.Module):
    """Logits whose class is that of the first pixel; counts the forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.norm = nn.BatchNorm2d(1)
        self.passes = 0

    def forward(self, images: Tensor) -> Tensor:
        self.passes += 1
        if self.training:
            self.norm(images)
        first = images[:, 0, 0, 0] * 255
        return -(first[:, None] - torch.arange(10)).abs() * self.scale


@pytest.mark.parametrize(("examples", "batch_size"), [(5, 4), pytest.param(1, 8, marks=SLOW)])
def test_evaluations_of_any_size_end_and_count_each_example_once(examples, batch_size, tmp_path):
    """A forward pass takes all processes, and the processes have unlike numbers of batches."""
    labels = torch.arange(examples) % 10
    images = labels.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    source = HostSource(Examples(images.numpy(), labels.numpy()))

    def run() -> Any:
        with made(Counts()) as run:
            found = evaluate(
                run.wrapped, source, task=Classification(10), batch_size=batch_size,
                prepare=ImagePreparation(1), parallel=run.strategy, context=run.context,
            )  # fmt: skip
            assert isinstance(run.model, Counts)
            return found.count, found.score, run.model.passes

    found = on_ranks(2, run, tmp_path)
    assert [each[:2] for each in found] == [(examples, 1.0)] * 2
    assert found[0][2] == found[1][2] == most_passes(examples, batch_size, RankContext(0, 2, CPU))


def test_an_evaluation_that_one_process_leaves_is_left_by_all(tmp_path):
    images = torch.zeros(9, 1, 8, 8, dtype=torch.uint8)
    source = HostSource(Examples(images.numpy(), torch.zeros(9, dtype=torch.int64).numpy()))

    def run() -> Any:
        with made(Counts()) as run:
            try:
                evaluate(
                    run.wrapped, source, task=Classification(10), batch_size=2,
                    prepare=ImagePreparation(1), parallel=run.strategy, context=run.context,
                    interrupted=lambda: run.context.rank == 1,
                )  # fmt: skip
            except Exception as error:
                return type(error).__name__, run.wrapped.training

    assert on_ranks(2, run, tmp_path) == [("Unfinished", True)] * 2


def test_evaluations_have_the_buffers_of_rank_0_which_a_checkpoint_holds(tmp_path):
    def run() -> Any:
        with made(Counts()) as run:
            run.wrapped(
                torch.full((4, 1, 8, 8), float(run.context.rank + 1)), torch.zeros(4).long()
            )
            before = run.model.get_buffer("norm.running_mean").clone()
            saved = run.whole()["model"]
            run.wrapped.eval()
            return before, run.model.get_buffer("norm.running_mean").clone(), saved

    (first, mine, saved), (other, theirs, _) = on_ranks(2, run, tmp_path)
    assert first != other
    assert mine == theirs == first == saved["norm.running_mean"]


@pytest.mark.parametrize("reshard", [pytest.param(True, marks=SLOW), False])
def test_training_never_computes_with_weights_of_an_evaluation(reshard, tmp_path):
    """Of a moving average, which takes the place of the parameters while they are evaluated."""

    def run(evaluates: bool) -> Any:
        with made(reshard_after_forward=reshard) as run:
            average = Average(run.model, 0.5)
            losses = []
            for number in range(4):
                losses.append(run.step(number))
                average.update(number)
                if evaluates:
                    with average.in_place(), torch.no_grad():
                        run.wrapped.eval()
                        run.wrapped(*batch())
                        run.wrapped.train()
            return losses

    with_, without = (on_ranks(2, lambda e=e: run(e), tmp_path) for e in (True, False))
    assert with_ == without


@pytest.mark.parametrize(("least", "units"), [(1_000_000, 0), (1_000, 3)])
def test_a_step_gathers_units_twice_and_what_is_left_of_the_model_once(least, units, tmp_path):
    """Backward begins where forward ends: dropped in between, the rest would be gathered again."""

    def run() -> tuple[int, int]:
        with made(least=least) as run, CommDebugMode() as calls:
            run.step(0)
            units = sum(isinstance(module, FSDPModule) for module in run.wrapped.modules()) - 1
            return units, calls.get_comm_counts()[torch.ops.c10d._allgather_base_]

    assert on_ranks(2, run, tmp_path) == [(units, 2 * units + 1)] * 2


def test_an_overflow_in_the_part_of_one_process_skips_the_step_of_all(tmp_path):
    def run() -> Any:
        with made() as run:
            optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3, fused=True)
            scaler = Amp("float32", scaler=True).grad_scaler(CPU)
            before = run.whole()["model"]
            scaler.scale(run.wrapped(*batch())).backward()
            if run.context.rank == 1:
                gradient = next(run.model.parameters()).grad
                assert gradient is not None
                local_part(gradient)[0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            return scaler.get_scale(), int(scaler.skipped), before, run.whole()["model"]

    (scale, skipped, before, after), other = on_ranks(2, run, tmp_path)
    assert (scale, skipped) == other[:2] == (32768.0, 1)
    assert all(torch.equal(before[name], after[name]) for name in before)


# What a checkpoint holds reaches processes that do not see its file


@pytest.mark.parametrize("strategy", [DDP(device="cpu"), FSDP(device="cpu")], ids=str)
def test_a_checkpoint_that_rank_0_has_read_is_broadcast(strategy, tmp_path):
    tensors = {
        "negative zero": torch.tensor(-0.0),
        "flags": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
        "last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "nan": torch.tensor([float("nan"), 1e-45], dtype=torch.float64),
        "brief": torch.randn(3).bfloat16(),
    }
    content = {
        "format": 2,
        "model": tensors,
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]},
        "average": {},
        "rng": [torch.arange(5), torch.tensor([7], dtype=torch.uint8)],
        "config": "a: 1",
        "epoch_seconds": [0.5],
    }

    def run() -> Any:
        with strategy.join() as context:
            outlined = LOADED if strategy.shards else ()
            return strategy.broadcast(content if context.rank == 0 else None, outlined)

    first, second = on_ranks(2, run, tmp_path)
    assert list(first) == list(second) == list(content)
    assert second["config"] == "a: 1"
    assert second["epoch_seconds"] == [0.5]
    assert second["optimizer"]["param_groups"] == [{"lr": 0.1}]
    assert all(torch.equal(a, b) for a, b in zip(first["rng"], second["rng"], strict=True))
    for name, value in tensors.items():
        theirs = second["model"][name]
        assert (theirs.shape, theirs.dtype) == (value.shape, value.dtype)
        assert theirs.is_meta == strategy.shards  # each process takes its part when it loads them
        if not strategy.shards:
            same = theirs.contiguous().reshape(-1).view(torch.uint8)
            assert torch.equal(same, value.contiguous().reshape(-1).view(torch.uint8)), name
    assert 0 in second["optimizer"]["state"]


# Units, and what a step sends


class Odd(nn.Module):
    """Uses the parameters of a part without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Flatten()
        self.head = nn.Linear(64, 10)
        self.rest = nn.Linear(10, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.rest(self.body(images) @ self.head.weight.T)


def test_a_model_that_uses_parts_without_calling_them_is_told_what_to_do(tmp_path):
    def run() -> Any:
        said = []
        tried: list[dict[str, Any]] = [{"least": 10}, {"units": ["head"]}]
        for options in tried:
            with made(Odd(), **options) as run, pytest.raises(ConfigError) as caught:
                run.step()
            said.append(str(caught.value))
        return said

    def as_one() -> float:
        torch.manual_seed(0)
        with made(Odd(), units=[]) as run:
            return run.step().item()

    ((auto, named),) = on_ranks(1, run, tmp_path)
    told = ": the model uses the parameters of a unit without calling it;"
    assert auto.startswith(f"error: parallel.units=auto{told}")
    assert named.startswith(f"error: parallel.units=['head']{told}")
    torch.manual_seed(0)
    (loss,), _ = plain(Odd(), [batch()], lr=1e-3)
    assert sum(on_ranks(2, as_one, tmp_path)) / 2 == pytest.approx(loss)


class Tied(nn.Module):
    """Tokens by an embedding, and back by its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 12)
        self.body = nn.Linear(12, 12)
        self.head = nn.Linear(12, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(self.embed(tokens)))
        return found


def test_weights_that_two_parts_share_are_in_no_unit_of_one(tmp_path):
    def run() -> Any:
        strategy = FSDP(device="cpu", least=100)
        with strategy.join() as context:
            torch.manual_seed(0)
            wrapped = strategy.wrap(Tied(), context)
            return wrapped(torch.arange(5)).sum().item()

    torch.manual_seed(0)
    expected = Tied()(torch.arange(5)).sum().item()
    assert on_ranks(2, run, tmp_path) == [pytest.approx(expected, rel=1e-5)] * 2


def test_units_are_large_modules_or_those_that_are_named_within_wrappers_too():
    model = network()
    wrapped = Objective(Amp("bfloat16").wrap(model), Classification(10))
    assert nested(wrapped)[-1] is model
    found = FSDP(least=1000)._units(wrapped)
    assert found == [model.features[4], model.features[8], model.classifier]
    named = FSDP(units=["features", "features.0"])._units(wrapped)
    assert named == [model.features[0], model.features]
    with pytest.raises(ConfigError, match=r"the model has no part featurs; did you mean features"):
        FSDP(units=["classifier", "featurs"])._units(wrapped)
    body = sized((3, 3), (20, 20), (4, 4), (30, 30))
    assert large(body, 400) == [body[1], body[3]]
    assert large(body, 20) == [body[1], body[3], body]  # 9 and 16 parameters are left


def sized(*shapes: tuple[int, int]) -> nn.Module:
    return nn.Sequential(*(nn.Linear(b, a, bias=False) for a, b in shapes))


@pytest.mark.parametrize(("ranks", "said"), [(1, "has one process here"), (4, None)])
def test_what_is_a_no_op_is_noted(ranks, said):
    notes = FSDP().notes(RankContext(0, ranks, CPU))
    assert len(notes) == (said is not None)
    assert all(said in note for note in notes if said)
