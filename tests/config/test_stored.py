"""Stored configurations of older versions."""

from __future__ import annotations

import pytest

from ninefold.config.options import find
from ninefold.config.schema import GROUPS
from ninefold.config.stored import ADDED, comparable, upgrade
from ninefold.types import accepts


def test_an_older_job_gets_the_keys_that_it_lacks_and_keeps_those_that_it_has() -> None:
    older = {"clip_grad_norm": 1.0, "checkpoint": {"keep": 5}, "dataset": {}}
    found = upgrade(older)
    assert (found["clip_grad_norm"], found["ema_warmup"]) == (1.0, False)
    assert found["checkpoint"] == {"keep": 5, "format": "whole"}
    assert found["dataset"] == {}, "not every dataset has those keys"
    assert "clock" not in found, "a section that is missing is damage, not age"
    found["checkpoint_activations"].append("features")
    assert upgrade(older)["checkpoint_activations"] == []


@pytest.mark.parametrize(("cache", "now"), [("ram", "disk"), ("disk", "disk"), (None, None)])
def test_examples_that_an_older_job_kept_in_memory_are_kept_on_disk(
    cache: str | None, now: str | None
) -> None:
    older = {"dataset": {"root": "photos", "cache": cache, "cache_rate": 0.5}}
    assert upgrade(older)["dataset"] == {"root": "photos", "cache": now}


def test_a_job_stored_before_a_key_was_added_equals_one_with_its_default() -> None:
    now = {"seed": 3, "ema_warmup": False, "scheduler": {"per": "epoch"}}
    assert comparable({"seed": 3}) == comparable(now)
    now["scheduler"] = {"per": "step"}
    assert comparable({"seed": 3}) != comparable(now)


@pytest.mark.parametrize("name", ADDED)
def test_what_older_jobs_lack_are_keys_of_the_schema(name: str) -> None:
    key = find(name)
    assert key is not None
    assert accepts(key.kind, ADDED[name])
    assert name not in GROUPS
