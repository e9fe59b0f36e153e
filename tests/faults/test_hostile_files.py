"""Set G: files, folders and names from strangers do nothing; the environment's values stay in it.

Most cases try to make `touch canary` happen, or leave a file where none should be.
"""

import gzip
import io
import json
import os
import pickle
import re
import shlex
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from ninefold import secrets
from ninefold.checkpoint.store import read
from ninefold.dataset import Examples
from ninefold.places import CONF
from ninefold.report.__main__ import main as report
from ninefold.task.counts import named
from ninefold.train.build import class_names
from tests.conftest import result
from tests.faults.runs import one_after_another
from tests.kit import Evil
from tests.launch.test_run import TRAIN, wait_for

SMALL = ("launch.inline=true", "max_steps=1", "clock.warmup=0", "logger=quiet")


@dataclass
class Case:
    """command: in the folder above the case's own. code: its exit code. hint: in its line."""

    command: list[str]
    code: int
    hint: str


Prepare = Callable[[Path, Path], Case]  # of the case's own folder, and that of a run of ours
CASES: dict[str, Prepare] = {}


def case(function: Prepare) -> Prepare:
    CASES[function.__name__] = function
    return function


# Checkpoints that carry code


def evaluating(path: Path, hint: str, *more: str, code: int = 3) -> Case:
    command = ["evaluate.py", f"ckpt={path}", "launch.inline=true",
               f"hydra.run.dir={path.parent}/evaluation", *more]  # fmt: skip
    return Case(command, code, hint)


def touch(folder: Path) -> str:
    return f"touch {folder / 'canary'}"


@case
def a_pickle_that_calls_a_shell(folder: Path, run: Path) -> Case:
    torch.save({"model": Evil(os.system, touch(folder))}, folder / "x.pt")
    return evaluating(folder / "x.pt", "cannot be read")


@case
def a_distributed_checkpoint_whose_metadata_is_a_pickle(folder: Path, run: Path) -> Case:
    (folder / "dcp").mkdir()
    (folder / "dcp" / ".metadata").write_bytes(pickle.dumps(Evil(os.system, touch(folder))))
    return evaluating(folder / "dcp", "no such checkpoint")


# Checkpoints that are damaged, or of something else


