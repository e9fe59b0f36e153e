"""A preparation of one's own multiplies signals in training, and in evaluations none."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gains import Gains

from tests.conftest import Shell, only_run, result

HERE = Path(__file__).parent


def test_each_signal_of_an_epoch_has_a_factor_of_its_own_wherever_it_is_read():
    rows = np.arange(8).reshape(2, 4)
    there = torch.device("cpu")
    first, second = Gains(0.5).draws(0, 1, rows, (1, 1, 2), there)
    (other,) = Gains(0.5).draws(0, 1, rows[:, ::-1].reshape(1, 8), (1, 1, 2), there)
    assert len({*first.tolist(), *second.tolist()}) == 8
    assert other.tolist() == [*first.flip(0).tolist(), *second.flip(0).tolist()]
    signals, labels = torch.ones(4, 1, 1, 2), torch.zeros(4)
    found, _ = Gains(0.5)(signals, labels, first)
    assert found[:, 0, 0, 1].tolist() == first.tolist()
    assert 0.5 <= found.min() < found.max() <= 1.5
    assert [*Gains(0).draws(0, 1, rows, (1, 1, 2), there)] == [None, None]
    assert Gains(0.5)(signals, labels, None)[0] is signals


def test_the_dataset_trains(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(0)
    for split, count in (("train", 64), ("test", 32)):
        signals = random.random((count, 1, 1, 64), np.float32)
        labels = random.integers(0, 10, count)
        np.savez(shell.folder / f"{split}.npz", signals=signals, labels=labels)
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    shell.train(
        "--config-dir", f"{HERE}/conf", "dataset=signals", "dataset.root=.", "model=mlp",
        "dataset.val=0.25", "batch_size=8", "epochs=1", "max_steps=4", code=0,
    )  # fmt: skip
    found = result(only_run(shell.folder))
    assert (found["selection"], found["val_count"], found["test_count"]) == ("val", 16, 32)
