"""A set on the device gives the batches that are otherwise read by the host, bit by bit.

What is done on a GPU is done here on the tensors of a CPU.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import ours
from ninefold.config import untrusted
from ninefold.dataset import Examples
from ninefold.dataset.images import ImageFiles, ImageTree
from ninefold.dataset.loader import HostSource
from ninefold.dataset.plan import resident_bytes
from ninefold.dataset.preparation import ImagePreparation, to_device
from ninefold.dataset.resident import Resident
from ninefold.engine.batches import shard
from ninefold.engine.parallel import RankContext
from tests.conftest import result
from tests.dataset.kit import ALONE, CPU, epoch, labeled, ranks
from tests.kit import same

GPU = torch.device("cuda", 0)
MUCH = (10**12, 10**12)
RANDOM = np.random.default_rng(1)
SETS = {
    "classes": labeled(),
    "masks": Examples(labeled().inputs, RANDOM.integers(0, 4, (43, 8, 10), dtype=np.uint8)),
    "points": Examples(*(RANDOM.normal(size=s).astype("f") for s in ((43, 3, 8, 10), (43, 30)))),
    "chosen": labeled(63).select(np.arange(43)[::-1] + 20),
}
MOVES = {"left": (False, 0), "flipped": (True, 0), "cropped": (False, 2), "both": (True, 2)}


def of(kind: str, moved: str) -> tuple[Examples, ImagePreparation]:
    flip, crop = MOVES[moved]
    options: dict[str, Any] = {"flip": flip, "crop": crop, "outside": 3}
    if kind == "points":
        return SETS[kind], ImagePreparation(3, **options)
    return SETS[kind], ImagePreparation(3, 12, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), **options)


@pytest.mark.parametrize("moved", MOVES)
@pytest.mark.parametrize("kind", SETS)
def test_batches_of_a_set_on_the_device_are_bitwise_those_that_the_host_reads(kind, moved):
    examples, prepare = of(kind, moved)
    on_device = Resident.copied(examples, CPU)
    for context in (ALONE, *ranks(2), ranks(4)[3]):
        for start in (0, 3, 5):  # a resumed run starts in the middle of an epoch
            expected = epoch(HostSource(examples), prepare, context, 2, start)
            assert len(expected) == 5 - start
            assert same(epoch(on_device, prepare, context, 2, start), expected)


@pytest.mark.parametrize("kind", SETS)
def test_a_set_on_the_device_is_evaluated_as_one_that_the_host_reads(kind):
    examples, prepare = of(kind, "both")
    on_device = Resident.copied(examples, CPU)
    for context in (ALONE, *ranks(2), ranks(7)[6]):
        expected = [*shard(HostSource(examples), 14, prepare, context)]
        assert same([*shard(on_device, 14, prepare, context)], expected)
    few = Resident.copied(examples.first(2), CPU)
    assert list(shard(few, 14, prepare, ranks(4)[3])) == []


BYTES = 43 * (3 * 8 * 10 + 8)
SET, IMAGES = labeled(), ImageFiles(["0.png"] * 43, (3, 8, 10), ImageTree(None, ""))
FILES = Examples(IMAGES, SET.targets)


@pytest.mark.parametrize(
    ("asked", "sets", "device", "memory", "size"),
    [
        ("auto", [SET], GPU, (2 * BYTES, 16 * BYTES), BYTES),
        ("auto", [SET], GPU, (1, 16 * BYTES), BYTES),  # as for those that started before
        ("auto", [SET], GPU, (MUCH[0], 16 * BYTES - 1), 0),
        ("auto", [SET, SET], GPU, (MUCH[0], 32 * BYTES - 1), 0),
        ("auto", [SET.select(np.arange(43))], GPU, MUCH, BYTES),
        ("auto", [SET, FILES], GPU, MUCH, 0),
        ("auto", [SET], CPU, (0, 0), 0),
        (False, [SET], GPU, MUCH, 0),
        (True, [SET], GPU, (2 * BYTES, 4 * BYTES), BYTES),
    ],
)
def test_a_set_in_memory_goes_on_a_gpu_16_times_as_large(asked, sets, device, memory, size):
    assert resident_bytes(asked, sets, device, memory) == size


def test_an_evaluation_elsewhere_is_not_held_to_what_the_run_required_of_its_gpu():
    text = ours.job("dataset.resident=true").text
    assert "resident: true" in text
    assert "resident" not in untrusted.for_evaluation(text, Path("x.pt"), {})["dataset"]


@pytest.mark.gpu
@pytest.mark.parametrize("moved", MOVES)
@pytest.mark.parametrize("kind", SETS)
def test_on_a_gpu_batches_of_a_set_that_is_there_are_bitwise_those_that_the_host_reads(kind, moved):
    context = RankContext(0, 1, GPU)
    examples, prepare = of(kind, moved)
    on_device = Resident.copied(examples, GPU)
    expected = epoch(HostSource(examples, pinned=True), prepare, context)
    assert same(epoch(on_device, prepare, context), expected)
    read = [*shard(HostSource(examples), 14, prepare, context)]
    assert same([*shard(on_device, 14, prepare, context)], read)


@pytest.mark.gpu
def test_the_host_does_not_wait_for_the_rows_that_it_copies_to_a_gpu():
    rows = torch.arange(512)
    torch.cuda.set_sync_debug_mode("error")
    try:
        copied = to_device(rows, GPU)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert copied.tolist() == rows.tolist()


@pytest.mark.gpu
def test_on_a_gpu_a_run_says_that_its_set_is_there(shell):
    options = ("device=cuda", "max_steps=2", "logger=quiet")
    for asked, line in (("auto", True), ("true", True), ("false", False)):
        folder = f"hydra.run.dir=run-{asked}"
        done = shell.train(*options, f"dataset.resident={asked}", folder, code=0)
        assert ("of examples are copied to the GPU once" in done.stdout) == line
        assert (result(shell.folder / f"run-{asked}")["resident_bytes"] > 0) == line
