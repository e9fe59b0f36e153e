"""The keys of dataset=mapped alone."""

from ninefold.types import ItemKeys, Section


class MappedKeys(Section, kw_only=True):
    keys: ItemKeys = None
    """Keys of input and target in items that are mappings; places in items that are tuples; null:
    (input, target)."""
