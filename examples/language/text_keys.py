"""The keys of dataset=text alone."""

from ninefold.types import Count, Section


class TextKeys(Section, kw_only=True):
    context: Count = 64
    """Characters of an example of dataset=text: how far a model looks back."""
    stride: Count = 4
    """Characters between the beginnings of training examples of dataset=text; test examples do not
    overlap."""
