"""Precision: the promised dtype is used, and skipped steps are counted."""

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from benchmarks import ours
from ninefold import machine
from ninefold.config.conf_files import options_of
from ninefold.engine.amp import Amp, Autocast, CountingScaler, _rounds, in_tf32, verify
from ninefold.engine.loop import train
from ninefold.errors import ConfigError, NumericsError
from tests.train.test_schedule import SMALL

CPU = torch.device("cpu")
CUDA = torch.device("cuda")  # a name: nothing is put there


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Put the TF32 settings back that a test changes: PyTorch's own."""
    yield
    _rounds.cache_clear()
    Amp("float32", tf32=None).pin()


def test_autocast_works_in_a_thread_that_did_not_enter_it():
    model, seen = nn.Linear(4, 4), list[torch.dtype]()
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    wrapped = Autocast(model, torch.bfloat16)
    outputs: list[Tensor] = []
    thread = threading.Thread(target=lambda: outputs.append(wrapped(torch.ones(1, 4))))
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16]
    assert outputs[0].dtype == torch.float32


def test_auto_is_bfloat16_on_a_cpu_and_float16_on_cuda():
    assert Amp(dtype="auto").on(CPU).dtype == "bfloat16"
    assert Amp(dtype="auto").on(CUDA).dtype == "float16"


