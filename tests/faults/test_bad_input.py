"""Set D: bad input. Each is one line that names the field, with the documented exit code.

What is rejected before a folder is made leaves none; an older run stays as it was; no process and
no traceback is left on the screen, whatever the number of processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ninefold.engine.amp import Amp, verify
from ninefold.errors import ConfigError
from tests.conftest import ROOT, Shell
from tests.faults.refusals import Done, refused, timed

TWO = ("parallel=ddp", "launch.cpu_processes=2")


@dataclass(frozen=True)
class Case:
    """A command line and what it must come to.

    fields: `field=value` of each line, or its beginning. early: before a folder is made.
    """

    arguments: str
    fields: str | tuple[str, ...]
    hint: str = ""
    code: int = 2
    early: bool = True
    two: bool = False  # it is repeated with two processes

    @property
    def id(self) -> str:
        return self.arguments.replace("/", "|").replace("\x00", "0")[:60] or "nothing"


# What `make test` tries: it is to take a minute.
QUICK = {
    "epohcs=3",
    "optimizer.lrr=1",
    "epochs=two",
    "epochs=-1",
    "optimizer.lr=nan",
    "amp=fp8",
    "parallel=ddpp",
    "optimizer.lr=${nothing}",
    "epochs=1 epochs=2",
    "seed=0,1",
    "epochs=-1 batch_size=0 amp=fp8 epohcs=1",
    "~dataset",
    "~epochs",
    "model.net=null",
    "dataset.shape=3",
    "hydra.run.dir=",
    "foo",
    "héé=3",
    "--mutlirun",
    "-m --cfg job",
    "--config-name nope",
    "parallel=ddp parallel.processes=0",
    "parallel=dp parallel.processes=2",
    "amp.dtype=float64",
    "dataset=cifar10 dataset.root=nowhere",
    "batch_size=63 parallel=ddp parallel.processes=2",
    "model=resnet18 dataset=synthetic dataset.shape=[4,8,8]",
    "hydra.run.dir=e",
    "ckpt=nowhere",
    "ckpt=older paralel=ddp",
    "resume=nowhere",
    "resume=older hydra.run.dir=x",
}


def slow_but(quick: bool) -> list[pytest.MarkDecorator]:
    """The mark of a case for `make faults` only, if it is one."""
    return [] if quick else [pytest.mark.slow]


def cases(found: list[Case]) -> list[Any]:
    """The cases, all but a few and those with two processes for `make faults` only."""
    twice = [
        pytest.param(case, TWO, id=f"two processes {case.id}", marks=pytest.mark.slow)
        for case in found
        if case.two
    ]
    once = [
        pytest.param(case, (), id=case.id, marks=slow_but(case.arguments in QUICK))
        for case in found
    ]
    return once + twice


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps."""
    shell = Shell(tmp_path_factory.mktemp("older"))
    done = shell.train("max_steps=2", "hydra.run.dir=older", "logger=quiet")
    assert done.returncode == 0, done.stderr
    return shell.folder / "older"


@pytest.fixture
def older(trained: Path, shell: Shell) -> Iterator[Path]:
    """A run beside what is tried, which must not change."""
    folder = shell.folder / "older"
    shutil.copytree(trained, folder)
    before = tree(folder)
    yield folder
    assert tree(folder) == before, "an older run was changed"


