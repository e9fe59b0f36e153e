"""Settings that a report prints for other frameworks are those of the answer.

A probe of a network says in which precision, on how many processes and with what batch it computes,
in a script that consists of what is printed.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from ninefold.report.loop_settings import (
    OTHERS,
    LoopSetup,
    accelerate,
    fabric,
    hf,
    lightning,
    pytorch,
)

pytestmark = pytest.mark.frameworks

PROBE = """
import json, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("image", torch.zeros(2, 2, 3, 3))

    def forward(self, x=None, labels=None, **more):
        found = self.one(x)
        ranks = torch.distributed
        several = ranks.is_available() and ranks.is_initialized()
        said = {
            "product": str(found.dtype), "weights": str(self.one.weight.dtype),
            "autocast": torch.is_autocast_enabled("cpu"), "batch": len(x),
            "world": ranks.get_world_size() if several else 1, "threads": torch.get_num_threads(),
            "last": self.image.is_contiguous(memory_format=torch.channels_last),
        }
        rank = ranks.get_rank() if several else 0
        with open(f"said{rank}.json", "w") as file:
            json.dump(said, file)
        output = self.two(found)
        loss = nn.functional.cross_entropy(output, labels) if labels is not None else None
        return {"loss": loss, "logits": output}

def note(**more):
    rank = int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)
    dynamo = sys.modules.get("torch._dynamo.utils")
    compiled = dynamo is not None and dynamo.counters["frames"]["total"] > 0
    with open(f"noted{rank}.json", "w") as file:
        json.dump({**more, "compiled": compiled}, file)

data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
"""
LOOPS = {
    "lightning": """
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Probe()

    def training_step(self, batch, index):
        loss = self.net(*batch)["loss"]
        strategy = self.trainer.strategy
        note(unused=getattr(strategy.model, "find_unused_parameters", False),
             views=getattr(strategy.model, "gradient_as_bucket_view", None),
             accumulate=self.trainer.accumulate_grad_batches, clip=self.trainer.gradient_clip_val)
        self.trainer.should_stop = True
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

module = Module()
model = module.net
NETWORK
trainer.fit(module, DataLoader(data, **loader))
""",
    "fabric": """
fabric.launch()
model = Probe()
NETWORK
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
batches = fabric.setup_dataloaders(DataLoader(data, **loader))
loss = model(*next(iter(batches)))["loss"]
fabric.backward(loss)
CLIP
wrapped = model._forward_module
note(unused=getattr(wrapped, "find_unused_parameters", False),
     views=getattr(wrapped, "gradient_as_bucket_view", None))
""",
    "accelerate": """
model = Probe()
NETWORK
model, optimizer, batches = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(data, **loader)
)
loss = model(*next(iter(batches)))["loss"]
accelerator.backward(loss)
CLIP
note(unused=getattr(model, "find_unused_parameters", False),
     views=getattr(model, "gradient_as_bucket_view", None),
     accumulate=accelerator.gradient_accumulation_steps)
""",
    "hf": """
class Items(torch.utils.data.Dataset):
    def __len__(self):
        return len(data)

    def __getitem__(self, index):
        x, label = data[index]
        return {"x": x, "labels": label}

class Noting(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **more):
        wrapped = trainer.model_wrapped
        note(unused=getattr(wrapped, "find_unused_parameters", False),
             accumulate=args.gradient_accumulation_steps, clip=args.max_grad_norm)
        control.should_training_stop = True

arguments.report_to, arguments.save_strategy = [], "no"
model = Probe()
NETWORK
trainer = transformers.Trainer(model, arguments, train_dataset=Items(), callbacks=[Noting()])
trainer.train()
""",
}
PLAIN = """
batches = DataLoader(dataset, sampler=sampler, **loader)
loss = model(*next(iter(batches)))["loss"]
loss.backward()
note(views=model.gradient_as_bucket_view, unused=model.find_unused_parameters,
     read=[*sampler], gradient=model.module.two.bias.grad.tolist())
"""
# At the end of Python gloo's threads abort one process in ten: "terminate called without an active
# exception". What is to be noted is in files by then.
END = """
if torch.distributed.is_initialized():
    import os
    torch.distributed.barrier()
    os._exit(0)
