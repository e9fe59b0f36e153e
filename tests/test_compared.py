"""What is compared by default differs on the machine at hand, and is safe without a score."""

import pytest

from ninefold.compared import axes, of


@pytest.mark.parametrize(
    ("gpus", "capability", "parallel", "amp"),
    [
        (0, None, "none,ddp", "fp32,bf16"),
        (1, (9, 0), "none", "fp32,tf32,bf16"),
        (4, (8, 0), "none,ddp", "fp32,tf32,bf16"),
        (1, (7, 5), "none", "fp32,scaler"),
        (2, None, "none,ddp", "fp32,scaler"),
    ],
)
def test_no_default_has_bare_float16_or_repeats_another(gpus, capability, parallel, amp):
    assert of(gpus, capability) == {"parallel": parallel, "amp": amp}


def test_on_a_cpu_no_gpu_is_looked_for():
    assert axes("cpu") == of(0, None)
