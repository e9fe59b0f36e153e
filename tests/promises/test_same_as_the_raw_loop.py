"""A run trains what the plainest loop trains, and waits for the device no more than that does."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import ours
from benchmarks.rivals import raw
from ninefold.engine.batches import epoch_order
from ninefold.engine.loop import stepper, train
from tests.dataset import scenes

AMP = ("fp32", "autocast", "scaler")
COMMON = ("batch_size=16", "threads=1", "checkpoint.every=null", "logger=quiet")
SMALL = (
    "dataset=synthetic", "dataset.shape=[3,8,8]", "dataset.train_count=320", "model.net.width=8",
    *COMMON,
)  # fmt: skip
MASKS = (
    "task=segmentation", "dataset=masks", f"dataset.classes={scenes.CLASSES}",
    f"dataset.ignore={scenes.VOID}", "dataset.shape=[3,24,32]", "dataset.mean=null",
    "dataset.std=null", "dataset.flip=false", "model=unet", "model.net.width=4",
    "model.net.depth=2", *COMMON,
)  # fmt: skip


class Cast(nn.Module):
    """Autocast as PyTorch's documentation has it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output: Tensor = self.model(inputs)
        return output.float()


Optimizer = Callable[..., torch.optim.Optimizer]
ADAMW = partial(torch.optim.AdamW, lr=0.001, weight_decay=0.01, fused=True)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.0005, nesterov=True, fused=True)
LOOPS: dict[str, tuple[tuple[str, ...], Optimizer, Callable[[Tensor, Tensor], Tensor]]] = {
    "adamw": ((*SMALL, "optimizer=adamw"), ADAMW, nn.functional.cross_entropy),
    "sgd": ((*SMALL, "optimizer=sgd"), SGD, nn.functional.cross_entropy),
    "masks": (MASKS, ADAMW, partial(raw.masked_loss, void=scenes.VOID)),
}


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("amp", AMP)
def test_the_final_weights_are_bitwise_those_of_the_raw_loop(amp, kind, tmp_path):
    """The scale is a power of two, so that what is scaled and unscaled is what it was."""
    options, make, loss = LOOPS[kind]
    if options is MASKS:
        options += (f"dataset.root={scenes.write(tmp_path, counts={'train': 80, 'test': 2})}",)
    with ours.training(*options, f"amp={amp}", "epochs=2") as run:
        model = copy.deepcopy(run.state.model)
        optimizer = make(model.parameters())
        called = model if amp == "fp32" else Cast(model)
        examples = ours.examples_of(run.batches.source)
        for epoch in range(2):
            rows = epoch_order(0, epoch, len(examples)).reshape(-1, 16)
            raw.train(called, optimizer, examples, rows, run.prepare.memory_format, loss)
        train(run)
    assert run.state.step == 2 * len(rows)
    for ours_, theirs in zip(run.state.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours_, theirs)


def test_a_model_that_says_no_memory_format_is_trained_as_the_raw_loop_does_without_one():
    said = "~model.memory_format"
    with ours.training(*SMALL, said, "epochs=1") as run, ours.training(*SMALL, said) as other:
        model = other.state.model
        assert {type(part) for part in model.modules()} >= {nn.Conv2d}
        examples = ours.examples_of(other.batches.source)
        rows = epoch_order(0, 0, len(examples)).reshape(-1, 16)
        optimizer = ADAMW(model.parameters())
        raw.train(model, optimizer, examples, rows, torch.contiguous_format)
        train(run)
    for ours_, theirs in zip(run.state.model.parameters(), model.parameters(), strict=True):
        assert ours_.is_contiguous()
        assert torch.equal(ours_, theirs)


@pytest.mark.parametrize("count", [10, 3])
def test_a_batch_that_is_no_equal_micro_batches_is_no_step(count):
    """Three of them would have no fourth, in which processes average their gradients."""
    with ours.training(*SMALL, "accumulate=4") as run:
        inputs, targets = next(iter(run.batches.epoch(0)))
        with pytest.raises(AssertionError, match=f"{count} examples in 4 micro-batches"):
            stepper(run)(inputs[:count], targets[:count])


@pytest.mark.parametrize("warmup", [0, 2])
def test_steps_that_are_skipped_at_the_start_leave_no_trace_in_the_momentum(warmup):
    """Memory that nobody has written to is NaN here, as deterministic=true fills it."""
    try:
        with ours.training(
            *SMALL, "optimizer=sgd", "amp=scaler", "amp.dtype=float16", "amp.init_scale=1e7",
            "deterministic=true", f"clock.warmup={warmup}", "epochs=1",
        ) as run:  # fmt: skip
            train(run)
    finally:
        torch.use_deterministic_algorithms(False)
    assert 0 < int(run.state.scaler.skipped) < 20
    assert all(parameter.isfinite().all() for parameter in run.state.model.parameters())


READS = {"item", "tolist", "numpy", "cpu", "nonzero", "equal", "allclose", "is_nonzero", "__bool__",
         "__int__", "__float__", "__index__", "__array__", "__contains__"}  # fmt: skip


class Calls(TorchFunctionMode):
    """Counts calls that make the host wait for a tensor's value."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        self.counts[name] += name in READS
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Counts operators that do, whoever calls them."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        self.counts[name] += name in {"_local_scalar_dense", "is_nonzero", "equal", "nonzero"}
        return function(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    with Calls(counts), Operators(counts):
        yield counts


def reads(amp: str, steps: int) -> Counter[str]:
    """What a run of so many steps without a log point reads of its tensors."""
    with ours.training(*SMALL, f"amp={amp}", "epochs=1", f"max_steps={steps}",
                       "log_every=1000", "clock.warmup=0") as run, counted() as counts:  # fmt: skip
        assert run.state.losses.reads_at_once  # nobody waits for a loss in the host's memory
        run.state.losses.reads_at_once = False
        run.state.losses.start_epoch()
        train(run)
    return +counts


@pytest.mark.parametrize("amp", AMP)
def test_between_log_points_no_step_reads_a_tensor(amp):
    """As on a GPU."""
    few = reads(amp, 3)
    assert few["_local_scalar_dense"] > 0  # of the evaluation at the end
    assert reads(amp, 13) == few


@pytest.mark.gpu
@pytest.mark.parametrize("resident", ["true", "false"])
@pytest.mark.parametrize("amp", AMP)
def test_between_log_points_the_host_never_waits_for_the_gpu(amp, resident):
    with ours.training(*SMALL, f"amp={amp}", "device=cuda", "epochs=1", "log_every=1000",
                       "clock.warmup=0", "dataset.flip=true", "dataset.crop=2",
                       f"dataset.resident={resident}") as run:  # fmt: skip
        epoch = run.batches.epoch

        def watched(*arguments: Any) -> Iterator[tuple[Tensor, Tensor]]:
            """Waiting is an error from the second batch on, until the loop asks past the last."""
            try:
                for batch in epoch(*arguments):
                    yield batch
                    torch.cuda.set_sync_debug_mode("error")
            finally:  # the loop ends at its last step, and does not ask for another batch
                torch.cuda.set_sync_debug_mode("default")

        run.batches.epoch = watched
        try:
            train(run)
        finally:
            torch.cuda.set_sync_debug_mode("default")
