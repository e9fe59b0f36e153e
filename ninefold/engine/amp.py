"""Precision: the dtype of the forward pass (autocast), loss scaling (GradScaler), TF32."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from ninefold.errors import ConfigError
from ninefold.machine import computes_in_bfloat16
from ninefold.tree import each, leaves

MODES = {False: "ieee", True: "tf32"}  # torch's names, by whether it may round to TF32
BATCH_NORM = nn.modules.batchnorm._BatchNorm
COLLAPSED = 2.0**-14  # gradients that overflow at this loss scale overflow at any


@dataclass(frozen=True)
class Amp:
    """A precision as configured; `on(device)` settles what `dtype: auto` stands for.

    dtype: float32 (no autocast), float16, bfloat16 or auto: float16 on CUDA, where loss scaling
    matters, and bfloat16 on a CPU, which has no fast float16 kernels.
    scaler: whether a GradScaler scales the loss.
    tf32: whether float32 convolutions and matrix products use TF32 on CUDA; None: convolutions do
        and products do not, which is PyTorch's default.
    weights: dtype of the weights. bfloat16: there is no autocast; those of batch normalization, and
        its statistics, stay float32.
    init_scale, growth_factor, backoff_factor, growth_interval: torch.amp.GradScaler's.
    """

    dtype: str = "auto"
    scaler: bool = False
    tf32: bool | None = False
    weights: str = "float32"
    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def on(self, device: torch.device) -> Amp:
        """This precision with its dtype on `device`; ConfigError if the device lacks it."""
        automatic = "float16" if device.type == "cuda" else "bfloat16"
        settled = replace(self, dtype=automatic if self.dtype == "auto" else self.dtype)
        if (
            settled.dtype == "bfloat16"
            and device.type == "cuda"
            and not torch.cuda.is_bf16_supported(including_emulation=False)
        ):
            wrong = "this GPU does not compute in bfloat16"
            allowed = f"{torch.cuda.get_device_name(device)} has float16"
            raise ConfigError("amp.dtype", "bfloat16", wrong, allowed, "use amp.dtype=float16")
        return settled

    def full_float32(self, device: torch.device) -> bool:
        """Return whether nothing on `device` is in TF32 or shorter; not for dtype auto."""
        return self.dtype == "float32" and (self.tf32 is False or not has_tf32(device))

    def pin(self) -> None:
        """Set float32 convolutions and matrix products to TF32 or to full precision."""
        products, convolutions = bool(self.tf32), self.tf32 is not False
        with warnings.catch_warnings():
            # torch.compile reads the older names; setting them is deprecated.
            warnings.simplefilter("ignore")
            torch.backends.cuda.matmul.allow_tf32 = products
            torch.backends.cudnn.allow_tf32 = convolutions
        torch.backends.cuda.matmul.fp32_precision = MODES[products]
        torch.backends.cudnn.conv.fp32_precision = MODES[convolutions]  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn.fp32_precision = MODES[convolutions]  # type: ignore[attr-defined]

    def cast(self, model: nn.Module) -> None:
        """Give the weights of `model`, in place, their dtype."""
        if self.weights == "float32":
            return
        norms = [each for each in model.modules() if isinstance(each, BATCH_NORM)]
        kept = {id(value) for each in norms for value in (*each.parameters(), *each.buffers())}
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point() and id(value) not in kept:
                value.data = value.data.to(getattr(torch, self.weights))

    def wrap(self, model: nn.Module) -> nn.Module:
        """`model` computing in this dtype, with float32 outputs; dtype must not be auto."""
        if self.dtype == "float32":
            return model
        kind = Autocast if self.weights == "float32" else Cast
        return kind(model, getattr(torch, self.dtype))

    def grad_scaler(self, device: torch.device, skip: bool = False) -> CountingScaler:
        """The GradScaler for `device`; it is disabled, and its calls no-ops, without scaling.

        skip: skip steps whose gradients are not finite. That takes an enabled scaler in any
        precision. Without scaling its scale is 1: a skipped step halves it, another doubles it, up
        to 1; so it has collapsed when 15 more steps were skipped than were not.
        """
        if skip and not self.scaler:
            return CountingScaler(
                device.type, enabled=True, most=1.0, init_scale=1.0, growth_interval=1
            )
        return CountingScaler(
            device.type,
            init_scale=self.init_scale,
            growth_factor=self.growth_factor,
            backoff_factor=self.backoff_factor,
            growth_interval=self.growth_interval,
            enabled=self.scaler,
        )

    def notes(self, device: torch.device) -> list[str]:
        """Sentences about what has no effect on `device`; dtype must not be auto."""
        notes = []
        if self.tf32 is not False and device.type != "cuda":
            notes.append("amp.tf32 is a no-op on a CPU: TF32 is a mode of CUDA's tensor cores.")
        else:
            asked = {"products": bool(self.tf32), "convolutions": self.tf32 is not False}
            found = in_tf32(device)
            for what in [each for each, wanted in asked.items() if found[each] is not wanted]:
                are = "are not" if asked[what] else "are nevertheless"
                notes.append(f"amp.tf32 is a no-op here: {what} {are} rounded to TF32.")
        if self.scaler and self.dtype != "float16":
            notes.append(
                f"The GradScaler is enabled, but {self.dtype} has the exponent range of float32, "
                "so there is no underflow for it to prevent: it measures the scaler's cost."
            )
        if self.dtype == "float16" and device.type == "cpu":
            notes.append("float16 has no fast kernels on a CPU: expect it to be many times slower.")
        if self.dtype == "bfloat16" and device.type == "cpu" and computes_in_bfloat16() is False:
            notes.append(
                "This CPU has no instructions for bfloat16 and converts each number: expect it to "
                "be slower than float32, several times or over ten."
            )
        return notes


def has_tf32(device: torch.device) -> bool:
    """Return whether `device` computes in TF32: a GPU with tensor cores of Ampere or later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def in_tf32(device: torch.device) -> dict[str, bool]:
    """Return whether float32 products on `device` are rounded to TF32 now, by their values, and
    convolutions, by torch's setting: to try one would load cuDNN for networks without any.
    """
    if device.type != "cuda":
        return {"products": False, "convolutions": False}
    backends: Any = torch.backends
    return {
        "products": _rounds(device, backends.cuda.matmul.fp32_precision),
        "convolutions": has_tf32(device) and backends.cudnn.conv.fp32_precision == MODES[True],
    }


