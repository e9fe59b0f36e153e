"""The largest batch that fits is found by real steps, without taking memory that is not free."""

import json
import random
import signal

import pytest

from ninefold.errors import ConfigError, Failure, ResourceError
from ninefold.extensions.fits import PARTS
from ninefold.extensions.fits.__main__ import texts
from ninefold.extensions.fits.steps import WHOLE_SET, does_not_fit, search
from tests.conftest import wait_until

EXHAUSTED = ResourceError("memory", "exhausted", "out of memory", "a traceback", "lower batch_size")
GB = 2**30
NET = """
import time, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(64, 10)
    def forward(self, x):
        out = self.one(x.flatten(1))
        DOES
        return out
"""


def test_the_largest_batch_is_found_to_a_sixteenth_whatever_fits():
    draw = random.Random(0)
    for _ in range(500):
        step, most, start, limit = (draw.randint(1, n) for n in (6, 5000, 300, 6000))
        tried: list[int] = []

        def attempt(size: int, tried: list[int] = tried, limit: int = limit) -> None:
            tried.append(size)
            if size > limit:
                raise EXHAUSTED

        fits, fails, why = search(attempt, start, most, step, lambda: None)
        assert len(tried) == len(set(tried)) < 30
        assert all(size % step == 0 and 0 < size <= most for size in tried)
        assert fits == max((size for size in tried if size <= limit), default=0)
        assert fails == min((size for size in tried if size > limit), default=None)
        if fails is None:  # no multiple of the step is larger
            assert most - fits < step
            assert why == WHOLE_SET
        else:
            assert fails - fits <= max(step, fits / 16)
            assert why == EXHAUSTED.cause


def test_what_is_expected_to_need_memory_that_is_not_free_is_not_tried():
    tried: list[int] = []

    def attempt(size: int) -> int:
        tried.append(size)
        return GB + size * GB // 100  # 1 GB, and 10 MB an image

    fits, fails, why = search(attempt, 64, 10_000, 1, lambda: 8 * GB)
    assert max(tried) == fits
    assert 0.9 * 540 < max(tried) <= 540  # 80 % of 8 GB are 6.4
    assert fails is not None
    assert why.startswith("predicted, not tried: ")


def test_another_failure_ends_the_search_as_it_is():
    def attempt(size: int) -> None:
        if size > 256:
            raise ConfigError("model", "odd", "it takes no such batch", "256 is fine", "stay there")
        if size > 128:
            raise EXHAUSTED

    found = search(attempt, 64, 1000, 1, lambda: None)
    assert found == (128, 136, "memory=exhausted: out of memory")
    with pytest.raises(ConfigError, match="model=odd: it takes no such batch"):
        search(attempt, 512, 1000, 1, lambda: None)


def test_memory_is_what_ran_out_when_the_kernel_killed_a_process_and_not_when_a_disk_is_full():
    killed = ResourceError("rank", 0, "its process was killed (SIGKILL)", "most often", "lower")
    full = ResourceError("file", "metrics.jsonl", "No space left on device", "a run", "free some")
    assert [does_not_fit(f) is not None for f in (EXHAUSTED, killed, full)] == [True, True, False]


