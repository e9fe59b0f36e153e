"""The keys of a precision, and the places of ours in tables."""

from typing import Annotated, Literal

from msgspec import Meta

from ninefold.types import AboveOne, Count, Fraction, OptionKeys

PLACES = {
    "fp32": 0,
    "default": 1,
    "autocast": 2,
    "scaler": 3,
    "tf32": 4,
    "bf16": 5,
    "fp16": 6,
    "bf16_weights": 7,
}


class AmpKeys(OptionKeys, kw_only=True):
    """Precision: the dtype of the forward pass, and loss scaling."""

    dtype: Literal["auto", "float32", "float16", "bfloat16"]
    """dtype of autocast; auto: float16 on CUDA and bfloat16 on a CPU, float32: no autocast."""
    scaler: bool
    """Scale the loss with a GradScaler."""
    tf32: bool | None
    """Compute float32 convolutions and matrix products in TF32, on CUDA; null: convolutions alone,
    as PyTorch does by itself."""
    weights: Literal["float32", "bfloat16"] = "float32"
    """dtype of the weights and of the optimizer's state; bfloat16: without autocast, an update of
    less than 0.4 % of a weight is rounded away."""
    init_scale: Annotated[float, Meta(ge=2.0**-14, lt=2.0**127)] = 65536.0
    """The GradScaler's initial scale."""
    growth_factor: AboveOne = 2.0
    """Factor of the scale after growth_interval steps without overflow."""
    backoff_factor: Fraction = 0.5
    """Factor of the scale after an overflow."""
    growth_interval: Count = 2000
    """Steps without overflow after which the scale grows."""
