"""Bad input. Each is one line that names the field, with the documented exit code.

What is rejected before a folder is made leaves none; an older run stays as it was; no process and
no traceback is left on the screen, whatever the number of processes.
"""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ninefold.report.__main__ import main as report
from tests.conftest import ROOT, Shell
from tests.faults.refusals import Done, refused

TWO = ("parallel=ddp", "launch.cpu_processes=2")
INLINE = ("launch.inline=true", "logger=quiet", "clock.warmup=0")
SLOW = pytest.mark.slow


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


# What the words of a command come to before anything is written, or a process started: the exit
# code, the beginning of each line, and a part of one. `7s` are 5,000 digits.
MISTAKES: list[tuple[str, int, str | tuple[str, ...], str]] = [
    ("epohcs=3", 2, "epohcs=3: ", "did you mean epochs?"),
    ("lr=0.01", 2, "lr=0.01: ", "did you mean optimizer.lr?"),
    ("resume=run dataset.cache=disk", 2, "dataset.cache=disk: ", "add dataset=OPTION"),
    ("dataset.cache=disk", 2, "dataset.cache=disk: ", "a key of dataset=folder, hf, "),
    ("load.partial=true", 2, "load.partial=true: ", "known are accumulate, "),
    ("paralel=ddp", 2, "paralel=ddp: ", "did you mean parallel?"),
    ("study.turm=1", 2, "study.turm=1: ", "did you mean study.turn?"),
    ("study.nothing=5", 2, "study.nothing=5: ", "no such key; known are study.ask, study.budget, "),
    ("model.net.depth=3", 2, "model.net.depth=3: ", "or +model.net.depth=..."),
    ("model.net={_target_:torch.nn.Flatten,start_dim:2}", 2, "model.net={", "or ++model.net="),
    ("hydra.foo=1", 2, "hydra.foo=1: ", "--cfg hydra"),
    ("epochs=two", 2, "epochs=two: ", "whole number"),
    ("epochs=-1", 2, "epochs=-1: ", "at least 0"),
    ("amp=fp8", 2, "amp=fp8: ", "fp32, "),
    ("experiments=nine_wey", 2, "experiments=nine_wey: ", "did you mean nine_way"),
    ("optimizer.lr=???", 2, "optimizer.lr=???: ", "Missing mandatory value"),
    ("optimizer.lr=${nothing}", 2, "optimizer.lr=${nothing}: ", "'nothing' not found"),
    ("seed=0,1", 2, "seed=0,1: ", "To sweep over it, add --multirun"),
    ("epochs=-1 batch_size=0 amp=fp32", 2, ("epochs=-1: ", "batch_size=0: "), ""),
    # Groups, sections and keys that are taken away or are something else
    ("model=null", 2, "model=null: ", "a yaml takes `override /model: null` beside a section"),
    ("logger=[quiet,nowhere]", 2, "logger=[quiet,nowhere]: ", "Could not load 'logger/nowhere'"),
    ("amp=[fp32,scaler] dataset=[digits]", 2,
     ("amp=[fp32,scaler]: ", "dataset=[digits]: a list of options; "), "with -m amp=ONE,OTHER"),
    ("~model", 2, "model=nothing: ", "alexnet, convnet, mlp"),
    ("~epochs", 2, "epochs=nothing: ", "it is missing"),
    ("logger.jsonl=null", 2, "logger.jsonl=null: ", "~logger.jsonl"),
    ("optimizer._target_=5", 2, "optimizer._target_=5: ", "dotted name"),
    ("launch=null", 2, "launch=null: ", "not a section"),
    ("hydra.run.dir=", 2, "hydra.run.dir=: ", "it names nothing"),
    # What is no command line
    ("", 2, "override='': ", "key=value"),
    ('seed="a', 2, 'seed="a: ', "key=value"),
    ("model.net.width=7s", 2, "arguments=model.net.width=777", "5000 digits"),
    ("--mutlirun", 2, "arguments=--mutlirun: ", "unrecognized"),
    ("seed=0 -m epochs=1", 2, "arguments=epochs=1: ", "flags are allowed before all key=value"),
    ("--config-dir nope", 2, "config=?: ", "nope' not found"),
    ("-m --cfg job", 2, "arguments=-m --cfg job: ", "Only one of"),
    # Processes and devices
    ("parallel=ddp parallel.processes=0", 2, "parallel.processes=0: ", "at least 1"),
    ("parallel=ddp parallel.processes=2", 2, "launch.inline=true: ", "2 proc"),
    ("parallel=ddp parallel.static_graph=true accumulate=2", 2, "parallel.static_graph=true: ",
     "DDP takes none first"),
    ("loader.workers=1000000", 2, "loader.workers=1000000: ", "not allowed"),
    ("parallel=ddp launch.cpu_processes=1000000", 2, "launch.cpu_processes=1000000: ", "most 83"),
    # Data
    ("dataset=cifar10 dataset.root=nowhere", 4, "dataset.root=nowhere: ", "download=true"),
    ("dataset=folder dataset.root=nowhere", 4, "dataset.root=nowhere: ", "no such folder"),
    ("dataset=synthetic dataset.classes=null", 2, "dataset.classes=null: ", "cannot count them"),
    ("task.classes=null", 2, "task.classes=null: ", "dataset.classes is 10"),
    ("dataset=synthetic dataset.shape=[]", 2, "model.net.channels=${dataset.shape[0]}: ",
     "a plain number has none"),
    ("model=resnet18 dataset=synthetic dataset.shape=[4,8,8]", 2, "model.input_channels=3: ",
     "4 channels"),
    ("dataset=folder dataset.root=older dataset.cache=ram", 2, "dataset.cache=ram: ", "disk is"),
    ("dataset=folder dataset.root=older dataset.cache=disk dataset.cache_dir=null", 2,
     "dataset.cache_dir=null: ", "a folder is allowed"),
    ("task=segmentation dataset=masks dataset.root=older dataset.ignore=11 task.ignore=0", 2,
     "task.ignore=0: ", "the same number"),
    ("init=none.pt", 3, "init=none.pt: ", "no such checkpoint"),
    ("init=none.pt model=torchvision model.net.weights=DEFAULT", 2, "init=none.pt: ",
     "one of the two is allowed"),
    # Losses
    ("task.loss={label_smoothing:0.1}", 2, "task.loss={'label_smoothing': 0.1}: ", "not allowed"),
    # Sweeps
    ("-m optimizer.lr=0.1 seed=3", 2, "hydra.mode=MULTIRUN: ", "no key has several values"),
    ("-m seed=range(0)", 2, "seed=range(0): ", "it has no values"),
    ("-m parallel=none,ddp study.ask=[time] launch.inline=true", 2, "study.ask=['time']: ",
     "launch.inline=true has one process for all runs"),
    ("-m resume=auto hydra.sweep.dir=s", 2, "resume=auto: ", "a sweep makes new runs"),
    # Evaluations
    ("evaluate", 2, "ckpt=???: ", "nothing is given"),
    ("evaluate ckpt=nowhere", 3, "ckpt=nowhere: ", "no such checkpoint"),
    ("evaluate ckpt=older hydra.run.dir=older", 2, "hydra.run.dir=older: ", "choose another"),
    ("evaluate ckpt=older accumulat=1", 2, "accumulat=1: ", "no such key; known are amp, "),
    ("evaluate ckpt=older amp=[fp32,scaler]", 2, "amp=[fp32,scaler]: ", "one option is allowed"),
    ("evaluate ckpt=older dataset.limit=3", 2, "dataset.limit=3: ", "add dataset=OPTION"),
    ("evaluate ckpt=older batch_size=0 load.partial=1", 2,
     ("batch_size=0: ", "load.partial=1: "), ""),
    # Resuming
    ("resume=nowhere", 2, "resume=nowhere: ", "config.yaml"),
    ("hydra.run.dir=older", 2, "hydra.run.dir=older: ", "resume=older"),
    ("resume=older seed=3 model=resnet18", 2, "resume=older: ", "model"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "fields", "hint"), MISTAKES, ids=[row[0] or "nothing" for row in MISTAKES]
)
def test_a_mistake_is_one_line_and_nothing_is_written(trained, command, words, code, fields, hint):
    before = tree(trained)
    name, given = ("evaluate", words[9:]) if words.startswith("evaluate") else ("train", words)
    arguments = given.replace("7s", "7" * 5000).split(" ") if given or name == "train" else []
    inline = [] if re.match("-|launch|seed=0 -m", words) else ["launch.inline=true"]
    done = command(trained.parent, name, *arguments, *inline)
    refused(done, code, *([fields] if isinstance(fields, str) else fields), hint=hint)
    assert done.stdout == ""
    assert os.listdir(trained.parent) == ["older"], "something was written"
    assert tree(trained) == before, "an older run was changed"


