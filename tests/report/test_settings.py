"""The answer in a PyTorch loop of one's own."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from ninefold.answer.cell import PLAIN
from ninefold.api.answer import Answer
from ninefold.config.job import asked, check
from ninefold.config.options import option_keys
from ninefold.config.schema import KEYS
from ninefold.engine.amp import Amp
from ninefold.errors import ConfigError
from ninefold.launch.command import composed
from ninefold.report.loop_settings import CAST, loop_of, settings
from tests.conftest import ROOT, Shell
from tests.report.made import evidence, runs_of
from tests.report.studies import DDP as DDP_CELL

(RECORDED,) = (ROOT / "experiments" / "nine_way").glob("20*")


def test_an_answer_returns_what_its_report_prints_for_ones_own_loop() -> None:
    answer = Answer(RECORDED)
    assert answer.settings() == "$ OMP_NUM_THREADS=2 python train.py"
    (undecided,) = (ROOT / "experiments" / "language").glob("20*")
    with pytest.raises(ConfigError, match="there is nothing to set: "):
        Answer(undecided).settings()


RUN = runs_of({PLAIN: 1.0})[0]


def test_what_the_file_of_an_experiment_sets_is_among_the_overrides_of_its_runs():
    of_ddp = {"find_unused_parameters": True}
    file = {"accumulate": 2, "epochs": 3, "threads": 1, "parallel": of_ddp}
    words = ("experiments=nine_way", "hydra.mode=RUN", "parallel=ddp", "clip_grad_norm=1")
    config = composed(words, "")
    config.merge_with(file)  # as Hydra merges it
    job = check(asked(config, config.hydra)).settle()
    assert {*job.variant} == {
        "clip_grad_norm=1", "accumulate=2", "parallel.find_unused_parameters=true",
    }  # fmt: skip
    of_fields = ("epochs", "threads", "parallel.processes")  # that a result has
    assert not [word for word in job.variant if word.startswith(of_fields)]


GPU = replace(RUN, devices=["H200"], dtype="float32")
DDP = replace(RUN, parallel="ddp", processes=2, batch_size=16)


def test_the_lines_have_what_a_process_of_the_run_had() -> None:
    run = replace(
        RUN, parallel="ddp", processes=2, threads=4, batch_size=64, loader_workers=3,
        dtype="float16", grad_scaler=True, devices=["H200"] * 2, memory_format="channels_last",
        overrides=["accumulate=2", "clip_grad_norm=0.5", "compile.mode=max-autotune",
                   "parallel.find_unused_parameters=true", "loader.pinned=false", "ema=0.9"],
        compile_seconds=9.0,
    )  # fmt: skip
    found = loop_of(run, ["contiguous_format"])
    assert found.run == "torchrun --standalone --nproc-per-node 2 train.py"
    assert found.code == [
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # and the model there: .cuda()',
        "torch.distributed.init_process_group()",
        "# of DataLoader, in each process:",
        "loader = dict(batch_size=16, num_workers=3, persistent_workers=True)",
        "sampler = torch.utils.data.DistributedSampler(dataset)  # and no shuffle=True",
        "model.to(memory_format=torch.channels_last)  # and the inputs",
        'model.compile(mode="max-autotune")',
        "model = torch.nn.parallel.DistributedDataParallel("
        "model, gradient_as_bucket_view=True, find_unused_parameters=True)",
        'scaler = torch.amp.GradScaler("cuda")  # before the loop',
        'with torch.autocast("cuda", dtype=torch.float16):',
        "    outputs = model(inputs)  # and the loss, where the model returns it",
        "loss = loss_function(outputs.float(), targets)",
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
        "scaler.step(optimizer)",
        "scaler.update()",
    ]
    assert found.differs == [
        "It was measured with ema=0.9.",
        "Accumulation over 2 batches is yours: loss / 2, no_sync under DDP.",
    ]
    assert loop_of(DDP).run == "OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 train.py"


class Dtype(nn.Module):
    """Returns its input, and notes the dtype of a matrix product."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen = (rows @ rows).dtype
        return rows


def test_runs_on_several_hosts_have_no_lines_as_a_loop_is_not_started_there_alike() -> None:
    runs = runs_of({PLAIN: 1.0, DDP_CELL: 0.6}, hosts=2)
    assert settings(evidence(runs), DDP_CELL) is None
    assert settings(evidence([replace(run, hosts=1) for run in runs]), DDP_CELL) is not None


def test_dp_computes_in_the_dtype_of_autocast_in_the_threads_that_it_starts() -> None:
    """The network enters autocast itself: a thread takes no dtype from the loop."""
    model, rows = Dtype(), torch.ones(2, 2)
    names: dict[str, Any] = {"torch": torch, "model": model, "inputs": rows, "targets": rows}
    names["loss_function"] = lambda output, target: (output - target).sum()
    exec("\n".join(loop_of(replace(RUN, parallel="dp", dtype="bfloat16")).code), names)
    assert (names["loss"].item(), model.seen) == (0.0, torch.bfloat16)
    assert isinstance(names["model"], nn.DataParallel)
    differs = ["Each GPU computed the loss of its part: this loop gathers the outputs."]
    assert loop_of(replace(GPU, parallel="dp")).differs == differs
    gathered = ["parallel.loss_in_forward=false"]
    assert loop_of(replace(GPU, parallel="dp", overrides=gathered)).differs == []


