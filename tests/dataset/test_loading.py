"""How many threads read ahead, and the memory that their batches take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ninefold.dataset import Examples, Rows
from ninefold.dataset.loader import LoaderPlan, plan_loading
from ninefold.engine.parallel import Place
from ninefold.errors import ConfigError, ResourceError
from tests.conftest import ROOT, Shell, result

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MASKED = 32 * 512 * 512 * (3 + 1)  # bytes of 32 images of 512x512x3 and their masks


class Decoded:
    """Rows of bytes that are made when they are read, as images in files are."""

    def __init__(self, *shape: int) -> None:
        self.shape = (100_000, *shape)

    def __len__(self) -> int:
        return len(range(self.shape[0]))

    def __getitem__(self, rows: Rows) -> Any:
        return np.ones((len(rows), *self.shape[1:]), np.uint8)


IMAGES = Examples(Decoded(3, 512, 512), Decoded(512, 512))  # type: ignore[arg-type]


def of(place: Place, **settings: Any) -> LoaderPlan:
    given: dict[str, Any] = {
        "workers": "auto", "share": 0.25, "pinned": "auto", "free": 64 * 10**9, "cores": 64,
    }  # fmt: skip
    return plan_loading(IMAGES, 32, place, **{**given, **settings})


def on(device: torch.device, processes: int = 1) -> Place:
    return Place(0, processes, device, local_size=processes)


def test_a_batch_with_masks_of_bytes_takes_a_fifth_of_one_in_float32_and_int64() -> None:
    found = of(on(GPU))
    assert (found.batch, found.prepared) == (33_554_432, 167_772_160) == (MASKED, 5 * MASKED)
    assert [round(8 * size / 1e6) for size in (found.batch, found.prepared)] == [268, 1342]
    assert str(found) == (
        "loader: 8 thread(s), 17 slots of 33.6 MB (uint8 inputs, uint8 targets, page-locked) = "
        "570 MB; as float32 and int64 2.85 GB"
    )


@pytest.mark.parametrize(
    ("place", "settings", "workers"),
    [
        (on(GPU), {}, 8),
        (on(GPU), {"cores": 4}, 3),
        (on(GPU, 2), {"cores": 8}, 3),
        (on(GPU), {"cores": 1}, 0),
        (on(GPU), {"cores": None}, 0),
        (on(GPU), {"free": 4 * 7 * MASKED}, 3),
        (on(GPU), {"free": 4 * 7 * MASKED - 4}, 2),
        (on(GPU, 2), {"free": 2 * 4 * 7 * MASKED}, 3),
        (on(GPU), {"free": 4 * 7 * MASKED, "share": 0.5}, 6),
        (on(GPU), {"free": MASKED}, 0),
        (on(GPU), {"free": None}, 8),
        (on(CPU), {}, 1),
        (on(CPU), {"cores": 1}, 1),
        (on(CPU, 2), {"free": MASKED}, 0),
        (on(CPU), {"workers": 0, "free": 1}, 0),
        (on(CPU), {"workers": 40}, 40),
    ],
)
def test_auto_is_what_memory_and_cores_allow_up_to_eight_threads(
    place: Place, settings: dict[str, Any], workers: int
) -> None:
    assert of(place, **settings).workers == workers


def test_data_in_memory_needs_no_thread() -> None:
    arrays = Examples(np.zeros((50, 1, 8, 8), np.uint8), np.zeros(50, np.int64))
    for examples in (arrays, arrays.select(np.arange(20)), arrays.first(9)):
        found = plan_loading(
            examples, 8, on(GPU), workers="auto", share=0.25, pinned="auto", free=None, cores=64
        )
        assert found.workers == 0
        assert found.batch == 8 * (64 + 8)


def test_more_threads_than_memory_allows_are_one_line_with_the_number_that_fits() -> None:
    with pytest.raises(ResourceError) as caught:
        of(on(GPU), workers=64, free=4 * 1_900_000_000)
    assert str(caught.value) == (
        "error: loader.workers=64: 129 slots of 33.6 MB are 4.33 GB; 1.9 GB are allowed "
        "(loader.share 0.25 of the free memory, for 1 process(es)); use 27 at most, or a smaller "
        "batch"
    )
    assert of(on(GPU), workers=27, free=4 * 1_900_000_000).workers == 27


@pytest.mark.parametrize(("asked", "pinned"), [("auto", True), (True, True), (False, False)])
def test_batches_are_page_locked_on_cuda_alone(asked: Any, pinned: bool) -> None:
    assert of(on(GPU), pinned=asked).pinned is pinned
    if asked is not True:
        assert of(on(CPU), pinned=asked).pinned is False


def test_page_locked_memory_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^error: loader.pinned=true: batches stay in main"):
        of(on(CPU), pinned=True)


MEASURED = """
import gc, time
from contextlib import closing
import numpy as np
from ninefold.dataset.loader import gathered, slots
from ninefold.train.kernels import keep_freed
from benchmarks.loading import pss
from tests.dataset.test_loading import IMAGES, MASKED

