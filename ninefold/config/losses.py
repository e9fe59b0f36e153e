"""PyTorch's own losses that `task.loss` may name, also in a stored configuration of anybody."""

from __future__ import annotations

from collections.abc import Mapping

# Those of torch.nn that take an output and a target, with their arguments. A number, a flag or a
# word can do no harm as one of these; a tensor of class weights is built from numbers: TENSOR.
TORCH: Mapping[str, tuple[str, ...]] = {
    "BCELoss": ("weight",),
    "BCEWithLogitsLoss": ("weight", "pos_weight"),
    "CrossEntropyLoss": ("weight", "ignore_index", "label_smoothing"),
    "HingeEmbeddingLoss": ("margin",),
    "HuberLoss": ("delta",),
    "KLDivLoss": ("log_target",),
    "L1Loss": (),
    "MSELoss": (),
    "MultiLabelMarginLoss": (),
    "MultiLabelSoftMarginLoss": ("weight",),
    "MultiMarginLoss": ("p", "margin", "weight"),
    "NLLLoss": ("weight", "ignore_index"),
    "PoissonNLLLoss": ("log_input", "full", "eps"),
    "SmoothL1Loss": ("beta",),
    "SoftMarginLoss": (),
}
TENSOR = {"torch.tensor": frozenset({"_target_", "data"})}
PREFIX = "torch.nn."
PLACE = "task.loss"  # of the loss in a configuration


def allowed() -> dict[str, dict[str, frozenset[str]]]:
    """By place, the targets with their keys that a stored configuration may name there."""
    losses = {
        f"{PREFIX}{name}": frozenset({"_target_", "reduction", *arguments})
        for name, arguments in TORCH.items()
    }
    return {PLACE: losses, f"{PLACE}.weight": TENSOR, f"{PLACE}.pos_weight": TENSOR}
