"""The largest batch that fits is found, without taking memory that is not free."""

import json
import random

import pytest

from ninefold.errors import ConfigError, Failure, ResourceError
from ninefold.extensions.finders.max_batch import (
    WHOLE_SET,
    LargestBatch,
    largest_batch,
    of_memory,
    search,
)

EXHAUSTED = ResourceError("memory", "exhausted", "out of memory", "a traceback", "lower batch_size")
GB = 2**30


def test_the_largest_batch_is_found_to_a_sixteenth_whatever_fits():
    draw = random.Random(0)
    for _ in range(500):
        step, most, start, limit = (draw.randint(1, n) for n in (6, 5000, 300, 6000))
        tried: list[int] = []

        def refuses(size: int, tried: list[int] = tried, limit: int = limit) -> str | None:
            tried.append(size)
            return "too large" if size > limit else None

        found = largest_batch(refuses, start, most, step)
        assert len(tried) == len(set(tried)) < 30
        assert all(size % step == 0 and 0 < size <= most for size in tried)
        fitting = [size for size in tried if size <= limit]
        failing = [size for size in tried if size > limit]
        assert found.batch_size == max(fitting, default=None)
        assert found.fails_at == min(failing, default=None)
        if found.fails_at is None:  # no multiple of the step is larger
            assert most - (found.batch_size or 0) < step
            assert (found.status, found.why) == ("whole_set", WHOLE_SET)
        else:
            fits = found.batch_size or 0
            assert found.fails_at - fits <= max(step, fits / 16)
            assert (found.status, found.why) == ("found", "too large")


def test_what_is_expected_to_need_memory_that_is_not_free_is_not_tried():
    tried: list[int] = []

    def attempt(size: int) -> int:
        tried.append(size)
        return GB + size * GB // 100  # 1 GB, and 10 MB an image

    found = search(attempt, 64, 10_000, 1, lambda: 8 * GB)
    assert max(tried) == found.batch_size
    assert 0.9 * 540 < max(tried) <= 540  # 80 % of 8 GB are 6.4
    assert found.fails_at is not None
    assert found.why.startswith("predicted, not tried: ")


def test_another_failure_ends_the_search_and_is_reported():
    def attempt(size: int) -> None:
        if size > 256:
            raise ConfigError("model", "odd", "it takes no such batch", "256 is fine", "stay there")
        if size > 128:
            raise EXHAUSTED

    found = search(attempt, 64, 1000, 1, lambda: None)
    assert found == LargestBatch(128, 136, "found", "memory=exhausted: out of memory")
    found = search(attempt, 512, 1000, 1, lambda: None)
    assert found.batch_size is found.fails_at is None
    assert found.status == "failed"
    assert found.why.startswith("the search ended: error: model=odd: it takes no such batch; ")


def test_memory_is_what_ran_out_when_the_kernel_killed_a_process_and_not_when_a_disk_is_full():
    killed = ResourceError("rank", 0, "its process was killed (SIGKILL)", "most often", "lower")
    full = ResourceError("file", "metrics.jsonl", "No space left on device", "a run", "free some")
    assert [of_memory(f) for f in (EXHAUSTED, killed, full)] == [True, True, False]


def test_the_largest_batch_of_each_job_is_found_in_new_processes(shell):
    done = shell.run(
        "-m", "ninefold", "finders", "what=batch_size", "dataset.limit=132", "dataset.val=0.25",
        "batch_size=64", "threads=2", "augment.mixup=0.2",  # of 99 examples, in pairs
        "optimizer.lr=0.1,0.2", "hydra.run.dir=found", code=0,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    for rate in ("0.1", "0.2"):
        place = lines.index(f"optimizer.lr={rate}")
        assert lines[place + 1 : place + 3] == [
            "batch_size  98 fits (the whole training set fits)",
            "train with it: python -m ninefold train dataset.limit=132 dataset.val=0.25 threads=2 "
            f"augment.mixup=0.2 optimizer.lr={rate} batch_size=98",
        ]
        (folder,) = (shell.folder / "found").glob(f"*{rate}")
        found = json.loads((folder / "batch_size.json").read_text())
        assert (found["batch_size"], found["status"]) == (98, "whole_set")
        assert (folder / "98" / "result.json").is_file()
    assert not list(shell.folder.glob("**/events.*"))  # for no logger it is a run


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
    def attempt(size: int) -> int | None:
        if size > 100:
            raise Failure("rank", 0, f"{said}", "traceback in run.log", "please report it")
        return None

    found = search(attempt, 64, 1000, 1, lambda: None)
    if why is None:
        assert found.status == "failed"
    else:
        assert (found.batch_size, found.status) == (100, "found")
        assert why in found.why
