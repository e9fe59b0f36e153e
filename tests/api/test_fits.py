"""`ninefold.fits`: the memory of a step with the caller's own objects."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import ninefold
from ninefold.api import child


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))


def test_a_step_of_the_callers_network_is_counted_and_the_largest_batch_is_said() -> None:
    data = torch.rand(4096, 1000), torch.randint(0, 10, (4096,))
    found = ninefold.fits(
        network, data, nn.functional.cross_entropy, amp="fp32", parallel=["none", "ddp"],
        batch_size=63, memory="30MiB",
    )  # fmt: skip
    (row,) = found.rows()
    weights = 4 * sum(parameter.numel() for parameter in network().parameters())
    assert (row["configuration"], row["weights"]) == ("parallel=none", weights)
    assert row["optimizer"] >= 2 * weights
    assert 63 < row["largest"] < 4096
    (failed,) = found.failed
    assert failed.startswith("error: batch_size=63: does not divide by 2 processes; ")
    assert f"batch_size={row['largest']} in 0.0293 GiB" in repr(found)


def test_what_a_killed_count_has_lost_and_what_the_caller_held_on_gpus_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"event": "row", "configuration": "amp=fp32", "line": {"together": "1"}}
    monkeypatch.setattr(child, "run", lambda *_, **named: child.Ended(-9, rows=[row]))
    for name, known in (("is_initialized", True), ("device_count", 1), ("memory_reserved", 2**21)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, known=known: known)
    data = torch.rand(99, 1000), torch.randint(0, 10, (99,))
    found = ninefold.fits(network, data, nn.functional.cross_entropy)
    assert [each["configuration"] for each in found.rows()] == ["amp=fp32"]
    assert re.search(r"^error: .* before its last figure; something killed it", found.failed[0])
    assert "The calling process held 2 MiB of GPU memory" in repr(found)


def test_without_a_memory_real_steps_find_the_largest_batch_here() -> None:
    data = torch.rand(99, 1000), torch.randint(0, 10, (99,))
    loss = nn.functional.cross_entropy
    found = ninefold.fits(network, data, loss, amp="fp32", parallel="none", overrides="threads=1")
    (row,) = found.rows()
    assert (row["counted"], row["largest"], row["whole"], found.failed) == (99, 99, True, [])
    assert "batch_size=99 by real steps, the whole set" in repr(found)
