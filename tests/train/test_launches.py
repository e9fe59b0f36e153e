"""What the host does in a training step on a GPU: kernels that it launches, copies, waits.

Counted by a stand-in for CUDA, where one is loaded: a GPU's libraries may launch several kernels
for one operator.
"""

import ctypes
import os

import pytest

from benchmarks.ours import stepping

STEPS = 20
MLP = (
    "model.net._target_=benchmarks.step.mlp", "model.net.width=64",
    "model.memory_format=contiguous_format", "dataset=synthetic", "dataset.shape=[1,8,8]",
    "dataset.test_count=64", "dataset.train_count=6400", "log_every=1000000", "threads=1",
)  # fmt: skip
KINDS = ("launches", "copies", "waits")


def counts() -> list[int]:
    library = ctypes.CDLL(None)
    library.fake_cuda_count.restype = ctypes.c_ulong
    return [library.fake_cuda_count(kind.encode()) for kind in KINDS]


@pytest.mark.gpu
@pytest.mark.skipif("FAKE_CUDA_LIB" not in os.environ, reason="only the stand-in counts")
@pytest.mark.parametrize(
    ("overrides", "launches", "copies"),
    [
        ((), 19, 0),
        (("amp=autocast",), 30, 0),
        (("amp=scaler",), 41, 2),
        (("clip_grad_norm=1",), 28, 1),
        (("ema=0.99",), 20, 0),
    ],
    ids=lambda value: " ".join(value) or "fp32" if isinstance(value, tuple) else None,
)
def test_a_step_launches_so_many_kernels_and_never_waits(overrides, launches, copies):
    with stepping((*MLP, *overrides)) as (_, take):
        take(3)
        before = counts()
        take(STEPS)
        found = [(now - was) / STEPS for now, was in zip(counts(), before, strict=True)]
    assert found == [launches, copies, 0]
