"""A step holds what it is counted to hold, and the batch that fits is the largest."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import ours
from ninefold.dataset.collated import Collated
from ninefold.engine.parallel import local_part
from ninefold.engine.parallel.none import Single
from ninefold.errors import ConfigError
from ninefold.extensions.fits.__main__ import HEAD, size_of
from ninefold.extensions.fits.counted import largest_part, like, network_of, step_of
from ninefold.train import build
from ninefold.tree import each
from tests.config.test_like import made
from tests.forks import exit_code, fork

IMAGES = ("dataset=synthetic", "dataset.train_count=64", "dataset.test_count=64")
NETS = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "maxvit_t",
    "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf",
    "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t",
    "vgg11", "vgg11_bn", "vit_b_32",
)  # fmt: skip
OF_TIMM = (
    "convmixer_768_32", "deit_tiny_patch16_224", "dla34", "ghostnet_100", "hrnet_w18_small",
    "levit_128s", "mixer_s32_224", "selecsls42b", "rexnet_100", "tf_efficientnet_lite0",
)  # fmt: skip


FSDP = "parallel=fsdp", "parallel.least=1000", "launch.cpu_processes=2"


class Live(TorchDispatchMode):
    """Counts the bytes of all storages that are alive after each operation; `most` is the peak."""

    def __init__(self, *alive: Tensor) -> None:
        super().__init__()
        self.storages: WeakSet[Any] = WeakSet()
        self.most = 0
        self.take(alive)

    def take(self, result: Any) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.storages.add(local_part(leaf).untyped_storage())
        # FSDP drops what it has gathered by making the storage empty.
        self.most = max(self.most, sum(storage.nbytes() for storage in self.storages))

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        result = operation(*arguments, **(options or {}))
        self.take(result)
        return result


def apart(function: Callable[[], Any], folder: Path) -> Any:
    """What a function returns in a process of its own: DTensor keeps what it knows of a mesh."""
    assert exit_code(fork(lambda: torch.save(function(), folder / "found"))) == 0
    return torch.load(folder / "found")


def counted_and_real(*overrides: str, examples: int = 4) -> tuple[int, int]:
    """The bytes of a job's step as they are counted, and those of one that is taken."""
    with step_of(ours.job(*overrides).text) as step:
        counted = step.memory(examples)["total"]
        at, device = step.setup, step.setup.context.device
        net = network_of(at, build.data_of(at, None).layout)
        raw, batch = (
            [each(lambda leaf: like(leaf, examples, device), of) for of in pair]
            for pair in (step.read, step.examples)
        )
        batch[1] = torch.zeros_like(batch[1])
        forward = net.objective
        if at.parallel.shards:
            forward = at.parallel.wrap(net.objective, at.context)
        state = build.state_of(replace(at, parallel=Single()), net, per_epoch=1)
        with Live(*net.objective.parameters(), *net.objective.buffers(), *raw, *batch) as live:
            for _ in range(2):
                for parts in zip(*(part.chunk(at.job.accumulate) for part in batch), strict=True):
                    forward(*parts).backward()
                state.optimizer.step()
                state.drop_gradients()
    return counted, live.most


@pytest.mark.parametrize(
    "how", [["amp=fp32"], ["amp=bf16"], ["accumulate=2"], FSDP, [*FSDP, "amp=bf16"]]
)
def test_a_step_holds_what_it_is_counted_to_hold(tmp_path, how):
    counted, real = apart(lambda: counted_and_real(*IMAGES, "model=convnet", *how), tmp_path)
    assert counted == pytest.approx(real, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    "net",
    [f"{{_target_:torchvision.models.{name},num_classes:10}}" for name in NETS]
    + [f"{{_target_:timm.create_model,model_name:{name},num_classes:10}}" for name in OF_TIMM],
)
def test_a_known_network_holds_what_it_is_counted_to_hold(net):
    given = ("model=alexnet", f"+model.net={net}", "model.input_size=224")
    counted, real = counted_and_real(*IMAGES, *given, examples=2)
    assert counted == pytest.approx(real, rel=0.05)


