"""The keys of dataset=diabetes alone."""

from ninefold.types import Positive, Section


class DiabetesKeys(Section, kw_only=True):
    target_mean: float = 152.0
    """Mean of the targets of dataset=diabetes, by which model=mlp shifts its outputs."""
    target_std: Positive = 77.0
    """Their standard deviation, by which model=mlp scales its outputs."""