"""
PRODUCTS = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}


def probed(setup: LoopSetup, make, folder: Path) -> tuple[list[dict], list[dict]]:
    """What each process of a script that consists of printed settings has said."""
    printed = make(setup)
    in_loop = [line for line in printed.code if "between backward and step" in line]
    network = [line for line in printed.code if line.startswith(("# before ", "model."))]
    before = [line for line in printed.code if line not in (*in_loop, *network)]
    loop = LOOPS[printed.key].replace("CLIP", "\n".join(in_loop))
    loop = loop.replace("NETWORK", "\n".join(network))
    (folder / "train.py").write_text("\n".join([PROBE, *before, loop, END]))
    run(printed.run, folder)
    return saved("said", folder), saved("noted", folder)


def run(command: str, folder: Path) -> None:
    bin = os.path.dirname(sys.executable)
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def saved(name: str, folder: Path) -> list[dict]:
    """What each process has written down."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}*.json"))]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "scaler"])
@pytest.mark.parametrize("make", OTHERS, ids=[make.__name__ for make in OTHERS])
def test_what_is_printed_trains_as_the_configuration_does(make, precision, processes, tmp_path):
    """On a CPU a configuration with a GradScaler computes in bfloat16, and none scales there."""
    computed = "fp32" if precision == "fp32" else "bf16"
    setup = LoopSetup(
        precision=computed, strategy="ddp" if processes > 1 else "none", processes=processes,
        threads=1, batch=8, accumulate=1, clip=0.5,
    )  # fmt: skip
    said, noted = probed(setup, make, tmp_path)
    assert len(said) == processes
    for each in said:
        assert each["product"] == PRODUCTS[computed]
        assert each["autocast"] is (computed == "bf16")
        assert each["weights"] == "torch.float32"
        assert (each["world"], each["batch"], each["threads"]) == (processes, 8, 1)
    for each in noted:
        assert each["unused"] is False
        assert each.get("views", True) in ((True,) if processes > 1 else (True, None))
        assert each.get("clip", 0.5) == 0.5
        assert each.get("accumulate", 1) == 1
        assert not each["compiled"]


def test_what_is_printed_for_a_loop_of_ones_own_shares_the_examples(tmp_path):
    printed = pytorch(LoopSetup(strategy="ddp", processes=2, batch=8, unused=True))
    start = "import os\ndataset, model = data, Probe()"
    (tmp_path / "train.py").write_text("\n".join([PROBE, start, *printed.code, PLAIN, END]))
    run(printed.run, tmp_path)
    said, noted = saved("said", tmp_path), saved("noted", tmp_path)
    assert [(each["world"], each["batch"]) for each in said] == [(2, 8), (2, 8)]
    assert all(each["views"] and each["unused"] for each in noted)
    assert sorted(noted[0]["read"] + noted[1]["read"]) == list(range(64))
    assert noted[0]["gradient"] == noted[1]["gradient"]


@pytest.mark.parametrize("make", OTHERS, ids=[make.__name__ for make in OTHERS])
def test_what_is_printed_has_the_layout_and_is_compiled_where_the_configuration_is(make, tmp_path):
    setup = LoopSetup(
        precision="bf16", strategy="ddp", processes=2, threads=1, batch=8, layout="channels_last",
        compile="default",
    )  # fmt: skip
    said, noted = probed(setup, make, tmp_path)
    assert [each["last"] for each in said] == [True, True]
    assert [each["compiled"] for each in noted] == [True, True]


def names(printed: str) -> set[str]:
    """The keywords that a call in a printed line passes."""
    import ast

    call = ast.parse(printed).body[-1].value
    assert isinstance(call, ast.Call)
    return {keyword.arg for keyword in call.keywords}


def test_each_printed_argument_is_one_of_the_installed_framework():
    import accelerate as accelerates
    import lightning as lightnings
    import transformers
    from lightning.fabric.plugins.precision.utils import _convert_fp_tensor  # noqa: F401

    full = LoopSetup(
        device="cuda", precision="fp16", strategy="ddp", processes=2, batch=4, accumulate=2,
        clip=1.0, workers=2,
    )  # fmt: skip
    known = {
        lightning: set(inspect.signature(lightnings.Trainer).parameters),
        fabric: set(inspect.signature(lightnings.Fabric).parameters),
        accelerate: set(inspect.signature(accelerates.Accelerator).parameters),
        hf: {each.name for each in fields(transformers.TrainingArguments)},
    }
    called = {
        lightning: "Trainer(",
        fabric: "Fabric(",
        accelerate: "Accelerator(",
        hf: "Arguments(",
    }
    for make, parameters in known.items():
        for precision in ("fp32", "tf32", "bf16", "fp16"):
            lines = make(LoopSetup(**{**vars(full), "precision": precision})).code
            (line,) = [line for line in lines if called[make] in line]
            assert names(line) <= parameters
