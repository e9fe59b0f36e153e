"""Memory that a step frees is the next one's."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.conftest import ROOT

CODE = """
import resource
import numpy as np
from ninefold.train.kernels import give_back_freed, keep_freed

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1_000_000)  # 8 MB: 2,000 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

{}
faults()
print(faults())
"""


def faults(how: str) -> int:
    """Page faults of an array that is allocated a second time, after the statements `how`."""
    code = CODE.format(how)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's that is set")


@glibc
def test_memory_that_was_freed_is_had_again_without_a_page_fault() -> None:
    assert faults("keep_freed()") < 100


@glibc
def test_where_parameters_are_gathered_for_a_short_time_freed_memory_is_given_back() -> None:
    assert faults("give_back_freed()") > 300  # of huge pages too, if there are any