@cache
def _rounds(device: torch.device, mode: str) -> bool:
    """`in_tf32`, once in each of torch's modes: its memory must not be in a training's peak."""
    value = torch.full((1024, 1024), 1 + 2**-12, device=device)  # 1 in TF32
    return not torch.equal(value @ torch.eye(1024, device=device), value)


class Autocast(nn.Module):
    """Enters autocast inside forward, so that it also holds in DataParallel's threads.

    Floats in what the network returns become float32, in tuples and dicts too.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        device = leaves((inputs, named))[0].device
        with torch.autocast(device.type, dtype=self.dtype):
            output = self.model(*inputs, **named)
        return output.float() if isinstance(output, Tensor) else each(in_float32, output)


class Cast(nn.Module):
    """Casts floats in the inputs to a dtype, and those in what the network returns to float32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        cast = partial(in_dtype, self.dtype)
        return each(in_float32, self.model(*each(cast, inputs), **each(cast, named)))


def in_dtype(dtype: torch.dtype, value: Any) -> Any:
    """`value` in `dtype` where it is a tensor of floats, or no tensor and says how it is done."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return value.in_dtype(dtype) if hasattr(value, "in_dtype") else value


in_float32 = partial(in_dtype, torch.float32)


class CountingScaler(torch.amp.GradScaler):
    """A GradScaler that counts the steps it skipped, without waiting for the device.

    most: upper bound of the scale; None: none.
    skipped: number of skipped steps, an int64 scalar on the device.
    """

    def __init__(
        self, device: str, *, enabled: bool, most: float | None = None, **options: float
    ) -> None:
        super().__init__(device, enabled=enabled, **options)  # type: ignore[arg-type]
        self._most = most
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._one = torch.ones((), device=device)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        if not self.is_enabled():
            return
        before = self.scale(self._one)  # the scale, for which get_scale() would wait
        super().update(new_scale)
        after = self.scale(self._one)
        self.skipped += after < before  # only a skipped step lowers the scale
        if self._most is not None:
            super().update(after.clamp(max=self._most))

    def collapsed(self) -> bool:
        """Return whether the scale fell so low that no scale will help. Waits for the device."""
        return self.is_enabled() and self.get_scale() < COLLAPSED


def verify(amp: Amp, scaler: CountingScaler, device: torch.device) -> None:
    """Raise ConfigError unless this process computes in the precision that `amp` states.

    A GradScaler disables itself if its device is missing, and autocast ignores an unsupported
    dtype, both with no more than a warning: the run would then be of another cell.
    """
    if scaler.is_enabled() is not amp.scaler:
        wrong = "the GradScaler disabled itself"
        allowed = f"the device is {device.type}"
        raise ConfigError("amp.scaler", amp.scaler, wrong, allowed, "use amp.scaler=false here")
    probe = nn.Linear(8, 8, device=device)
    seen: list[torch.dtype] = []
    probe.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    amp.cast(probe)
    output = amp.wrap(probe)(torch.zeros(1, 8, device=device))
    if seen != [getattr(torch, amp.dtype)] or output.dtype != torch.float32:
        wrong = "autocast did not compute in it"
        allowed = f"it computed in {seen[0]} and returned {output.dtype}"
        raise ConfigError("amp.dtype", amp.dtype, wrong, allowed, "choose another dtype")