keep_freed()
gc.collect()
before, most = pss(), 0
with closing(gathered([IMAGES.inputs], [np.arange(32)] * 20, 2)) as source:
    while batch := next(source, None):
        time.sleep(0.05)  # as long as a step takes: all that may be are read ahead
        most = max(most, pss() - before)
        del batch
print(most / (slots(2) * MASKED * 3 / 4))  # of images alone
"""


@pytest.mark.slow  # the bench loader-memory measures it in a run
def test_images_read_ahead_take_the_memory_of_their_slots(shell: Shell) -> None:
    done = shell.run("-c", MEASURED, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout) < 1.1


@pytest.mark.slow
def test_a_run_says_how_many_threads_read_its_images_and_resumes_with_another_number(
    shell: Shell,
) -> None:
    (shell.folder / "made.py").write_text(MADE)
    env = {"PYTHONPATH": f"{ROOT}:{shell.folder}"}
    path = shell.folder / "own" / "dataset" / "made.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "_target_: made.Made\nroot: null\nlimit: null\nclasses: 2\nshape: [1, 8, 8]\nmean: null\n"
        "std: null\nflip: false\ncrop: 0\nval: 0\n"
    )
    options = ("--config-dir=own", "dataset=made", "batch_size=8", "logger=quiet")
    done = shell.train(*options, "max_steps=2", "epochs=1", "hydra.run.dir=run", env=env)
    assert done.returncode == 0, done.stderr
    assert "loader: 1 thread(s), 3 slots of 576 B (uint8 inputs, int64 targets) = 1.73 kB; " in (
        done.stdout
    )
    assert result(shell.folder / "run")["loader_workers"] == 1
    config = (shell.folder / "run" / "config.yaml").read_text()
    (shell.folder / "run" / "config.yaml").write_text(  # as it was before the keys were added
        config.replace("  workers: auto\n  share: 0.25\n  pinned: auto\n", "  workers: 2\n")
    )
    for more, workers in (((), 2), (("loader.workers=0",), 0)):
        steps = 4 if workers else 6
        done = shell.train(*options, "resume=run", f"max_steps={steps}", *more, env=env)
        assert done.returncode == 0, done.stderr
        assert result(shell.folder / "run")["loader_workers"] == workers


MADE = """
import numpy as np
from dataclasses import dataclass
from ninefold.dataset import Examples, Selected


class Read:
    def __init__(self, count): self.shape = (count, 1, 8, 8)
    def __len__(self): return self.shape[0]
    def __getitem__(self, rows):
        if isinstance(rows, slice): return Selected(self, np.arange(len(self))[rows])
        return np.full((len(rows), 1, 8, 8), 7, np.uint8)


@dataclass(frozen=True)
class Made:
    root: str = None
    limit: int = None
    classes: int = 2
    shape: tuple = (1, 8, 8)
    mean: object = None
    std: object = None
    flip: bool = False
    crop: int = 0
    val: float = 0

    def prepare(self): pass
    def load(self, split): return Examples(Read(64), np.arange(64) % 2)
"""