@pytest.mark.parametrize("more", [(), pytest.param(TWO, marks=SLOW)], ids=["one", "two"])
def test_a_mistake_that_a_worker_finds_is_one_line(shell, older, more):
    done = shell.train("dataset.classes=5", *more)
    refused(done, 4, "dataset.classes=5: ", hint="labels from 0 to 9")


@SLOW
def test_a_sweep_under_torchrun_is_refused(shell):
    done = shell.torchrun("-m", "parallel=ddp", "seed=0,1")
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1  # torchrun repeats it in its report
    assert said[0].startswith("error: hydra.mode=MULTIRUN:")


# Devices and launching


@pytest.mark.gpu
def test_more_processes_than_gpus_is_one_line(shell, older):
    wanted = torch.cuda.device_count() + 1
    done = shell.train("parallel=ddp", f"parallel.processes={wanted}", "device=cuda",
                 f"batch_size={8 * wanted}")  # fmt: skip
    refused(done, 2, f"parallel.processes={wanted}", hint="more processes than GPUs")


AGENT = {
    "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "0",
    "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"MASTER_ADDR": "nowhere.invalid"}, "MASTER_ADDR=nowhere.invalid", 7),
        ({"TORCHELASTIC_RUN_ID": ""}, "WORLD_SIZE=2", 2),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else str(value),
)
def test_an_environment_that_is_not_torchruns_is_one_line(shell, older, change, field, code):
    env = {name: value for name, value in {**AGENT, **change}.items() if value}
    done = shell.train("parallel=ddp", "max_steps=1", env=env)
    refused(done, code, field)
    assert os.listdir(shell.folder) == ["older"]


