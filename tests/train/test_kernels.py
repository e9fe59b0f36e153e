"""Which kernels a network runs on: its memory layout, and how cuDNN chooses."""

import json

import pytest
import torch
from torch import nn

from benchmarks import ours
from ninefold.engine.amp import Amp
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.train import kernels
from ninefold.train.kernels import memory_format
from tests.conftest import result
from tests.faults.runs import one_after_another

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ALONE = RankContext(0, 1, GPU)
IMAGE, VOLUME = [3, 32, 32], [1, 16, 16, 16]
# Threads of autograd keep the number of threads that the first run of a process has.
TINY = ("max_steps=1", "clock.warmup=0", "logger=quiet", "dataset.limit=64", "threads=1")


FP32, TF32 = Amp("float32"), Amp("float32", tf32=True)


@pytest.mark.parametrize(
    ("shape", "amp", "device", "capability", "layout"),
    [
        (IMAGE, FP32, CPU, None, "channels_last"),
        (IMAGE, Amp("bfloat16"), CPU, None, "channels_last"),
        (VOLUME, FP32, CPU, None, "channels_last_3d"),
        (IMAGE, FP32, GPU, None, "contiguous_format"),
        (VOLUME, FP32, GPU, None, "contiguous_format"),
        (IMAGE, Amp("float16"), GPU, None, "channels_last"),
        (VOLUME, Amp("bfloat16"), GPU, None, "channels_last_3d"),
        (IMAGE, TF32, GPU, (8, 0), "channels_last"),
        (IMAGE, TF32, GPU, (7, 5), "contiguous_format"),  # which has no TF32
    ],
)
def test_auto_makes_float32_on_gpus_contiguous(monkeypatch, shape, amp, device, capability, layout):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert memory_format("auto", shape, amp, device) == layout


def test_a_layout_that_depends_on_the_precision_is_a_note_of_the_cells_that_have_it():
    (note,) = kernels.notes("auto", "contiguous_format", False, ALONE)
    assert note.startswith("model.memory_format=auto is contiguous here")
    assert kernels.notes("auto", "channels_last", False, ALONE) == []
    assert kernels.notes("contiguous_format", "contiguous_format", False, ALONE) == []


def test_the_models_of_conf_have_the_layout_that_auto_means_in_inputs_and_weights():
    with ours.training(*TINY) as run:
        assert run.layout == "channels_last"
        (weight, *_) = (p for p in run.state.model.parameters() if p.dim() == 4 and p.shape[1] > 1)
        assert weight.is_contiguous(memory_format=torch.channels_last)
        inputs, _ = next(run.batches.epoch(0))
        assert inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("fused", [True, False])
def test_a_run_that_goes_on_in_another_layout_goes_on_alike(fused):
    """As one does that was begun on a GPU and is resumed on a CPU."""

    def begun(layout: torch.memory_format) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 2))
        model = model.to(memory_format=layout)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        inputs = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    strategy = Single()
    one, other = begun(torch.contiguous_format), begun(torch.channels_last)
    step(*one)
    strategy.load(strategy.state(*one, {}), *other, {})
    for run in (one, other):
        step(*run)
    for ours_, theirs in zip(one[0].parameters(), other[0].parameters(), strict=True):
        torch.testing.assert_close(ours_, theirs)
        for name in ("exp_avg", "exp_avg_sq"):
            assert other[1].state[theirs][name].stride() == theirs.stride()


def test_the_result_says_which_kernels_it_is_of(shell):
    chosen = ["model.memory_format=contiguous_format", "cudnn_benchmark=true"]
    one_after_another(
        shell,
        ["train.py", *TINY, "hydra.run.dir=default"],
        ["train.py", *TINY, "hydra.run.dir=chosen", *chosen],
        ["evaluate.py", "ckpt=default", "hydra.run.dir=evaluated"],
        code=0,
    )
    found = {name: result(shell.folder / name) for name in ("default", "chosen")}
    layouts = [each["memory_format"] for each in found.values()]
    assert layouts == ["channels_last", "contiguous_format"]
    assert [each["cudnn_benchmark"] for each in found.values()] == [False] * 2
    noted = "cudnn_benchmark is a no-op on a CPU: cuDNN is a library for GPUs."
    assert [noted in each["notes"] for each in found.values()] == [False, True]
    assert found["chosen"]["overrides"][-1] == "cudnn_benchmark=true"
    text = (shell.folder / "evaluated" / "evaluation.json").read_text()
    assert json.loads(text)["memory_format"] == "channels_last"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("amp", "layout"),
    [("fp32", "contiguous_format"), ("tf32", "channels_last"), ("autocast", "channels_last")],
)
def test_on_a_gpu_the_layout_follows_the_precision(amp, layout):
    with ours.training(*TINY, f"amp={amp}", "device=cuda", "cudnn_benchmark=true") as run:
        assert run.layout == layout
        assert torch.backends.cudnn.benchmark
        (weight, *_) = (p for p in run.state.model.parameters() if p.dim() == 4 and p.shape[1] > 1)
        assert weight.is_contiguous(memory_format=getattr(torch, layout))
    torch.backends.cudnn.benchmark = False


@pytest.mark.gpu
def test_a_run_begun_on_a_gpu_goes_on_on_a_cpu_in_the_layout_of_the_cpu(tmp_path):
    with ours.training(*TINY, "device=cuda", "amp=fp32") as run:
        ours.train(run)
        saved = run.state.capture(run.parallel, run.context)
    with ours.training(*TINY, "device=cpu", "amp=fp32") as run:
        saved["rng"] = saved["rng"][:3]  # without the GPU's
        run.state.restore(saved, Single(), RankContext(0, 1, CPU))
        assert run.state.optimizer.state
        for parameter, values in run.state.optimizer.state.items():
            assert values["exp_avg"].stride() == parameter.stride()
