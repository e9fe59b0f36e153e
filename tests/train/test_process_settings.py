"""Memory that a step frees is the next one's."""

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
    return printed(CODE.format(how))


def printed(code: str) -> int:
    """The number that `code` prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's that is set")


@glibc
def test_memory_that_was_freed_is_had_again_without_a_page_fault():
    assert faults("keep_freed()") < 100


@pytest.mark.slow
@glibc
def test_where_parameters_are_gathered_for_a_short_time_freed_memory_is_given_back():
    assert faults("give_back_freed()") > 300  # of huge pages too, if there are any


ARENAS = """
import ctypes
import tempfile
import threading
from pathlib import Path
from ninefold.train.kernels import keep_freed

keep_freed()
libc, both = ctypes.CDLL(None), threading.Barrier(2)
libc.fopen.restype = ctypes.c_void_p

def take():
    libc.malloc(1000)
    both.wait()

threads = [threading.Thread(target=take) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with tempfile.NamedTemporaryFile() as file:
    out = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, out)
    libc.fclose(out)
    print(Path(file.name).read_text().count("<heap nr="))
"""


@glibc
def test_threads_that_allocate_at_once_wait_for_no_common_lock():
    """Operators allocate in parallel loops: attention's backward pass in bfloat16 took four times
    as long with one arena for all."""
    assert printed(ARENAS) > 1


RESIDENT = """
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
"""
KEPT = f"""
from ninefold.train.kernels import give_back_freed, keep_freed
{RESIDENT}
keep_freed()
blocks = [bytearray(b"1" * 1_000_000) for _ in range(100)]
del blocks
kept = resident()
give_back_freed()
print(kept - resident())
"""
WARM_UP = f"""
import ctypes
from benchmarks import ours
from ninefold.engine.loop import stepper
{RESIDENT}
wide = ["dataset=diabetes", "model=mlp", "model.net.width=4096", "task=regression"]
with ours.training(*wide, "device=cuda", "clock.warmup=1") as run:
    run.before_training(stepper(run))
    after = resident()
    ctypes.CDLL(None).malloc_trim(0)
    print(after - resident())
"""


@pytest.mark.slow
@glibc
def test_memory_that_was_kept_is_given_back_when_it_is_asked_for():
    assert printed(KEPT) > 80e6


@pytest.mark.gpu
@glibc
def test_on_a_gpu_the_copies_of_the_warm_up_are_given_back_to_the_host():
    assert printed(WARM_UP) < 10e6
