"""The keys of dataset=masks alone."""

from ninefold.types import GrayLevels, Section, String


class MasksKeys(Section, kw_only=True):
    values: GrayLevels = None
    """Gray level or palette index of each class in a mask; null: the class numbers."""
    mask_suffix: String = ""
    """What the name of a mask has after the name of its image, such as _mask."""
