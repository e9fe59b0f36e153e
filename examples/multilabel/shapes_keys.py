"""The keys of dataset=shapes alone."""

from ninefold.types import Count, Section


class ShapesKeys(Section, kw_only=True):
    masks: bool = False
    """Whether the targets of dataset=shapes are a mask of each shape, in place of a label."""
    train_count: Count = 4096
    """Training examples of dataset=shapes."""
    test_count: Count = 512
    """Test examples of dataset=shapes."""
