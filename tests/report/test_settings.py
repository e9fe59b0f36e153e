"""The answer in the words of other training loops; tests/frameworks holds these against them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninefold.api.answer import Answer
from ninefold.errors import ConfigError
from ninefold.report.__main__ import main
from ninefold.report.answer.settings import (
    OTHERS,
    Setup,
    Unnamed,
    accelerate,
    hf,
    lightning,
    pytorch,
    settings,
    setup_of,
)
from ninefold.report.data.cell import PLAIN
from tests.conftest import ROOT
from tests.report.studies import NONE_AUTOCAST
from tests.report.test_answer import evidence, in_fp16, runs_of

(RECORDED,) = (ROOT / "experiments" / "nine_way").glob("20*")


def test_the_command_and_the_answer_print_the_same_settings(capsys) -> None:
    assert main([str(RECORDED), "--settings", "hf"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("$ OMP_NUM_THREADS=2 python train.py\nimport transformers\n")
    assert printed.strip() == Answer(RECORDED).settings("hf")
    assert main([str(RECORDED), "--settings", "keras"]) == 2
    assert "error: --settings=keras: it has no words" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"framework=keras: .*lightning, fabric, accelerate, hf"):
        Answer(RECORDED).settings("keras")


def test_a_setup_is_what_a_process_of_the_run_had() -> None:
    run = replace(
        runs_of({PLAIN: 1.0})[0], parallel="ddp", processes=2, threads=4, batch_size=64,
        loader_workers=3, dtype="float16", grad_scaler=True, devices=["H200"] * 2,
        overrides=["accumulate=2", "clip_grad_norm=0.5"],
    )  # fmt: skip
    found = setup_of(run, ["contiguous_format"])
    assert found == Setup(
        device="cuda", precision="fp16", strategy="ddp", processes=2, threads=2, batch=16,
        accumulate=2, clip=0.5, workers=3,
    )  # fmt: skip
    said = "\n".join(hf(found).code)
    for argument in (
        "per_device_train_batch_size=16", "fp16=True", "gradient_accumulation_steps=2",
        "max_grad_norm=0.5", "ddp_find_unused_parameters=False", "dataloader_num_workers=3",
    ):  # fmt: skip
        assert f"    {argument},\n" in said
    assert hf(found).run == "torchrun --standalone --nproc-per-node 2 train.py"


def test_on_a_gpu_fp32_turns_off_what_torch_has_on_and_one_device_is_one() -> None:
    full = Setup(device="cuda")
    for make in (pytorch, *OTHERS):
        code = "\n".join(make(full).code)
        assert 'torch.backends.cudnn.conv.fp32_precision = "ieee"' in code
    assert hf(full).run.startswith("CUDA_VISIBLE_DEVICES=0 ")
    assert 'set_float32_matmul_precision("high")' in "\n".join(
        accelerate(replace(full, precision="tf32")).code
    )


def test_float16_without_a_scaler_is_printed_with_one_where_it_cannot_be_left_out() -> None:
    known = evidence(in_fp16({NONE_AUTOCAST: 0.0}))
    own, *others = settings(known, NONE_AUTOCAST)
    assert not any("GradScaler" in line for line in own.code)
    assert {each.key for each in others} == {"lightning", "fabric", "accelerate", "hf"}
    for each in others:
        assert each.differs[0].startswith("float16 has a GradScaler there; without one it was")
        assert "and with one it is " in each.differs[0]
    assert 'precision="16-mixed"' in "\n".join(others[0].code)


def test_what_a_framework_has_no_word_for_is_not_printed() -> None:
    for make in OTHERS:
        with pytest.raises(Unnamed):
            make(Setup(strategy="dp"))
    assert 'precision="bf16-true"' in "\n".join(lightning(Setup(precision="bf16-weights")).code)
    with pytest.raises(Unnamed):
        hf(Setup(precision="bf16-weights"))