# A run folder that is broken

FOLDERS: dict[str, tuple[Callable[[str], str], str]] = {
    "no YAML": (lambda text: "a: [1", "cannot be used"),
    "nested": (lambda text: "[" * 10_000, "nested more than"),
    "no batch_size": (
        lambda text: re.sub("(?m)^batch_size.*\n", "", text), "it has no batch_size; resume it"
    ),
    "no mapping": (lambda text: "5", "a mapping of keys to values is expected"),
    "no choices": (lambda text: re.sub("(?ms)^choices:.*", "", text), "it has no choices"),
    "a section of another version": (
        lambda text: text.replace("\nclock:", "\nclock:\n  newer: 3"), "no clock.newer; resume it"
    ),
    "a value of another kind": (
        lambda text: re.sub("(?m)^epochs:.*", "epochs: ten", text), "epochs=ten: not allowed"
    ),
    "a reference": (
        lambda text: re.sub("(?m)^seed:.*", "seed: x${now:%Y}", text), "refers to something in seed"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "hint"), FOLDERS.values(), ids=FOLDERS)
def test_a_broken_or_older_job_is_one_line_and_stays(tmp_path, trained, command, change, hint):
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    path.write_text(change(path.read_text()))
    before = tree(tmp_path)
    refused(command(tmp_path, "train", "resume=run", INLINE[0]), 3, "resume=run: ", hint=hint)
    assert tree(tmp_path) == before


