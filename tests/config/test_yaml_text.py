"""Configurations are written as YAML that OmegaConf reads as the same values."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from ninefold.config.yaml_text import yaml_text

TEXTS = [
    "", " ", "~", "null", "y", "N", "Yes", "oN", "truE", "1e3", "1_000", "0x1f", "012", ".inf",
    "nan", "1:30", "2020-01-01", "=", "<<", "- a", "a: b", "#x", "it's", '"q"', "a\nb\n", " lead",
    "trail ", "ünï", "\t", "&a", "*a", "!t", "%d", "@x", "{a}", "[b]", "word " * 60, "a\n\nb",
    "${seed}", "${oc.env:HOME,'a, b'}", "\N{GRINNING FACE}",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_read_back_as_the_same_text(text: str) -> None:
    tree = {"key": text, "list": [text, {"inner": text}]}
    read = OmegaConf.create(yaml_text(tree))
    assert OmegaConf.to_container(read) == tree


def test_other_values_are_written_as_omegaconf_writes_them() -> None:
    tree = {
        "none": None, "true": True, "one": 1, "real": 1e-05, "large": 65536.0, "n": {}, "list": [],
        "nested": {"lists": [[1], [2.5, "a"]]}, "text": "header\n\nfooter\n",
    }  # fmt: skip
    assert yaml_text(tree) == OmegaConf.to_yaml(OmegaConf.create(tree))