def test_on_a_gpu_fp32_turns_off_what_torch_has_on() -> None:
    assert 'torch.backends.cudnn.conv.fp32_precision = "ieee"' in "\n".join(loop_of(GPU).code)
    tf32 = replace(GPU, tf32=True, tf32_convolutions=True)
    assert loop_of(tf32).code == ['torch.set_float32_matmul_precision("high")']
    assert loop_of(replace(GPU, tf32_convolutions=True)).code == []  # PyTorch's own default


def test_the_cast_that_is_printed_is_the_measured_one_and_comes_before_ddp() -> None:
    code = loop_of(replace(DDP, weights="bfloat16")).code
    (wrap,) = [line for line in code if "DistributedDataParallel" in line]
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Embedding(2, 2))
    model[1].running_var.fill_(0.3)
    measured = copy.deepcopy(model)
    exec("\n".join(code[code.index(CAST[0]) : code.index(wrap)]), {"torch": torch, "model": model})
    Amp(weights="bfloat16").cast(measured)
    torch.testing.assert_close(
        dict(model.state_dict()), dict(measured.state_dict()), rtol=0, atol=0
    )
    for numbers, dtype in ((torch.zeros(2), torch.bfloat16), (torch.ones(2).long(), torch.int64)):
        names: dict[str, Any] = {"torch": torch, "inputs": numbers, "targets": None}
        names |= {"model": lambda inputs: inputs, "loss_function": lambda output, _: output}
        exec("\n".join(code[code.index(wrap) + 1 :]), names)
        assert (names["inputs"].dtype, names["loss"].dtype) == (dtype, torch.float32)


SCRIPT = """
import json, os, torch
from torch.utils.data import DataLoader, TensorDataset
dataset = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
model = torch.nn.Linear(4, 2)
{code}
inputs, targets = next(iter(DataLoader(dataset, sampler=sampler, **loader)))
torch.nn.functional.cross_entropy(model(inputs), targets).backward()
said = {{"read": [*sampler], "batch": len(inputs), "gradient": model.module.bias.grad.tolist()}}
open(f"said{{os.environ['RANK']}}.json", "w").write(json.dumps(said))
torch.distributed.barrier()
os._exit(0)  # at the end of Python gloo's threads abort one process in ten
"""


@pytest.mark.slow
def test_what_is_printed_for_a_loop_of_ones_own_shares_the_examples(shell: Shell) -> None:
    printed = loop_of(DDP)
    (shell.folder / "train.py").write_text(SCRIPT.format(code="\n".join(printed.code)))
    folder = os.path.dirname(sys.executable)
    command = f"PATH={folder}:$PATH {printed.run}"
    subprocess.run(command, shell=True, cwd=shell.folder, check=True, timeout=240)
    one, two = (json.loads((shell.folder / f"said{rank}.json").read_text()) for rank in range(2))
    assert sorted(one["read"] + two["read"]) == list(range(64))
    assert (one["batch"], two["batch"]) == (8, 8)
    assert one["gradient"] == two["gradient"]


def test_a_loss_is_computed_in_float32_outside_of_autocast_as_it_was_measured() -> None:
    assert loop_of(replace(RUN, dtype="bfloat16")).code == [
        'with torch.autocast("cpu", dtype=torch.bfloat16):',
        "    outputs = model(inputs)  # and the loss, where the model returns it",
        "loss = loss_function(outputs.float(), targets)",
    ]


HOSTILE = (
    "1\nimport os",
    'x")\nimport os\n("',
    '\'"""\nimport os',
    "\x1b]0;import os\x07",
    "[import os",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_strangers_file_is_no_line_of_the_settings(text: str) -> None:
    run = replace(DDP, compile_seconds=9.0, devices=["H200"] * 2)
    overrides = [f"{key}={text}" for key in (*KEYS, *option_keys())]
    plain = loop_of(run)
    for hostile in (overrides, [f"{key}{text}=1" for key in KEYS]):
        found = loop_of(replace(run, overrides=hostile, memory_format=text))
        assert (found.run, found.code) == (plain.run, plain.code)
        assert "import" not in "".join(found.differs)


def test_a_value_that_cannot_be_read_is_said_and_null_is_none() -> None:
    run = replace(RUN, overrides=["clip_grad_norm=${oc.env:CLIP}"])
    assert loop_of(run).differs == ["Its clip_grad_norm cannot be read."]
    run = replace(RUN, overrides=["clip_grad_norm=null", "accumulate='2'", "freeze=[a,b]"])
    found = loop_of(run)
    assert found.code == []
    assert found.differs == [
        "It was measured with freeze.", "Accumulation over 2 batches is yours: loss / 2."
    ]  # fmt: skip
