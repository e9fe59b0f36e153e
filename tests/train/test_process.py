"""Memory that a step frees is the next one's."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from ninefold.train.process import seeds_of
from tests.conftest import ROOT

CODE = """
import resource
import numpy as np
from ninefold.train.process import keep_freed

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(8_000_000)  # 64 MB: 16,000 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's that is set")
def test_memory_that_was_freed_is_had_again_without_a_page_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 100


def test_the_gpus_of_a_process_are_seeded_differently_and_the_first_as_the_process() -> None:
    seeds = seeds_of([2, 0, 1], seed=5)
    assert seeds[2] == 5
    assert len(set(seeds.values())) == 3
