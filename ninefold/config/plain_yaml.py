"""YAML that anybody may have written, looked through before it is made into objects."""

from __future__ import annotations

import yaml

LARGEST, DEEPEST = 100_000, 50  # characters, and levels: a job of ours has 3,000 and 4


def require_plain(text: str) -> None:
    """Raise ValueError where `text` is too long, too deep or holds an alias.

    It is looked through as a stream: a few lines of aliases can stand for gigabytes. Raises
    yaml.YAMLError where it is no YAML.
    """
    if len(text) > LARGEST:
        raise ValueError(f"it has {len(text)} characters, a job has at most {LARGEST}")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it holds a YAML alias, which a job has no use for")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