# Reports


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["nowhere"], "folder=nowhere"), ([], "arguments="), (["--foo", "a"], "arguments="),
        (["empty"], "folder=empty"), (["file"], "folder=file"), (["bytes"], "runs.csv=bytes"),
    ],
    ids=str,
)  # fmt: skip
def test_a_report_of_nothing_is_one_line(tmp_path, monkeypatch, capsys, arguments, field):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "bytes"):
        Path(name).mkdir()
    Path("bytes/environment.json").write_text("{}")  # a recording that lacks it is refused for that
    Path("file").touch()
    Path("bytes/runs.csv").write_bytes(b"folder\n\xff\x00\n")
    code = report(arguments)
    refused(Done(arguments, code, *capsys.readouterr()), 2, field)


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
DISKS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "full at once": ("size=4k", "file=", TWO),
    "read-only": ("ro", "file=", ()),
}


@SLOW
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize(("options", "field", "more"), DISKS.values(), ids=DISKS)
def test_a_disk_that_takes_no_more_is_one_line(shell, older, options, field, more):
    (shell.folder / "disk").mkdir()
    done = under(shell, f"mount -t tmpfs -o {options} tmpfs disk", *SMALL, *more)
    refused(done, 5, field)


@SLOW
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_without_shared_memory_a_run_says_so_and_runs_inline(shell):
    setup = "mount -t tmpfs -o size=4k tmpfs /dev/shm; head -c 4096 /dev/zero > /dev/shm/full"
    done = under(shell, setup, "max_steps=2")
    refused(done, 5, "file=?", hint="see that /dev/shm has room")
    done = under(shell, setup, "max_steps=2", "launch.inline=true")
    assert (done.returncode, done.stderr) == (0, "")


@SLOW
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_batch_of_worker_processes_that_shared_memory_has_no_room_for_is_one_line(shell):
    node = "={_target_: tests.dataset.mine.Digits, count: 4096}"
    data = ("dataset=mapped", f"dataset.train{node}", f"dataset.test{node}", "dataset.classes=10")
    more = (*data, "model=mlp", "batch_size=4096", "loader.workers=2", "launch.timeout=60")
    setup = "mount -t tmpfs -o size=512k tmpfs /dev/shm"  # a batch has 1 MB
    done = under(shell, setup, *more, env={"PYTHONPATH": str(ROOT)})
    refused(done, 5, "file=/dev/shm: No space left", hint="batches are handed over there, ")


@pytest.mark.parametrize("path", ["a-file", pytest.param("/proc/nowhere", marks=SLOW)])
def test_a_run_folder_that_cannot_be_made_is_one_line(shell, older, path):
    (shell.folder / "a-file").touch()
    refused(shell.train(f"hydra.run.dir={path}"), 5, f"file={path}")


@SLOW
def test_a_log_on_a_full_disk_is_no_reason_to_stop(shell, older):
    setup = (
        "mkdir disk run\nmount -t tmpfs -o size=4k tmpfs disk\nprintf %4096s > disk/run.log\n"
        "touch run/run.log\nmount --bind disk/run.log run/run.log"
    )
    done = under(shell, setup, "hydra.run.dir=run", "max_steps=1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kilobytes", [2_500_000, pytest.param(300_000, marks=SLOW)])
def test_an_address_space_too_small_for_torch_is_one_line(shell, older, kilobytes):
    done = under(shell, f"ulimit -v {kilobytes}")
    refused(done, 5, "memory=exhausted", hint="ulimit -v")


@SLOW
@pytest.mark.parametrize(
    "arguments",
    [
        "dataset.train_count=2000000",  # NumPy has none
        "model.net.width=4000 parallel=ddp launch.cpu_processes=2",  # torch has none, for weights
        "dataset.train_count=64 dataset.test_count=4 model.input_size=2000",
    ],
)
def test_a_run_that_does_not_fit_memory_is_one_line(shell, older, arguments):
    done = under(shell, "ulimit -v 6000000", "dataset=synthetic", *arguments.split())
    refused(done, 5, "memory=exhausted")