def step(scaler: CountingScaler, model: nn.Linear, bad: float | None = None) -> None:
    """One step of gradient descent; `bad` replaces one gradient value."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    if bad is not None:
        model.weight.grad[0, 0] = bad
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_step_is_counted_as_skipped_exactly_when_a_gradient_is_not_finite(bad):
    model, scaler = nn.Linear(2, 2), Amp(scaler=True).grad_scaler(CPU)
    counts = []
    for value in (None, bad, None, bad, bad):
        before = [parameter.clone() for parameter in model.parameters()]
        step(scaler, model, value)
        moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert all(moved) if value is None else not any(moved)
        counts.append(int(scaler.skipped))
    assert counts == [0, 1, 1, 2, 3]
    assert scaler.get_scale() == 65536.0 / 8


@pytest.mark.parametrize("option", options_of("amp"))
def test_each_precision_computes_as_it_says(option):
    amp = instantiate(ours.job(f"amp={option}").config.frozen["amp"]).on(CPU)
    verify(amp, amp.grad_scaler(CPU), CPU)


@pytest.mark.filterwarnings("ignore:In CPU autocast, but the target dtype is not supported")
@pytest.mark.parametrize(
    ("amp", "enabled", "line"),
    [
        (Amp(dtype="bfloat16", scaler=False), True, "amp.scaler=False: the GradScaler"),
        (Amp(dtype="bfloat16", scaler=True), False, "amp.scaler=True: the GradScaler"),
        (Amp(dtype="float64"), False, r"amp.dtype=float64: .* computed in torch.float32"),
    ],
)
def test_a_precision_that_is_not_as_promised_is_refused(amp, enabled, line):
    with pytest.raises(ConfigError, match=line):
        verify(amp, CountingScaler("cpu", enabled=enabled), CPU)


@pytest.mark.filterwarnings("ignore:.*fp32_precision")  # the older names are deprecated
@pytest.mark.parametrize(
    ("tf32", "products", "convolutions"),
    [(False, "ieee", "ieee"), (True, "tf32", "tf32"), (None, "ieee", "tf32")],
)
def test_pinning_sets_tf32_in_torchs_settings_and_older_ones_that_its_compiler_reads(
    tf32, products, convolutions
):
    Amp(dtype="float32", tf32=not tf32).pin()
    Amp(dtype="float32", tf32=tf32).pin()
    assert torch.backends.cuda.matmul.fp32_precision == products
    assert torch.backends.cudnn.conv.fp32_precision == convolutions
    assert torch.backends.cudnn.rnn.fp32_precision == convolutions
    assert torch.backends.cuda.matmul.allow_tf32 is (products == "tf32")
    assert torch.backends.cudnn.allow_tf32 is (convolutions == "tf32")
    assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")


def test_amp_default_is_what_torch_does_by_itself():
    """A new interpreter asks, as this one's settings may have been changed."""
    code = (
        "import torch; b = torch.backends; "
        "print(b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32); "
        "from ninefold.engine.amp import Amp; Amp('float32', tf32=None).pin(); "
        "print(b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    before, after = done.stdout.splitlines()
    assert before == after == "True False"


def test_bfloat16_weights_are_computed_with_in_bfloat16_but_for_batch_normalization():
    amp = Amp(dtype="bfloat16", weights="bfloat16")
    verify(amp, amp.grad_scaler(CPU), CPU)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    amp.cast(model)
    kinds = {name: value.dtype for name, value in model.state_dict().items()}
    assert kinds.pop("1.num_batches_tracked") == torch.int64
    short = {name for name, dtype in kinds.items() if dtype == torch.bfloat16}
    assert short == {"0.weight", "0.bias", "3.weight", "3.bias"}
    output = amp.wrap(model)(torch.randn(8, 1, 8, 8))
    assert output.dtype == torch.float32
    output.sum().backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {
        torch.bfloat16, torch.float32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("amp", "do"), [("bf16", "or set on_nonfinite=skip"), ("bf16_weights", "or use amp=bf16")]
)
def test_what_is_advised_where_a_loss_is_not_finite_goes_with_the_precision(amp, do):
    with (
        ours.training(*SMALL, f"amp={amp}", "optimizer.lr=1e30") as run,
        pytest.raises(NumericsError, match=f"{do}$"),
    ):
        train(run)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that describes the processor; it has bfloat16, and oneDNN may use all it has."""
    monkeypatch.delenv(machine.MOST, raising=False)
    file = tmp_path / "cpuinfo"
    file.write_text("model name\t: made up\nflags\t\t: fpu avx2 avx512_bf16 sse\n")
    monkeypatch.setattr(machine, "PROCESSOR", file)
    return file


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("flags\t\t: fpu avx2 sse\n", "no instructions for bfloat16"),
        ("Features\t: fp asimd\n", "no instructions for bfloat16"),
        ("flags\t\t: fpu amx_bf16 sse\n", ""),
        ("Features\t: fp asimd bf16\n", ""),
        ("processor\t: 0\n", ""),
    ],
)
def test_a_processor_without_bfloat16_says_so(processor, text, note):
    processor.write_text(text)
    assert note in " ".join(Amp(dtype="bfloat16").notes(CPU))
    assert Amp(dtype="float32").notes(CPU) == []
    if not note:
        assert Amp(dtype="bfloat16").notes(CPU) == []
    processor.unlink()  # as on a system without this file
    assert Amp(dtype="bfloat16").notes(CPU) == []


def test_a_limit_on_what_onednn_may_use_hides_bfloat16(processor, monkeypatch):
    for most, hidden in (("AVX512_CORE", True), ("avx2", True), ("AVX512_CORE_AMX", False)):
        monkeypatch.setenv(machine.MOST, most)
        assert bool(Amp(dtype="bfloat16").notes(CPU)) is hidden


@pytest.mark.gpu
def test_on_a_gpu_what_is_said_of_tf32_is_what_products_show(monkeypatch):
    def rounded(self: Tensor, other: Tensor) -> Tensor:
        product: Tensor = torch.mm(self, other)
        return (product.view(torch.int32) & ~0x1FFF).view(torch.float32)  # TF32's 10 bits

    gpu = torch.device("cuda", 0)
    fp32, tf32 = Amp(dtype="float32"), Amp(dtype="float32", tf32=True)
    fp32.pin()
    assert in_tf32(gpu) == {"products": False, "convolutions": False}
    assert fp32.notes(gpu) == []
    assert "products are not rounded to TF32" in tf32.notes(gpu)[0]
    monkeypatch.setattr(Tensor, "__matmul__", rounded)
    assert not in_tf32(gpu)["products"]  # it is asked once in each mode
    _rounds.cache_clear()
    assert in_tf32(gpu)["products"]
    assert not any("products" in note for note in tf32.notes(gpu))
    assert "products are nevertheless rounded to TF32" in fp32.notes(gpu)[0]


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize(
    ("amp", "said"),
    [
        (Amp(dtype="float32", tf32=True), "tf32 is a no-op on a CPU"),
        (Amp(dtype="bfloat16", scaler=True), "no underflow for it to prevent"),
        (Amp(dtype="float16", scaler=True), "no fast kernels on a CPU"),
    ],
)
def test_cells_that_are_no_ops_say_so(amp, said):
    (note,) = amp.notes(CPU)
    assert said in note
