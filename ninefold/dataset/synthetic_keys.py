"""The keys of dataset=synthetic alone."""

from ninefold.types import Count, Section


class SyntheticKeys(Section, kw_only=True):
    train_count: Count = 4096
    """Training examples of dataset=synthetic."""
    test_count: Count = 512
    """Test examples of dataset=synthetic."""