def tree(folder: Path) -> dict[str, str]:
    """The sha256 of each file below `folder`."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def try_out(run: Callable[..., Done], case: Case, more: tuple[str, ...], older: Path) -> None:
    arguments = case.arguments.replace("\x00", "7" * 5000).split(" ") if case.arguments else [""]
    if any(argument.startswith("parallel=") for argument in arguments):
        more = more[1:]
    done = timed(run, *arguments, *more)
    fields = (case.fields,) if isinstance(case.fields, str) else case.fields
    refused(done, case.code, *fields, hint=case.hint)
    if case.early:
        assert done.stdout == ""
        assert os.listdir(older.parent) == ["older"], "something was written"


# Configuration

CONFIGURATION = [
    Case("epohcs=3", "epohcs=3", "did you mean epochs?", two=True),
    Case("+epoch=3", "epoch=3", "did you mean epochs"),
    Case("paralel=ddp", "paralel=ddp", "did you mean parallel?"),
    Case("optimizer.lrr=1", "optimizer.lrr=1", "did you mean optimizer.lr"),
    Case("model.net.depth=3", "model.net.depth=3", "no such key"),
    Case("+checkpoint.kep=3", "checkpoint.kep=3", "did you mean keep?"),
    Case("+amp.foo=1", "amp.foo=1", "known are"),
    Case("hydra.foo=1", "hydra.foo=1", "no such key"),
    Case("epochs=two", "epochs=two", "whole number", two=True),
    Case("epochs=", "epochs=", "whole number"),
    Case("seed=1.5", "seed=1.5", "whole number"),
    Case("seed=[1,2]", "seed=[1, 2]", "whole number"),
    Case("epochs={a:1}", "epochs={'a': 1}", "whole number"),
    Case("epochs=-1", "epochs=-1", "at least 0", two=True),
    Case("optimizer.lr=0", "optimizer.lr=0", "above 0"),
    Case("optimizer.lr=nan", "optimizer.lr=nan", "above 0", two=True),
    Case("optimizer.lr=1e400", "optimizer.lr=inf", "above 0"),
    Case("epochs=1e400", "epochs=inf", "whole number"),
    Case("batch_size=0", "batch_size=0", "at least 1"),
    Case("amp=fp8", "amp=fp8", "autocast, bf16, fp32"),
    Case("parallel=foo", "parallel=foo", "ddp, dp, fsdp, none, tensor"),
    Case("parallel=ddpp", "parallel=ddpp", "did you mean ddp"),
    Case("experiments=nine_wey", "experiments=nine_wey", "did you mean nine_way"),
    Case("optimizer.lr=???", "optimizer.lr=???", "Missing mandatory value"),
    Case("optimizer.lr=${nothing}", "optimizer.lr=${nothing}", "'nothing' not found", two=True),
    Case("hydra.run.dir=${nothing}", "hydra.run.dir=${nothing}", "not found"),
    Case("epochs=1 epochs=x", "epochs=x", "whole number"),
    Case("amp=fp32 amp=scaler amp=fp8", "amp=fp8", "autocast, bf16, fp32"),
    Case("seed=0,1", "seed=0,1", "add -m"),
    Case("epochs=-1 batch_size=0 amp=fp8 epohcs=1",
         ("epochs=-1", "batch_size=0", "amp=fp8", "epohcs=1")),
    Case("max_steps=-1 device=tpu +dataset.foo=1", ("max_steps=-1", "device=tpu")),
    # Groups, sections and keys that are taken away or are something else
    Case("parallel=", "parallel=", "ddp, dp, fsdp, none, tensor"),
    Case("model=null", "model=null", "alexnet, convnet, gpt"),
    Case("optimizer=5", "optimizer=5", "adamw, sgd"),
    Case("model=[convnet]", "model=[convnet]", "no such option"),
    Case("~dataset", "dataset=~", "cannot be taken away"),
    Case("~epochs", "epochs=nothing", "it is missing"),
    Case("~checkpoint.keep", "checkpoint.keep=nothing", "it is missing"),
    Case("model.net=null", "model.net=null", "_target_"),
    Case("logger.jsonl=null", "logger.jsonl=null", "~logger.jsonl"),
    Case("optimizer._target_=5", "optimizer._target_=5", "dotted name"),
    Case("launch=null", "launch=null", "not a section"),
    Case("dataset.shape=3", "dataset.shape=3", "[channels, height, width]"),
    Case("dataset.root=5", "dataset.root=5", "text or null"),
    Case("hydra.run.dir=", "hydra.run.dir=", "it names nothing"),
    Case("checkpoint.keep=1", "checkpoint.keep=1", "at least 2"),
    Case("scheduler=cosine scheduler.T_max=0", "scheduler.T_max=0", "at least 1"),
    # What is no command line
    Case("", "override=''", "key=value"),
    Case("foo", "foo=", "key=value"),
    Case("=3", "override='=3'", "key=value"),
    Case('seed="a', 'seed="a', "key=value"),
    Case("seed=[1,2", "seed=[1,2", "key=value"),
    Case("héé=3", "héé=3", "key=value"),
    Case("epochs=١", "epochs=١", "a whole number of at least 0"),
    Case("model.net.width=\x00", "model.net.width=777", "5000 characters"),
    Case("--mutlirun", "arguments=--mutlirun", "did you mean --multirun"),
    Case("seed=0 -m epochs=1", "arguments=epochs=1", "put the flags first"),
    Case("--config-name nope", "--config-name=nope", "Cannot find primary config"),
    Case("--config-path nope", "--config-path=nope", "not found"),
    Case("--config-dir nope", "--config-dir=nope", "not found"),
    Case("--cfg nope", "arguments=--cfg", "invalid choice"),
    Case("-m --cfg job", "arguments=-m --cfg", "Only one of"),
    Case("--resolve", "arguments=--resolve", "--cfg"),
    Case("--shell-completion", "arguments=--shell-completion", "install"),
]  # fmt: skip

DEVICES = [
    Case("parallel=ddp parallel.processes=0", "parallel.processes=0", "at least 1"),
    Case("parallel=none parallel.processes=2", "parallel.processes=2", "parallel=ddp"),
    Case("parallel=dp parallel.processes=2", "parallel.processes=2", "parallel=ddp"),
    Case("parallel=ddp parallel.processes=2 launch.inline=true", "launch.inline=true", "2 proc"),
    Case("amp.dtype=float64", "amp.dtype=float64", "bfloat16", two=True),
    Case("amp.dtype=fp8", "amp.dtype=fp8", "bfloat16"),
    Case("parallel=ddp parallel.backend=nccl", "parallel.backend=nccl", "no such key"),
    Case("parallel=ddp +parallel.backend=nccl", "parallel.backend=nccl", "no such key"),
    Case("threads=100000", "threads=100000", "at most 1024"),
    Case("amp.init_scale=1e300 amp=scaler", "amp.init_scale=1e+300", "below"),
    Case("launch.timeout=1e300", "launch.timeout=1e+300", "below"),
]

DATA = [
    Case("dataset=cifar10 dataset.root=nowhere", "dataset.root=nowhere",
         "dataset.download=true", 4, two=True),
    Case("dataset=folder dataset.root=nowhere", "dataset.root=nowhere", "no such folder", 4,
         two=True),
    Case("dataset=folder", "dataset.root=null", "set dataset.root", 4),
    Case("batch_size=63 parallel=ddp parallel.processes=2", "batch_size=63", "62 or 64"),
    Case("batch_size=63 parallel=ddp launch.cpu_processes=2", "batch_size=63", "62 or 64"),
    Case("model=resnet18 dataset=synthetic dataset.shape=[4,8,8]", "model.input_channels=3",
         "4 channels"),
    Case("dataset.mean=[0.1,0.2]", "dataset.mean=[0.1, 0.2]", "2 numbers, 1 channels"),
    Case("dataset.std=null", "dataset.std=null", "dataset.mean is given"),
    Case("dataset.classes=5", "dataset.classes=5", "labels from 0 to 9", 4, early=False,
         two=True),
    Case("dataset.shape=[1,9,9]", "dataset.shape=[1, 9, 9]", "found [1, 8, 8]", 4, early=False,
         two=True),
    Case("dataset.limit=10", "batch_size=64", "10 examples found", 4, early=False,
         two=True),
    Case("+model.net.depth=3", "model.net=ninefold", "depth", early=False, two=True),
    Case("model.net={_target_:torch.nn.Flatten,start_dim:2}", "model.net={", "++model.net="),
]  # fmt: skip


@pytest.mark.parametrize(("case", "more"), cases(CONFIGURATION + DEVICES + DATA))
def test_a_mistake_in_training_is_one_line(
    shell: Shell, older: Path, case: Case, more: tuple[str, ...]
) -> None:
    try_out(shell.train, case, more, older)


EVALUATION = [
    Case("hydra.run.dir=e", "ckpt=???", "nothing is given", two=True),
    Case("ckpt=", "ckpt=", "it names nothing"),
    Case("ckpt=null", "ckpt=null", "it names nothing"),
    Case("ckpt=nowhere", "ckpt=nowhere", "no such checkpoint", 3),
    Case("ckpt=older/.hydra", "ckpt=older/.hydra", "checkpoints/last.pt", 3),
    Case("ckpt=older hydra.run.dir=older", "hydra.run.dir=older", "choose another"),
    Case("ckpt=older epochs=1", "epochs=1", "no such key"),
    Case("ckpt=older paralel=ddp", "paralel=ddp", "did you mean parallel"),
    Case("ckpt=older model=null", "model=null", "alexnet"),
    Case("ckpt=older dataset.limit=3", "dataset.limit=3", "add dataset=OPTION"),
    Case("ckpt=older +seed=1", "seed=1", "no such key"),
    Case("ckpt=older batch_size=0 load.partial=1", ("batch_size=0", "load.partial=1")),
]


@pytest.mark.parametrize(("case", "more"), cases(EVALUATION))
def test_a_mistake_in_evaluating_is_one_line(
    shell: Shell, older: Path, case: Case, more: tuple[str, ...]
) -> None:
    try_out(shell.evaluate, case, more, older)


RESUMING = [
    Case("resume=nowhere", "resume=nowhere", "config.yaml"),
    Case("resume=", "resume=", "it names nothing"),
    Case("resume=[1]", "resume=[1]", "it names nothing"),
    Case("resume=older hydra.run.dir=x", "hydra.run.dir=x", "leave hydra.run.dir out"),
    Case("hydra.run.dir=older", "hydra.run.dir=older", "resume=older"),
    Case("resume=older seed=3 model=resnet18", "resume=older", "model"),
    Case("resume=older epochs=-1", "epochs=-1", "at least 0"),
]


@pytest.mark.parametrize(("case", "more"), cases(RESUMING))
def test_a_mistake_in_resuming_is_one_line(
    shell: Shell, older: Path, case: Case, more: tuple[str, ...]
) -> None:
    try_out(shell.train, case, more, older)


@pytest.mark.slow
def test_a_study_that_is_no_yaml_is_one_line(shell: Shell, older: Path) -> None:
    (shell.folder / "mine" / "experiments").mkdir(parents=True)
    (shell.folder / "mine" / "experiments" / "study.yaml").write_text("# @package _global_\na: [1")
    done = timed(shell.train, "--config-dir", "mine", "experiments=study")
    refused(done, 2, "config=", hint="it is not YAML")


@pytest.mark.slow
def test_a_sweep_that_names_an_option_that_does_not_exist_runs_no_cell(
    shell: Shell, older: Path
) -> None:
    done = timed(shell.train, "-m", "parallel=none,ddpp", "hydra.sweep.dir=sweep")
    refused(done, 2, "parallel=ddpp", hint="did you mean ddp")
    assert not list((shell.folder / "sweep").glob("*/result.json"))


@pytest.mark.slow
def test_a_sweep_under_torchrun_is_refused(shell: Shell) -> None:
    done = timed(shell.torchrun, "-m", "parallel=ddp", "seed=0,1")
    assert "error: hydra.mode=MULTIRUN:" in done.stderr
    assert done.stderr.count("error: ") == 1


# Devices and launching


@pytest.mark.parametrize(
    "more", [(), pytest.param(TWO, marks=pytest.mark.slow)], ids=["one", "two"]
)
def test_a_gpu_that_is_not_there_is_one_line(
    shell: Shell, older: Path, more: tuple[str, ...]
) -> None:
    refused(timed(shell.train, "device=cuda", *more), 2, "device=cuda", hint="device=cpu")


@pytest.mark.gpu
def test_more_processes_than_gpus_is_one_line(shell: Shell, older: Path) -> None:
    wanted = torch.cuda.device_count() + 1
    done = timed(shell.train, "parallel=ddp", f"parallel.processes={wanted}", "device=cuda",
                 f"batch_size={8 * wanted}")  # fmt: skip
    refused(done, 2, f"parallel.processes={wanted}", hint="more processes than GPUs")


@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA is not available")
def test_a_grad_scaler_that_disables_itself_is_an_error() -> None:
    amp, cpu = Amp(dtype="bfloat16", scaler=True), torch.device("cpu")
    scaler = amp.grad_scaler(cpu)
    scaler._enabled = False  # as torch does where the scaler's device is missing
    with pytest.raises(ConfigError, match=r"^error: amp.scaler=True: the GradScaler disabled"):
        verify(amp, scaler, cpu)


AGENT = {
    "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "0",
    "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({}, "MASTER_ADDR=127.0.0.1: rank 0's store does not answer on port 1 ", 7),
        ({"RANK": "1", "LOCAL_RANK": "1"}, "MASTER_ADDR=127.0.0.1: rank 0's store", 7),
        ({"MASTER_ADDR": "nowhere.invalid"}, "MASTER_ADDR=nowhere.invalid", 7),
        ({"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}, "LOCAL_RANK=unset", 2),
        pytest.param({"WORLD_SIZE": "x"}, "WORLD_SIZE=x", 2, marks=pytest.mark.slow),
        ({"TORCHELASTIC_RUN_ID": ""}, "WORLD_SIZE=2", 2),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else str(value),
)
def test_an_environment_that_is_not_torchruns_is_one_line(
    shell: Shell, older: Path, change: dict[str, str], field: str, code: int
) -> None:
    env = {name: value for name, value in {**AGENT, **change}.items() if value}
    done = timed(shell.train, "parallel=ddp", "max_steps=1", env=env)
    refused(done, code, field)
    assert os.listdir(shell.folder) == ["older"]


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_port_where_another_service_listens_is_one_line(
    shell: Shell, older: Path, rank: str
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = str(silent.getsockname()[1])
        env = {**AGENT, "RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
        done = timed(shell.train, "parallel=ddp", "max_steps=1", env=env)
    refused(done, 7, f"MASTER_ADDR=127.0.0.1: rank 0's store does not answer on port {port} ")


@pytest.mark.slow
def test_a_strategy_that_wants_other_processes_than_torchrun_started_is_one_line(
    shell: Shell, older: Path
) -> None:
    for wanted in ("parallel=none", "parallel=ddp parallel.processes=4"):
        done = timed(shell.torchrun, *wanted.split())
        assert done.returncode != 0
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("error: parallel.processes=")
        assert "torchrun started 2" in lines[0]
    assert os.listdir(shell.folder) == ["older"]


# Data


def images(root: Path, classes: int = 2) -> Path:
    """A small set in folders, six images of each class in train and test."""
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(classes):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return root


def _emptied(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.jpg")


IMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty root": (_emptied, "it holds no folder train"),
    "a root above the data": (
        lambda root: (
            root.rename(root.with_name("s")),
            root.mkdir(),
            root.with_name("s").rename(root / "s"),
        ),
        "found s; set dataset.root=",
    ),
    "one class only": (
        lambda root: [shutil.rmtree(root / split / "class1") for split in ("train", "test")],
        "one class only",
    ),
    "a corrupt image": (
        lambda root: (root / "train" / "class0" / "3.jpg").write_bytes(b"\xff\xd8\xff" + b"x" * 99),
        "3.jpg is no usable image",
    ),
    "text for an image": (
        lambda root: (root / "test" / "class1" / "3.jpg").write_text("<html>not found</html>"),
        "3.jpg is no usable image",
    ),
    "an empty file": (
        lambda root: (root / "train" / "class1" / "3.jpg").write_bytes(b""),
        "0 bytes",
    ),
    "an unreadable file": (lambda root: _dangling(root / "train" / "class1" / "3.jpg"), "3.jpg"),
    "images of 16 bits": (
        lambda root: Image.fromarray(np.zeros((9, 9), np.uint16)).save(
            root / "train" / "class0" / "9.png"
        ),
        "9.png",
    ),
    "no images in a class": (
        lambda root: [path.unlink() for path in (root / "train" / "class0").iterdir()],
        "no images in",
    ),
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=slow_but(fault in ("one class only", "an empty file")))
        for fault in IMAGES
    ],
)  # fmt: skip
def test_a_folder_of_images_with_a_fault_is_one_line(shell: Shell, older: Path, fault: str) -> None:
    make, hint = IMAGES[fault]
    make(images(shell.folder / "set"))
    done = timed(shell.train, "dataset=folder", "dataset.root=set", "dataset.classes=2",
                 "dataset.shape=[3,8,8]", "batch_size=4")  # fmt: skip
    refused(done, 4, "dataset.root=set", hint=hint)
    assert sorted(os.listdir(shell.folder)) == ["older", "set"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), TWO], ids=["one", "two"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_cut_short_is_one_line(
    shell: Shell, older: Path, workers: int, more: tuple[str, ...]
) -> None:
    _cut(images(shell.folder / "set") / "train" / "class0" / "3.jpg")
    done = timed(shell.train, "dataset=folder", "dataset.root=set", "dataset.classes=2",
                 "dataset.shape=[3,8,8]", "batch_size=4", f"loader.workers={workers}", *more,
                 "epochs=2")  # fmt: skip
    refused(done, 4, "dataset.root=", hint="3.jpg is no usable image")


@pytest.mark.slow
def test_a_set_of_other_classes_than_configured_is_one_line(shell: Shell, older: Path) -> None:
    images(shell.folder / "set")
    done = timed(shell.train, "dataset=folder", "dataset.root=set", "dataset.classes=3")
    refused(done, 4, "dataset.classes=3", hint="set dataset.classes=2")


# Checkpoints


class Evil:
    """What touches a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch canary",)


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[dict[str, Any], Path, Path], None]:
    """A checkpoint's file with its bytes changed."""

    def write(content: dict[str, Any], source: Path, target: Path) -> None:
        target.write_bytes(change(source.read_bytes()))

    return write


