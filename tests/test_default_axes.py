"""What is compared by default differs on the machine at hand, and is safe without a score."""

import pytest

from ninefold import machine
from ninefold.default_axes import axes, of


@pytest.mark.parametrize(
    ("gpus", "capability", "short", "parallel", "amp"),
    [
        (0, None, True, "none,ddp", "fp32,bf16"),
        (0, None, False, "none,ddp", "fp32"),
        (1, (9, 0), False, "none", "fp32,tf32,bf16"),
        (4, (8, 0), True, "none,ddp", "fp32,tf32,bf16"),
        (1, (7, 5), True, "none", "fp32,scaler"),
        (2, None, True, "none,ddp", "fp32,scaler"),
    ],
)
def test_no_default_has_bare_float16_or_repeats_another(gpus, capability, short, parallel, amp):
    assert of(gpus, capability, short) == {"parallel": parallel, "amp": amp}


def test_on_a_cpu_no_gpu_is_looked_for_and_bf16_is_left_out_where_it_has_no_instructions(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(machine, "PROCESSOR", file := tmp_path / "cpuinfo")
    monkeypatch.delenv(machine.MOST, raising=False)
    for flags, short in (("avx2 avx512_bf16", True), ("avx2", False)):
        file.write_text(f"flags: {flags}\n")
        assert axes("cpu") == of(0, None, short)
    file.unlink()  # where nobody says what it has, it is measured
    assert axes("cpu") == of(0, None, True)
