"""The keys of dataset=text alone."""

from ninefold.types import Count, Section


class TextKeys(Section, kw_only=True):
    context: Count = 64
    """Characters of an example of dataset=text: how far a model looks back."""
    stride: Count = 4
    """Characters from where a training example of dataset=text begins to where the next does; those
    of the test set do not overlap."""
