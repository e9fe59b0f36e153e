"""Which GPUs a run uses, by number; on this machine's CPU as far as that goes."""

import pytest
import torch

from ninefold.config.processes import named_gpus
from ninefold.engine.parallel import gpu_numbers, resolve_device
from ninefold.engine.parallel.group import gpu_of, gpus_of_host
from ninefold.errors import ConfigError
from ninefold.machine import gpus, require_gpus
from tests.faults.runs import one_after_another

TWO = ["NVIDIA H200 (139 GiB)", "NVIDIA H200 (139 GiB)"]


def test_a_gpu_that_is_not_there_is_answered_with_those_that_are():
    require_gpus("device", "cuda:1", [1], TWO)
    with pytest.raises(ConfigError) as caught:
        require_gpus("parallel.devices", [0, 2], [0, 2], TWO)
    line = str(caught.value)
    assert line.startswith(
        "error: parallel.devices=[0, 2]: there is no GPU 2; 2 GPUs: 0 NVIDIA H20"
    )
    with pytest.raises(ConfigError, match=r"device=cuda:1: there is no GPU 1; 1 GPU: 0 NVIDIA"):
        require_gpus("device", "cuda:1", [1], TWO[:1])
    with pytest.raises(ConfigError, match=r"there is no GPU 0; no GPU found; use device=cpu"):
        require_gpus("device", "cuda:0", [0], [])


def test_numbers_choose_gpus_in_their_order_and_nothing_chooses_all():
    assert gpu_numbers(None, 3) == (0, 1, 2)
    assert gpu_numbers([2, 0], 3) == (2, 0)
    assert [gpu_of([2, 0], local_rank) for local_rank in (0, 1)] == [2, 0]
    with pytest.raises(ConfigError, match=r"parallel.devices=\[2, 0\]: process 2 .* has no GPU"):
        gpu_of([2, 0], 2)
    assert named_gpus("cuda:3", None) == [3]
    assert named_gpus("auto", [0, 2]) == [0, 2]
    assert named_gpus("auto", ["cpu", "cuda:2"]) == [2]
    assert named_gpus("auto", ["cpu"]) == []
    assert named_gpus("auto", "auto") is None
    assert named_gpus("cuda", None) is None


def test_on_a_machine_without_gpus_a_numbered_one_is_one_line(shell):
    there = len(gpus())
    commands = [
        ["train.py", f"device=cuda:{there}"],
        ["train.py", "parallel=ddp", f"parallel.devices=[0,{there + 1}]"],
        ["train.py", "parallel=dp", f"parallel.devices=[{there}]"],
        ["train.py", "parallel=dp", "device=cuda:0"],
        ["train.py", "parallel=ddp", "parallel.devices=[0]", "device=cpu"],
        ["train.py", "parallel=none", "+parallel.devices=[0]"],
        ["train.py", "device=cuda:x"],
    ]
    for done in one_after_another(shell, *commands):
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith(("error: device=", "error: parallel.devices="))
    with pytest.raises(ConfigError, match=r"there is no GPU"):
        resolve_device(f"cuda:{there}")
    assert resolve_device("cpu") == torch.device("cpu")


OF_HOST = (3, 4)  # local rank and size
SHOWN = {"CUDA_VISIBLE_DEVICES": "5"}


def test_a_process_that_is_shown_one_gpu_of_its_own_takes_it():
    numbers = gpus_of_host(None, 1, *OF_HOST, SHOWN)
    assert gpu_of(numbers, 3) == 0
    assert len(numbers) == 4  # of each process of the host, which all number theirs 0


@pytest.mark.parametrize(
    ("devices", "count", "of_host", "environment", "number"),
    [
        (None, 1, OF_HOST, {}, 3),  # nobody has restricted it: GPU 3 is missing, which is told then
        (None, 4, OF_HOST, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 3),
        ([6, 4, 2, 0], 8, OF_HOST, {}, 0),
        (None, 1, (0, 1), SHOWN, 0),
        (None, 0, (1, 2), {"CUDA_VISIBLE_DEVICES": ""}, 1),  # on a CPU
    ],
)
def test_others_take_the_gpu_of_their_local_rank(devices, count, of_host, environment, number):
    numbers = gpus_of_host(devices, count, *of_host, environment)
    assert gpu_of(numbers, of_host[0]) == number