def test_the_batch_that_fits_is_the_largest_or_nearly_so():
    draw = random.Random(0)
    for _ in range(500):
        lines = [(draw.randint(0, 10**6), draw.randint(1, 10**4)) for _ in range(3)]

        def bytes_of(examples, lines=lines):
            return max(fixed + examples * each for fixed, each in lines)

        multiple, most, memory = draw.choice([1, 4]), draw.randint(4, 5000), draw.randint(1, 10**7)
        start = draw.randint(1, 5000)
        found = largest_part(bytes_of, start, most, multiple, memory)
        assert found % multiple == 0
        assert not found or bytes_of(found) <= memory
        if (larger := found + max(multiple, found // 49)) <= most:
            assert bytes_of(larger) > memory


def test_each_configuration_has_a_row_with_its_largest_batch(shell):
    done = shell.run(
        "-m", "ninefold", "fits", *IMAGES, "amp=fp32,bf16", "parallel=none,ddp", "memory=40MiB",
        code=0,
    )  # fmt: skip
    head, *rows = done.stdout.splitlines()[:5]
    assert head.split() == " ".join(HEAD).split()
    cells = [f"amp={amp} parallel={how}" for amp in ("fp32", "bf16") for how in ("none", "ddp")]
    assert [" ".join(row.split()[:2]) for row in rows] == cells
    assert all("batch_size=" in row and row.endswith(" in 0.0391 GiB") for row in rows)
    assert "\nThe largest batch is limited by memory=, and leaves room " in done.stdout


def test_a_key_that_one_strategy_has_is_left_out_of_the_rows_of_others(shell):
    own = "parallel.find_unused_parameters=true,false"
    done = shell.run(
        "-m", "ninefold", "fits", *IMAGES, "parallel=none,ddp", own, "memory=40MiB", code=0
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("parallel=")]
    assert [row.partition("  ")[0] for row in rows] == [
        "parallel=none",
        "parallel=ddp parallel.find_unused_parameters=True",
        "parallel=ddp parallel.find_unused_parameters=False",
    ]


def test_what_a_study_was_made_with_is_counted(shell):
    stored = made(shell.folder / "study", "model=mlp", "parallel=none,ddp", "dataset.limit=64")
    done = shell.run("-m", "ninefold", "fits", f"like={stored}", "memory=40MiB", code=0)
    assert re.match(r"counting a step's memory: mlp on digits \(64 examples\), adamw", done.stderr)


@pytest.mark.parametrize("text", ["24", "24GB", "0GiB", "-1MiB", "muchGiB"])
def test_a_memory_that_is_no_size_is_one_line(text):
    with pytest.raises(ConfigError, match="a number of MiB or GiB is allowed"):
        size_of(text)


def test_ddp_holds_all_gradients_where_one_process_holds_none_yet():
    held = {}
    for parallel in ("none", "ddp"):
        given = (*IMAGES, "model=alexnet", "model.input_size=63", f"parallel={parallel}")
        with step_of(ours.job(*given).text) as step:
            held[parallel] = step.memory(16)
            weights = sum(p.nbytes for p in step.network.model.parameters())
    assert held["none"]["gradients"] < weights
    assert held["ddp"]["gradients"] == weights


def test_a_row_that_cannot_be_counted_leaves_the_others_and_each_model_is_named(shell):
    several = "compile.mode=null,default", "model=convnet,mlp"
    done = shell.run("-m", "ninefold", "fits", *IMAGES, *several, "memory=1GiB", code=2)
    assert "compile.mode=null model=mlp " in done.stdout
    lines = done.stderr.splitlines()
    said = [line for line in lines if line.startswith("counting a step's memory: ")]
    of = r"counting a step's memory: (\w+) on \w+ \(\d+ examples\), adamw, \w+"
    assert [re.sub(of, r"\1", line) for line in said[:2]] == ["convnet", "mlp"]
    assert lines[: len(said)] == said  # at once, before the figures and what failed
    assert lines[len(said)].startswith("error: compile.mode=default")


def test_a_batch_with_text_or_of_a_collate_fn_is_not_counted():
    with pytest.raises(ConfigError, match=r"^error: dataset=collated: .* without text and a coll"):
        like(Collated([0, 1], list, ["a", "b"]), 2, torch.device("cpu"))


def test_a_row_that_is_refused_is_told_before_any_is_counted(shell):
    words = ("optimizer=sgd", "optimizer.fused=true", "parallel=ddp,fsdp", "memory=1GiB")
    done = shell.run("-m", "ninefold", "fits", *IMAGES, *words, code=2)
    assert done.stderr.startswith("error: optimizer.fused=true: ")
    assert done.stdout == ""


def test_a_set_that_is_smaller_than_the_smallest_batch_is_said_to_be(shell):
    words = ("dataset.limit=3", "parallel=ddp", "parallel.processes=2", "accumulate=2")
    done = shell.run("-m", "ninefold", "fits", *IMAGES, *words, code=2)
    said = (
        "accumulate=2: the smallest batch has 4 examples; 3 are there; lower accumulate or parallel"
    )
    assert done.stderr.splitlines()[-1].startswith(f"error: {said}")


def test_each_process_of_fsdp_holds_its_part_of_the_optimizers_state(tmp_path):
    def state(processes: int) -> int:
        given = "model=convnet", "parallel=fsdp", f"launch.cpu_processes={processes}"
        with step_of(ours.job(*IMAGES, *given).text) as step:
            return step.memory(4)["optimizer"]

    whole, part = (apart(partial(state, processes), tmp_path) for processes in (1, 4))
    assert part == pytest.approx(whole / 4, rel=0.02)


UNCOUNTED = """
import torch
class Sparse(torch.nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.one = torch.nn.Linear(3072, width)
    def forward(self, x):
        out = self.one(x.flatten(1))
        DOES
"""


@pytest.mark.parametrize(
    ("does", "line"),
    [
        ("return out[out.sum(1) != 7.0]", "what its step allocates depends on values"),
        ("raise SystemExit(3)", "SystemExit: 3; "),
    ],
)
def test_a_step_that_cannot_be_counted_is_one_line_and_names_real_steps(shell, does, line):
    (shell.folder / "sparse.py").write_text(UNCOUNTED.replace("DOES", does))
    done = shell.run(
        "-m", "ninefold", "fits", *IMAGES, "model=convnet", "model.net._target_=sparse.Sparse",
        "memory=1GiB", code=2,
    )  # fmt: skip
    _, said = done.stderr.splitlines()  # first what is counted
    assert line in said
    assert said.endswith("leave memory= out, and real steps are taken")
