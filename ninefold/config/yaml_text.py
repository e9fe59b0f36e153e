"""A plain tree as YAML, as OmegaConf writes it, by libyaml where PyYAML was built with it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import yaml

# OmegaConf's own `to_yaml` takes five times as long, because it writes in Python.
_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_BOOLEANS = {"y", "n", "yes", "no", "on", "off", "true", "false"}  # in any case


class _Dumper(_Base):  # type: ignore[misc]
    pass


def _string(dumper: Any, text: str) -> Any:
    style = "'" if _looks_like_another_type(text) else None
    return dumper.represent_scalar(yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG, text, style=style)


_Dumper.add_representer(str, _string)


def yaml_text(tree: Any) -> str:
    """`tree` of dictionaries, lists and plain values as YAML that OmegaConf reads as this tree."""
    text: str = yaml.dump(
        tree, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )
    return text


def _looks_like_another_type(text: str) -> bool:
    """Whether OmegaConf would read `text` without quotes as a number or a boolean."""
    if text.lower() in _BOOLEANS:
        return True
    with suppress(ValueError):
        float(text)
        return True
    return False