def _content(change: Callable[[dict[str, Any]], Any]) -> Callable[..., None]:
    """What `change` makes of a checkpoint's content, saved by torch."""

    def write(content: dict[str, Any], source: Path, target: Path) -> None:
        torch.save(change(content), target)

    return write


def _each(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., None]:
    """A checkpoint with each floating tensor of its model changed."""
    return _content(lambda c: {**c, "model": {
        key: change(value) if value.is_floating_point() else value
        for key, value in c["model"].items()
    }})  # fmt: skip


def _flipped(data: bytes) -> bytes:
    """One bit of the largest tensor is another: the middle of the file is within it."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 4
    return bytes(changed)


def _configured(before: str, after: str) -> Callable[..., None]:
    return _content(lambda c: {**c, "config": re.sub(before, after, c["config"])})


BARE = ("model=convnet", "dataset=digits")
CHECKPOINTS: dict[str, tuple[Callable[..., None], tuple[str, ...], str]] = {
    "0 bytes": (_bytes(lambda data: b""), (), "cannot be read"),
    "truncated": (_bytes(lambda data: data[: len(data) // 2]), (), "cannot be read"),
    "a flipped bit": (_bytes(_flipped), (), "it is damaged"),
    "HTML": (_bytes(lambda data: b"<html>not found</html>"), (), "cannot be read"),
    "a malicious pickle": (
        lambda content, source, target: target.write_bytes(pickle.dumps({"model": Evil()})),
        (),
        "cannot be read",
    ),
    "a malicious archive": (_content(lambda c: {**c, "model": Evil()}), (), "cannot be read"),
    "a list": (_content(lambda c: [1, 2]), (), "a dictionary is expected"),
    "another framework's": (
        _content(lambda c: {"epoch": 1, "optimizer_states": []}),
        BARE,
        "11 missing",
    ),
    "a missing key": (
        _content(lambda c: {k: v for k, v in c["model"].items() if k != "classifier.bias"}),
        BARE,
        "1 missing (classifier.bias)",
    ),
    "an extra key": (
        _content(lambda c: {**c["model"], "extra": torch.ones(2)}),
        BARE,
        "1 unexpected (extra)",
    ),
    "a tensor twice": (
        _content(lambda c: {**c["model"], "module.classifier.bias": torch.ones(10)}),
        BARE,
        "1 unexpected (module.classifier.bias)",
    ),
    "100 classes": (
        _content(lambda c: {**c["model"], "classifier.bias": torch.ones(100)}),
        BARE,
        "1 mismatched (classifier.bias: [100] for [10])",
    ),
    "complex": (_each(lambda t: t.to(torch.complex64)), (), "complex64 for float32"),
    "integers": (_each(lambda t: t.to(torch.int64)), (), "int64 for float32"),
    "float8": (_each(lambda t: t.to(torch.float8_e4m3fn)), (), "float8_e4m3fn for float32"),
    "sparse": (_each(lambda t: t.to_sparse()), (), "sparse for plain"),
    "a newer format": (_content(lambda c: {**c, "format": 99}), (), "newer format version"),
    "a configuration that is no YAML": (
        _configured(r"(?s)\A.*", "a: [1"), (), "its configuration cannot be read"
    ),
    "a configuration that is a list": (
        _configured(r"(?s)\A.*", "- 1"), (), "its configuration cannot be read"
    ),
    "a configuration of another kind": (
        _configured(r"(?s)\A.*", "model: 3\nchoices: 5"), (), "its configuration is not used"
    ),
    "a configuration that refers elsewhere": (
        _configured("dtype: float32", "dtype: ${nowhere:}"), (), "refers to something in amp.dtype"
    ),
    "a configuration of 100 classes": (
        _configured("classes: 10", "classes: 100"), (), "[10] for [100]"
    ),
}  # fmt: skip
TRIED = {"a flipped bit"}  # by `make test`
REPEATED = {"0 bytes", "truncated", "a flipped bit", "a malicious archive", "a missing key",
            "100 classes", "complex", "a newer format", "a list"}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "more"),
    [pytest.param(fault, (), id=fault, marks=slow_but(fault in TRIED)) for fault in CHECKPOINTS]
    + [
        pytest.param(fault, TWO, id=f"two processes {fault}", marks=pytest.mark.slow)
        for fault in sorted(REPEATED)
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_one_line(
    shell: Shell, older: Path, fault: str, more: tuple[str, ...]
) -> None:
    write, named, hint = CHECKPOINTS[fault]
    source = older / "checkpoints" / "last.pt"
    write(torch.load(source, weights_only=True), source, shell.folder / "x.pt")
    done = timed(shell.evaluate, "ckpt=x.pt", *named, *more, "hydra.run.dir=evaluated")
    refused(done, 3, "ckpt=", hint=hint)
    assert "x.pt" in done.stderr
    assert not (shell.folder / "canary").exists()
    assert not (shell.folder / "evaluated" / "evaluation.json").exists()


LOADED: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "mixed prefixes": (
        _content(lambda c: {
            f"{('module._orig_mod.', '_orig_mod.', '')[n % 3]}{key}": value
            for n, (key, value) in enumerate(c["model"].items())
        }),
        BARE,
    ),
    "Lightning's": (
        _content(lambda c: {"state_dict": c["model"], "pytorch-lightning_version": "2.5"}), BARE
    ),
    "float16": (_each(torch.Tensor.half), ()),
    "float64": (_each(torch.Tensor.double), ()),
    "an older torch's file": (
        lambda content, source, target: torch.save(
            content, target, _use_new_zipfile_serialization=False
        ),
        (),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOADED)
def test_weights_of_anybody_that_fit_are_loaded(shell: Shell, older: Path, kind: str) -> None:
    write, named = LOADED[kind]
    source = older / "checkpoints" / "last.pt"
    write(torch.load(source, weights_only=True), source, shell.folder / "x.pt")
    done = timed(shell.evaluate, "ckpt=x.pt", *named, "hydra.run.dir=evaluated")
    assert (done.returncode, done.stderr) == (0, "")
    assert "11 tensors loaded, 0 missing, 0 unexpected, 0 mismatched" in done.stdout


@pytest.mark.slow
def test_a_damaged_checkpoint_of_a_run_is_one_line(shell: Shell, older: Path) -> None:
    shutil.copytree(older, shell.folder / "run")
    last = shell.folder / "run" / "checkpoints" / "last.pt"
    data = _flipped(last.read_bytes())
    last.unlink()
    last.write_bytes(data)
    done = timed(shell.evaluate, "ckpt=run", "hydra.run.dir=evaluated")
    refused(done, 3, "ckpt=", hint="it is damaged")


# A run folder that is broken

FOLDERS: dict[str, tuple[str, Callable[[str], str], int]] = {
    "no YAML": ("config.yaml", lambda text: "a: [1", 3),
    "a list": ("config.yaml", lambda text: "- 1", 3),
    "empty": ("config.yaml", lambda text: "", 3),
    "no batch_size": ("config.yaml", lambda text: re.sub("(?m)^batch_size.*\n", "", text), 3),
    "no clock": ("config.yaml", lambda text: re.sub("(?m)^clock:\n(  .*\n)*", "", text), 3),
    "no choices": ("config.yaml", lambda text: re.sub("(?ms)^choices:.*", "", text), 3),
    "a key of another version": ("config.yaml", lambda text: f"{text}\nnewer: 3\n", 3),
    "a value of another kind": (
        "config.yaml", lambda text: re.sub("(?m)^batch_size.*", "batch_size: x", text), 3
    ),
    "a broken manifest": ("checkpoints/manifest.json", lambda text: text[:-9], 3),
    "a manifest that is a list": ("checkpoints/manifest.json", lambda text: "[]", 3),
    "an empty manifest": ("checkpoints/manifest.json", lambda text: "", 3),
    "a manifest of nonsense": (
        "checkpoints/manifest.json", lambda text: '{"format": 2, "files": {"last.pt": 5}}', 3
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "more"),
    [
        pytest.param(fault, (), id=fault,
                     marks=slow_but(fault in ("no YAML", "no clock")))
        for fault in FOLDERS
    ],
)  # fmt: skip
def test_a_run_folder_that_is_broken_is_one_line(
    shell: Shell, older: Path, fault: str, more: tuple[str, ...]
) -> None:
    name, change, code = FOLDERS[fault]
    shutil.copytree(older, shell.folder / "run")
    path = shell.folder / "run" / name
    path.write_text(change(path.read_text()))
    kept = tree(shell.folder / "run" / "checkpoints")
    done = timed(shell.train, "resume=run", *more)
    refused(done, code, "resume=")
    assert tree(shell.folder / "run" / "checkpoints") == kept


# Reports


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["nowhere"], "folder=nowhere"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ([], "arguments="), ([""], "arguments="), (["a", "b"], "arguments="),
                (["--foo", "a"], "arguments="), (["empty"], "folder=empty"),
                (["file"], "folder=file"), (["rows"], "runs.csv=rows"),
                (["bytes"], "runs.csv=bytes"),
            )
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_report_of_nothing_is_one_line(
    shell: Shell, older: Path, arguments: list[str], field: str
) -> None:
    for name in ("empty", "rows", "bytes"):
        (shell.folder / name).mkdir()
    for name in ("rows", "bytes"):  # a recording that lacks it is refused for that
        (shell.folder / name / "environment.json").write_text("{}")
    (shell.folder / "file").touch()
    (shell.folder / "rows" / "runs.csv").write_text("folder,status\n")
    (shell.folder / "bytes" / "runs.csv").write_bytes(b"folder\n\xff\x00\n")
    env = {"PYTHONPATH": str(ROOT)}
    refused(timed(shell.run, "-m", "ninefold.report", *arguments, env=env), 2, field)


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b'{"status": 5}', b'{"status": "ok", "seed": "x"}',
     b'{"status": "ok", "accuracy": {"a": 1}}', b'{"status": "ok", "epoch_seconds": 5}'],
    ids=str,
)  # fmt: skip
def test_a_result_that_cannot_be_read_is_listed_and_hides_no_other(
    shell: Shell, older: Path, content: bytes
) -> None:
    (shell.folder / "sweep" / "broken").mkdir(parents=True)
    (shell.folder / "sweep" / "broken" / "result.json").write_bytes(content)
    shutil.copytree(older, shell.folder / "sweep" / "good")
    env = {"PYTHONPATH": str(ROOT)}
    done = timed(shell.run, "-m", "ninefold.report", "sweep", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    rows = (shell.folder / "sweep" / "report" / "runs.csv").read_text()
    assert "broken,unreadable," in rows
    assert "good,ok," in rows


# Resources


def under(shell: Shell, setup: str, *overrides: str, **options: Any) -> Done:
    """train.py in a bash that has run `setup` in mounts of its own, with its stderr its own."""
    script = f'{setup}\nexec "$@"'
    started = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
    return shell.run(
        "-c", started, "unshare", "--mount", "bash", "-ec", script, "bash", sys.executable,
        str(ROOT / "train.py"), *overrides, **options,
    )  # fmt: skip


SMALL = ("max_steps=2", "logger=quiet", "clock.warmup=0", "hydra.run.dir=disk/run")
DISKS: dict[str, tuple[str, str]] = {
    "full at once": ("size=4k", "file="),
    "full at the checkpoint": ("size=100k", "checkpoint="),
    "no inodes at once": ("size=10M,nr_inodes=3", "file="),
    "no inodes at the checkpoint": ("size=10M,nr_inodes=12", ""),
    "read-only": ("ro", "file="),
}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("more", [(), TWO], ids=["one", "two"])
@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_takes_no_more_is_one_line(
    shell: Shell, older: Path, disk: str, more: tuple[str, ...]
) -> None:
    options, field = DISKS[disk]
    (shell.folder / "disk").mkdir()
    done = timed(under, shell, f"mount -t tmpfs -o {options} tmpfs disk", *SMALL, *more)
    refused(done, 5, field)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("options", ["ro", "size=4k"])
def test_without_shared_memory_a_run_says_so_and_runs_inline(shell: Shell, options: str) -> None:
    setup = f"mount -t tmpfs -o {options} tmpfs /dev/shm"
    if options != "ro":
        setup += "; head -c 4096 /dev/zero > /dev/shm/full"
    done = timed(under, shell, setup, "max_steps=2")
    refused(done, 5, "file=/dev/shm", hint="launch.inline=true")
    done = timed(under, shell, setup, "max_steps=2", "launch.inline=true")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "path",
    [
        "a-file",
        *(
            pytest.param(path, marks=pytest.mark.slow)
            for path in ("a-file/run", "/dev/null", "/proc/nowhere")
        ),
    ],
)
def test_a_run_folder_that_cannot_be_made_is_one_line(shell: Shell, older: Path, path: str) -> None:
    (shell.folder / "a-file").touch()
    refused(timed(shell.train, f"hydra.run.dir={path}"), 5, f"file={path}")


@pytest.mark.slow
def test_a_log_that_is_a_folder_is_one_line(shell: Shell, older: Path) -> None:
    (shell.folder / "run" / "run.log").mkdir(parents=True)
    refused(timed(shell.train, "hydra.run.dir=run", "max_steps=1"), 5, "file=")


@pytest.mark.slow
def test_a_log_on_a_full_disk_is_no_reason_to_stop(shell: Shell, older: Path) -> None:
    setup = (
        "mkdir disk run\nmount -t tmpfs -o size=4k tmpfs disk\nprintf %4096s > disk/run.log\n"
        "touch run/run.log\nmount --bind disk/run.log run/run.log"
    )
    done = timed(under, shell, setup, "hydra.run.dir=run", "max_steps=1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "kilobytes",
    [
        2_500_000,
        *(
            pytest.param(size, marks=pytest.mark.slow)
            for size in (300_000, 1_000_000, 3_300_000, 4_000_000)
        ),
    ],
)
def test_an_address_space_too_small_for_torch_is_one_line(
    shell: Shell, older: Path, kilobytes: int
) -> None:
    done = timed(under, shell, f"ulimit -v {kilobytes}")
    refused(done, 5, f"memory={kilobytes // 1024} MiB", hint="ulimit -v")


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), TWO], ids=["one", "two"])
@pytest.mark.parametrize(
    "arguments",
    [
        "dataset=synthetic dataset.train_count=2000000",  # NumPy has none
        "dataset=synthetic model.net.width=4000",  # torch has none, for the weights
        "dataset=synthetic dataset.train_count=64 dataset.test_count=4 model.input_size=2000",
    ],
)
def test_a_run_that_does_not_fit_memory_is_one_line(
    shell: Shell, older: Path, arguments: str, more: tuple[str, ...]
) -> None:
    done = timed(under, shell, "ulimit -v 6000000", *arguments.split(), *more)
    refused(done, 5, "memory=exhausted")


def test_what_is_left_of_an_older_run_is_as_it_was(older: Path) -> None:
    """The comparison that every case above ends with notices a change of one byte."""
    before = tree(older)
    result = older / "result.json"
    text = result.read_text()
    result.write_text(json.dumps({**json.loads(text), "seed": 1}))
    assert tree(older) != before
    result.write_text(text)