@case
def a_flipped_bit(folder: Path, run: Path) -> Case:
    """Of the largest tensor: the middle of the file is within it."""
    data = bytearray((run / "checkpoints" / "last.pt").read_bytes())
    data[len(data) // 2] ^= 4
    (folder / "x.pt").write_bytes(data)
    return evaluating(folder / "x.pt", "it is damaged")


@case
def a_configuration_of_another_kind(folder: Path, run: Path) -> Case:
    path = tampered(folder, run, "model: 3\nchoices: 5")
    return evaluating(path, "its configuration is not used")


# Configurations in checkpoints


def tampered(folder: Path, run: Path, change: Callable[[Any], Any] | str) -> Path:
    """Our checkpoint with another configuration: a text, or `change` made to the tree of ours."""
    content = read(run / "checkpoints" / "last.pt")
    if callable(change):
        tree = OmegaConf.to_container(OmegaConf.create(content["config"]))
        change(tree)
        change = OmegaConf.to_yaml(OmegaConf.create(tree))
    torch.save({**content, "config": change}, folder / "x.pt")
    return folder / "x.pt"


def targeting(
    name: str, place: str, node: Callable[[Path], Any], hint: str = "is not in conf/", code: int = 3
) -> None:
    """A case whose checkpoint has `node(folder)` at the dotted `place` of its configuration."""

    def prepare(folder: Path, run: Path) -> Case:
        def change(tree: Any) -> None:
            *parents, last = place.split(".")
            for parent in parents:
                tree = tree.setdefault(parent, {})
            tree[last] = node(folder)

        return evaluating(tampered(folder, run, change), hint, code=code)

    CASES[name] = prepare


targeting("target_alias", "model.net", lambda folder: {
    "_target_": "shutil.os.system", "command": touch(folder)})  # fmt: skip
targeting("target_nested", "model.net.channels", lambda folder: [
    [{"a": {"b": [{"_target_": "os.system", "_args_": [touch(folder)]}]}}]])  # fmt: skip
targeting("target_that_a_resolver_makes", "model.net", lambda folder: (
    "${oc.create:{_target_:os.system,command:'" + touch(folder) + "'}}"),
    "its configuration has model.net=${oc.create:")  # fmt: skip
targeting("argument_that_downloads", "model", lambda folder: {
    "net": {"_target_": "torchvision.models.alexnet", "num_classes": 10, "weights": "DEFAULT"},
    "input_channels": 3, "input_size": 227, "memory_format": "contiguous_format"},
    "its configuration has model.net.weights=DEFAULT")  # fmt: skip
targeting("a_width_that_fills_the_memory", "model.net.width", lambda folder: 80_000,
          "the model takes")  # fmt: skip
targeting("a_download_that_only_a_stranger_wants", "dataset", lambda folder: {
    "_target_": "ninefold.dataset.cifar10.CIFAR10", "download": True,
    "root": str(folder / "canary")}, "CIFAR-10 is not there", 4)  # fmt: skip


@case
def laughs_by_the_billion(folder: Path, run: Path) -> Case:
    lines = ["a0: &a0 [ha, ha]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 12)]
    return evaluating(tampered(folder, run, "\n".join(lines)), "YAML alias")


@case
def a_tag_that_calls(folder: Path, run: Path) -> Case:
    text = f"model: !!python/object/apply:os.system ['{touch(folder)}']"
    return evaluating(tampered(folder, run, text), "cannot be read")


@case
def a_tensor_name_that_a_terminal_would_obey(folder: Path, run: Path) -> Case:
    content = read(run / "checkpoints" / "last.pt")
    content["model"]["\x1b]0;x\x07"] = torch.zeros(1)
    torch.save(content, folder / "x.pt")
    return evaluating(folder / "x.pt", "1 unexpected ( ]0;x )")


# Run folders to go on with


def changed(folder: Path, run: Path, change: Callable[[Any], object], code: int, hint: str) -> Case:
    """A run is resumed after `change` was made to its config.yaml."""
    shutil.copytree(run, folder / "run")
    path = folder / "run" / "config.yaml"
    tree = OmegaConf.load(path)
    change(tree)
    path.write_text(OmegaConf.to_yaml(tree))
    return Case(["train.py", f"resume={folder}/run", "max_steps=2"], code, hint)


@case
def resuming_what_names_a_target(folder: Path, run: Path) -> Case:
    def change(tree: Any) -> None:
        tree.scheduler = {"_target_": "shutil.os.system", "_args_": [touch(folder)]}

    hint = "its configuration has scheduler._target_=shutil.os.system"
    return changed(folder, run, change, 3, hint)


@case
def resuming_what_says_itself_that_it_is_trusted(folder: Path, run: Path) -> Case:
    def change(tree: Any) -> None:
        tree.trust = True
        tree.model.net = {"_target_": "shutil.os.system", "command": touch(folder)}

    return changed(folder, run, change, 3, "its configuration has model.net._target_=shutil")


@case
def resuming_what_would_download(folder: Path, run: Path) -> Case:
    def change(tree: Any) -> None:
        data = {"download": True, "root": str(folder / "data")}
        tree.dataset = {**OmegaConf.load(CONF / "dataset" / "cifar10.yaml"), **data}
        tree.model.input_channels = 3

    return changed(folder, run, change, 4, "CIFAR-10 is not there")


# Archives and data


def training_on_cifar10(folder: Path, root: Path, hint: str, *more: str) -> Case:
    command = ["train.py", *SMALL, "dataset=cifar10", f"dataset.root={root}", *more]
    return Case([*command, f"hydra.run.dir={folder}/run"], 4, hint)


def member(name: str, link: str | None = None) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    if link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, link
    return info


@case
def an_archive_that_climbs(folder: Path, run: Path) -> Case:
    root = folder / "data" / "inner"
    root.mkdir(parents=True)
    names = ("../../canary", str(folder / "canary"), "out/canary")
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as tar:
        for each in (member("out", str(folder)), *map(member, names)):
            tar.addfile(each, io.BytesIO())
    return training_on_cifar10(folder, root, "could not be fetched", "dataset.download=true")


def batches(folder: Path, kind: str, write: Callable[[Path], object]) -> Path:
    """Make the folder `kind` of CIFAR-10, with what `write` makes of each of its files."""
    (folder / "data" / kind).mkdir(parents=True)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        write(folder / "data" / kind / name)
    return folder / "data"


@case
def a_dataset_whose_pickle_calls_a_shell(folder: Path, run: Path) -> Case:
    evil = pickle.dumps(Evil(os.system, touch(folder)))
    root = batches(folder, "cifar-10-batches-py", lambda path: path.write_bytes(evil))
    return training_on_cifar10(folder, root, "cannot be read (it asks for")


@case
def a_dataset_that_links_to_a_private_file(folder: Path, run: Path) -> Case:
    private = folder / "private"
    private.write_text("private-9d1e\n" * 500)
    root = batches(
        folder, "cifar-10-batches-bin", lambda path: path.with_suffix(".bin").symlink_to(private)
    )
    return training_on_cifar10(folder, root, "cannot be read")


# Names and shells


@case
def an_option_out_of_its_folder(folder: Path, run: Path) -> Case:
    """The option is there, beside its group's folder."""
    (folder / "conf" / "parallel").mkdir(parents=True)
    (folder / "conf" / "x.yaml").write_text(
        "_target_: ninefold.engine.parallel.none.Single\nprocesses: 1\nmax_processes: 1\n"
        "device: cpu\n"
    )
    words = [f"--config-dir={folder / 'conf'}", f"hydra.run.dir={folder}/a/canary", "parallel=../x"]
    return Case(["train.py", *words, *SMALL], 2, "not the name of an option")


def typing(name: str, code: int, hint: str, *words: str) -> None:
    """A case that trains with `words`, in which FOLDER and TOUCH stand for those of the case."""

    def prepare(folder: Path, run: Path) -> Case:
        said = [
            word.replace("FOLDER", str(folder)).replace("TOUCH", touch(folder)) for word in words
        ]
        return Case(["train.py", *SMALL, *said], code, hint)

    CASES[name] = prepare


typing("a_seed_that_is_a_path_in_a_sweep", 2, "error: seed=../../../canary: not allowed",
       "seed=../../../canary,../x", "hydra.sweep.dir=FOLDER/a/b", "-m")  # fmt: skip
typing("a_folder_for_a_shell", 0, "", "hydra.run.dir='FOLDER/a;touch canary;$(touch canary)`x`'")
# Manifests, damage, weights that do not fit and configurations by their places are tried without
# commands: tests/checkpoint/, tests/config/test_untrusted.py, tests/config/test_like.py.


@pytest.mark.parametrize("name", CASES)
def test_it_does_nothing_but_say_so(name, shell, trained):
    folder = shell.folder / name
    folder.mkdir()
    expected = CASES[name](folder, trained)
    (done,) = one_after_another(shell, expected.command)
    assert not list(shell.folder.rglob("canary*")), "the canary was touched"
    assert done.returncode == expected.code, done
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == (done.returncode != 0), done
    assert "Traceback" not in done.stderr
    assert expected.hint in done.stderr
    for private in ("\x1b", "private-9d1e"):
        assert private not in done.stdout + done.stderr
    if name == "an_archive_that_climbs":
        left = [path.name for path in (folder / "data").rglob("*")]
        assert left == ["inner", "cifar-10-python.tar.gz"], "it was extracted"
    if name == "a_seed_that_is_a_path_in_a_sweep":
        assert not list(folder.iterdir()), "a folder was made"


def test_class_names_are_text_and_as_many_as_classes():
    examples = Examples(np.zeros((0, 1, 1, 1), np.uint8), np.zeros(0, np.int64))
    for given, shown in (
        (["\x1b]0;x\x07", "$\\frac$"], ["]0;x", "$\\frac$"]),
        (["a"], ["0", "1"]),
        (["a", "a"], ["0", "1"]),
        (["x" * 1000, {"y": 1}], ["x" * 64, "{'y': 1}"]),
        (None, ["0", "1"]),
    ):
        job = OmegaConf.create({"dataset": {"class_names": given}})
        assert [*named(class_names(job, examples), range(2))] == shown


# What the environment holds

SECRET = "canary-5b1d9e07"


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, and what is inside those that are archives."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            found[str(path)] = path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    for name in archive.namelist():
                        found[f"{path}/{name}"] = archive.read(name)
            elif found[str(path)].startswith(b"\x1f\x8b"):
                found[f"{path}/gz"] = gzip.decompress(found[str(path)])
    return found


def require_absent(folder: Path, *texts: str) -> None:
    for name, data in everything(folder).items():
        assert SECRET.encode() not in data, name
        assert SECRET not in name, name
    assert not any(SECRET in text for text in texts)


@pytest.mark.slow
def test_a_secret_is_not_in_the_line_log_or_result_of_a_run_that_fails(shell):
    """Some data is there, so that the launcher is content, and not all, so that a worker is not."""
    data = shell.folder / SECRET / "cifar-10-batches-bin"
    data.mkdir(parents=True)
    (data / "test_batch.bin").write_bytes(b"x")
    done = shell.train(
        "dataset=cifar10", "dataset.root=${oc.env:WHERE,/nowhere}", "hydra.run.dir=out/run",
        "parallel=ddp", env={"WHERE": str(data.parent)}, code=4,
    )  # fmt: skip
    assert done.stderr.startswith("error: dataset.root=${oc.env:WHERE}: ${oc.env:WHERE}/cifar")
    require_absent(shell.folder / "out", done.stdout, done.stderr)
    log = (shell.folder / "out" / "run" / "run.log").read_text()
    assert "No such file or directory: '${oc.env:WHERE}/cifar" in log, "no traceback with a path"
    assert result(shell.folder / "out" / "run")["error"] == done.stderr.strip()


@pytest.mark.slow
def test_a_secret_is_in_no_run_checkpoint_event_file_or_report_of_a_sweep(shell):
    """One cell is ok and one diverges, at a learning rate from the environment."""
    env = {"WHICH": "WHERE", "WHERE": SECRET, "RATE": "1e30"}
    sweep = [
        "train.py", "-m", "dataset=synthetic", "dataset.root='${oc.env:${oc.env:WHICH}}/x'",
        "max_steps=3", "optimizer=sgd", "optimizer.lr=0.1,'${oc.decode:${oc.env:RATE}}'",
        "log_every=1", "dataset.train_count=128", "dataset.test_count=8", "hydra.sweep.dir=out",
    ]  # fmt: skip
    first = shell.folder / "out" / "0_none_fp32_optimizer.lr_0.1_seed0"
    evaluate = ["evaluate.py", f"ckpt={first}", "hydra.run.dir=evaluation"]
    done, evaluated = one_after_another(shell, sweep, evaluate, env=env)
    assert done.returncode == 6, done.stderr
    runs = sorted((shell.folder / "out").glob("*_fp32_*"))
    assert "RATE" in runs[1].name  # as it was typed
    assert [result(run)["status"] for run in runs] == ["ok", "diverged"]
    assert list(runs[0].glob("tensorboard/events.*"))
    assert (shell.folder / "out" / "report" / "report.md").is_file()
    require_absent(shell.folder / "out", done.stdout, done.stderr)
    frozen = (runs[1] / "config.yaml").read_text()
    assert "lr: ${oc.decode:${oc.env:RATE}}" in frozen
    assert "root: ${oc.env:${oc.env:WHICH}}/x" in frozen

    assert evaluated.returncode == 0, evaluated.stderr
    require_absent(shell.folder / "evaluation", evaluated.stdout, evaluated.stderr)


def test_what_is_replaced_is_the_value_in_every_form_and_nothing_else(monkeypatch):
    monkeypatch.setattr(secrets, "_KNOWN", {})
    monkeypatch.setenv("HOME", "/home/ann")
    secrets.note("A", "~/deep/place")
    secrets.note("B", "two  words\nand'more\\x")
    secrets.note("C", "place")
    secrets.note("N", "1234567890")
    for value in ("abc", "1000000", "bfloat16", ".//"):
        secrets.note("NONE", value)
    assert secrets.redact("at /home/ann/deep/place/x, ~/deep/place") == (
        "at ${oc.env:A}/x, ${oc.env:A}"
    )
    assert secrets.redact("two words and'more\\x") == "${oc.env:B}"
    assert secrets.redact(repr("two  words\nand'more\\x")) == '"${oc.env:B}"'
    secrets.note("Q", "it's here")
    assert secrets.redact(shlex.join(["a=it's here"])) == "'a=${oc.env:Q}'"
    assert secrets.redact("a place") == "a ${oc.env:C}"
    secrets.note("D", "./data")
    secrets.note("E", "./ab")
    secrets.note("F", "    ")
    secrets.note("G", "hunter2")
    assert secrets.redact("rejected hunter2. 1234567890.") == "rejected ${oc.env:G}. ${oc.env:N}."
    assert secrets.redact("torch.utils.data.DataLoader") == "torch.utils.data.DataLoader"
    assert secrets.redact("error: dataset.root=./data: no about") == (
        "error: dataset.root=${oc.env:D}: no about"
    )
    assert secrets.redact("abc 1000000 bfloat16 / x1234567890 0.1234567890") == (
        "abc 1000000 bfloat16 / x1234567890 0.1234567890"
    )
    assert secrets.redacted({"a": ["1234567890", 1234567890]}) == {
        "a": ["${oc.env:N}", 1234567890]
    }  # fmt: skip


# Sockets


def test_a_one_host_job_listens_on_loopback_only(shell):
    process = shell.start(TRAIN, "parallel=ddp", "launch.cpu_processes=2", "epochs=100000",
                          "hydra.run.dir=run")  # fmt: skip
    wait_for(shell.folder / "run" / "metrics.jsonl", process)
    addresses = listening(shell.processes())
    shell.kill(process)
    assert addresses, "nothing listens: the test looked too early"
    assert addresses <= {"0100007F", "00000000000000000000000001000000"}  # 127.0.0.1 and ::1


def listening(pids: list[int]) -> set[str]:
    """The addresses, in the kernel's hexadecimal, that sockets of `pids` listen on."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:  # 0A: LISTEN
                found.add(columns[1].partition(":")[0])
    return found


# Folders that are given to the report

GOOD: dict[str, Any] = {
    "status": "ok", "parallel": "none", "amp": "fp32", "dataset": "digits", "model": "convnet",
    "seed": 0, "batch_size": 64, "epochs": 1, "train_seconds": 2.0, "score": 0.5, "no_op": False,
}  # fmt: skip
DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
HOSTILE: dict[str, Any] = {
    "a name with a table in it": {**GOOD, "dataset": "x | y\n# Heading <script>alert(1)</script>"},
    "a name that is a path": {**GOOD, "study": "../../x"},
    "a status that a terminal would obey": {**GOOD, "status": "\x1b[2J"},
    "notes with markup": {**GOOD, "notes": ["![x](http://a/b) <img src=x> \x1b[2J $\\frac$"]},
    "an error with fences": {**GOOD, "status": "failed", "error": "``` `` <b>\n# x\n\x1b[2J"},
    "overrides that are mathematics": {**GOOD, "overrides": ["a=$\\frac{", "b=$}"]},
    "lists for numbers": {**GOOD, "train_seconds": [1], "epochs": {}, "seed": "x"},
    "objects in lists": {**GOOD, "peak_memory_bytes": [{}], "epoch_seconds": [None]},
    "turns that are no lists": {**GOOD, "turns": 2, "turn_seconds": 5, "turn_others": {"a": 1}},
    "turns that took no time": {**GOOD, "turns": 2, "turn_seconds": [0.0, -1.0]},
    "numbers without measure": {**GOOD, "train_seconds": 1e308, "seed": 10**400},
    "negative and empty": {**GOOD, "epochs": 0, "train_seconds": -1e-300, "batch_size": -1},
    "an environment of another kind": {
        **GOOD,
        "environment": {"versions": [1], "cpu": {"values": 5}, "time": [], "commit": {"a": 1}},
    },
    "depth": {**GOOD, "environment": {"x": DEEP}},
    "no object": [1, 2],
    "length": {**GOOD, "notes": ["x" * 5_000_000]},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_report_of_a_hostile_result_is_a_report(what, tmp_path, capsys):
    for name, content in (("a", HOSTILE[what]), ("b", GOOD)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(content))
    assert report([str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "\x1b" not in shown.out
    text = (tmp_path / "report" / "report.md").read_text()
    ours = r"^!\[|(?<!\\)\]\(figure\.svg\)$"
    text = re.sub(ours, "", text, flags=re.MULTILINE)
    outside_code = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert not re.search(r"(?<!\\)[<\[]", outside_code)
    assert "\n# Heading" not in text
    assert "\n# x" not in text
    assert (tmp_path / "report" / "report.html").is_file()


def test_a_report_writes_where_it_should_whatever_links_and_pipes_a_folder_holds(tmp_path):
    sweep, outside = tmp_path / "sweep", tmp_path / "outside"
    outside.mkdir()
    for name in ("report.md", "runs.csv", "x"):
        (outside / name).write_text("mine")
    for name in ("a", "b"):
        (sweep / name).mkdir(parents=True)
    (sweep / "a" / "result.json").write_text(json.dumps(GOOD))
    os.mkfifo(sweep / "b" / "result.json")
    (sweep / "sweep.json").write_text('{"command": 7, "wall_seconds": "x", "runs": {}}')
    (sweep / "report").mkdir()
    for name in (
        "report.md", "runs.csv", "environment.json", ".environment.json.tmp", "figure.svg",
        "curves.csv", "numerics.csv", "report.json", ".report.json.tmp", "report.html",
    ):  # fmt: skip
        (sweep / "report" / name).symlink_to(outside / "x")
    assert report([str(sweep)]) == 0
    shutil.rmtree(sweep / "report")
    (sweep / "report").symlink_to(outside)
    assert report([str(sweep)]) == 0
    assert {path.read_text() for path in outside.iterdir()} == {"mine"}
    assert not (sweep / "report").is_symlink()
