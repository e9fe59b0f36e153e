"""The keys of dataset=hf alone."""

from ninefold.types import Section, Text


class HFKeys(Section, kw_only=True):
    name: Text = None
    """Name of a dataset of the Hugging Face hub; null: root."""
    config: Text = None
    """Name of its configuration, where it has several."""
    revision: Text = None
    """Its revision: a branch, a tag or a commit."""
    image: Text = "image"
    """The column of images."""
    label: Text = "label"
    """The column of classes."""