def test_the_largest_batch_of_each_job_is_found_by_real_steps_from_what_was_counted(shell):
    done = shell.run(
        "-m", "ninefold", "fits", "dataset.limit=132", "dataset.val=0.25", "batch_size=48",
        "threads=2", "augment.mixup=0.2", "accumulate=3",  # of 99 examples, in pairs
        "optimizer.lr=0.1,0.2", "hydra.run.dir=found", code=0,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    for rate in ("0.1", "0.2"):
        assert lines[lines.index(f"optimizer.lr={rate}") + 1] == "batch_size  trying 96"
        limit = f"optimizer.lr={rate}: batch_size=96 is the largest: the whole training set fits"
        assert lines[(place := lines.index(limit)) + 1] == (
            "train with it: python -m ninefold train dataset.limit=132 dataset.val=0.25 threads=2 "
            f"augment.mixup=0.2 accumulate=3 optimizer.lr={rate} batch_size=96"
        )
        assert place >= len(lines) - 4  # of two jobs
        (folder,) = (shell.folder / "found").glob(f"*{rate}")
        found = json.loads((folder / "batch_size.json").read_text())
        assert (found["batch_size"], found["fails_at"], found["counted"]) == (96, None, 96)
        assert (folder / "96" / "result.json").is_file()
        (row,) = (line for line in lines if line.startswith(f"optimizer.lr={rate} "))
        assert row.endswith("  batch_size=96 by real steps, the whole set")
    assert not list(shell.folder.glob("**/events.*"))  # for no logger it is a run


def test_where_the_count_and_real_steps_disagree_both_are_told():
    known = dict.fromkeys(PARTS, 2**20) | {"largest": 96, "counted": 64, "whole": False}
    assert texts(known, searched=True)[-1] == "batch_size=96 by real steps (the count said 64)"
    assert texts({**known, "counted": 96}, searched=True)[-1] == "batch_size=96 by real steps"


def test_a_whole_set_that_is_counted_to_fit_is_tried_at_once(shell):
    """An odd number of examples is never counted, as batch normalization does not take one."""
    done = shell.run(
        "-m", "ninefold", "fits", "dataset.limit=99", "threads=2", "hydra.run.dir=found", code=0
    )
    first, _, row, *_, limit, _ = done.stdout.splitlines()
    assert first == "batch_size  trying 99"
    assert row.endswith("batch_size=99 by real steps, the whole set")
    assert limit == "batch_size=99 is the largest: the whole training set fits"


def own(shell, does: str) -> list[str]:
    """A job with a network of the user's that does so."""
    (shell.folder / "net.py").write_text(NET.replace("DOES", does))
    net = ("model=convnet", "model.net._target_=net.Net")
    return ["dataset.limit=64", "batch_size=32", "threads=2", *net, "hydra.run.dir=found"]


def test_what_cannot_be_counted_is_tried(shell):
    job = own(shell, "out = out[out.sum(1) != 7.0]")
    first, second, *lines = shell.run("-m", "ninefold", "fits", *job, code=0).stdout.splitlines()
    assert first == "not counted: model=convnet: what its step allocates depends on values"
    assert second == "batch_size  trying 32"
    row = lines[2]
    assert row.split()[:5] == ["?"] * 5
    assert row.endswith("  batch_size=64 by real steps, the whole set")


def test_a_signal_ends_the_search_and_no_process_is_left(shell):
    job = own(shell, "time.sleep(type(out) is torch.Tensor)")
    process = shell.start("-m", "ninefold", "fits", *job)
    wait_until(lambda: list(shell.folder.glob("found/*/run.log")), process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    stopped = "error: signal=SIGINT: the count was stopped; nothing of it is kept; start it again"
    assert (process.returncode, stderr.splitlines()[-1]) == (130, stopped)


@pytest.mark.parametrize("given", ["resume=run", "resume=auto"])
def test_a_run_that_is_resumed_is_not_searched(given, shell):
    done = shell.run("-m", "ninefold", "fits", given, code=2)
    assert "steps are taken with new weights, and leave no run" in done.stderr


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("RuntimeError: input.numel() < std::numeric_limits<int32_t>::max() INTERNAL ASSERT", "32"),
        ("RuntimeError: integer out of range", "32"),
        ("RuntimeError: GET was unable to find an engine to execute this computation", "engine"),
        ("RuntimeError: size mismatch", None),
    ],
)
def test_a_batch_that_no_kernel_takes_does_not_fit_and_another_error_ends_the_search(said, why):
    found = does_not_fit(Failure("rank", 0, f"{said}", "traceback in run.log", "please report it"))
    assert found is None if why is None else why in str(found)
