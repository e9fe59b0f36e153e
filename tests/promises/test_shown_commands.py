"""Each command line that README.md and the pages of docs/, experiments/ and others show runs.

A shell reads a page's blocks and the commands within its text; `python`, `ninefold`, `torchrun` and
others are programs there that write down what they were called with. Each command is then taken to
where its processes would start (tests/promises/shown.py): its keys, options, values and their
combination are checked, those of a study's cells too; modules, scripts and checkpoints are there,
and so are its data. A word in capitals, such as FOLDER, stands for what the reader has: runs and
folders of these names are made, and data so named are not looked at. All other data are embedded in
ninefold, or the command says dataset.download=true.

Targets of make and extras of pip are looked up, benches by their names; reports are written.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.conftest import ROOT, Shell
from tests.promises.shown import PROGRAMS
from tests.test_packaging import EXTRAS

PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("experiments/*/README.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
    *sorted(ROOT.glob("ninefold/extensions/*/README.md")),
]
PRINTED = re.compile(r"`([\w./]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
(RECORDING,) = ROOT.glob("experiments/nine_way/20*")
RECORDED = [*PROGRAMS, "make", "pip", "git", "bash", "scontrol"]
COMMAND = re.compile(rf"(\w+=\S* +|sudo +)*({'|'.join(RECORDED)}) +(?!-m$)\S")
REPORT = "python -m ninefold.report"
RECORDER = """#!/bin/sh
{ printf '%s\\0' "${PYTHONPATH-}" "${0##*/}" "$@"; echo; } >> "$RECORD"
[ "$1" != conf ] || cat "$CONF/$2.yaml" 2> /dev/null
"""
# Modules that the pages take the reader to have.
MODULES = {
    "my_data": "import numpy\n\nclass MyDataset:\n    classes = range(10)\n\n"
    "    def __init__(self, path):\n        pass\n\n    def __len__(self):\n        return 8\n\n"
    "    def __getitem__(self, index):\n        return numpy.zeros((3, 8, 8), 'f4'), index\n",
    "my_losses": "def elbo(output, target):\n    return output[0].flatten(1).sum(1)\n",
    "focal": "class Focal:\n    def __init__(self, gamma):\n        self.gamma = gamma\n\n"
    "    def __call__(self, logits, classes):\n        return logits.sum(1)\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in a folder with what pages take the reader to have."""
    folder = tmp_path_factory.mktemp("shown")
    shell = Shell(folder)
    run = ("hydra.run.dir=outputs/runs/RUN", "max_steps=2", "dataset.limit=64", "batch_size=8")
    shell.train(*run, code=0)
    for name in ("examples", "experiments", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("FOLDER", "STUDY/report"):
        shutil.copytree(RECORDING, folder / name)
    (folder / "FOLDER" / "sweep.json").touch()
    for name in ("train", "test"):
        (folder / "PHOTOS" / name / "cat").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "PHOTOS" / name / "cat" / "0.png")
    for name, text in (found for page in PAGES for found in PRINTED.findall(page.read_text())):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, text in MODULES.items():
        (folder / "mine" / f"{name}.py").write_text(text)
    model = folder / "mine" / "conf" / "model"
    (model / "vae.yaml").write_text((model / "perceptron.yaml").read_text())
    (folder / "mine" / "model").mkdir()
    (folder / "RUN").symlink_to("outputs/runs/RUN")
    torch.save({}, folder / "weights.pt")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    (folder / "bin").mkdir()
    for name in RECORDED:
        path = folder / "bin" / name
        path.write_text(RECORDER)
        path.chmod(0o755)
    (folder / "bin" / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (folder / "bin" / "sudo").chmod(0o755)
    yield shell
    assert not shell.survivors()


def shown(page: Path) -> list[str]:
    """The blocks of shell in a page, and the commands within its text."""
    blocks, text, language = [""], "", None
    for line in page.read_text().splitlines():
        if fence := re.fullmatch(r" *```(\w*)", line):
            language = fence[1] if language is None else None
            blocks.append("")
        elif (line.startswith("    ") and not language) or language in ("bash", "sh", "console"):
            blocks[-1] += f"{line.strip()}\n"
        elif language is None:
            text += f"{line.strip()}\n"
            blocks.append("")
    spans = (span.replace("\n", " ").replace("\\|", "|") for span in re.findall("`([^`]+)`", text))
    return [
        *(block for block in blocks if any(map(COMMAND.match, block.splitlines()))),
        *filter(COMMAND.match, spans),
    ]


def typed(place: Shell, page: Path) -> list[list[str]]:
    """The commands that a shell makes of them: [PYTHONPATH, program, argument, ...]."""
    record = place.folder / "record"
    record.write_text("")
    env = {
        "PATH": f"{place.folder / 'bin'}:{os.environ['PATH']}",
        "HOME": str(place.folder / "home"),
        "SLURM_JOB_ID": "1",
        "RECORD": str(record),
        "CONF": str(ROOT / "conf"),
    }
    for block in shown(page):
        done = subprocess.run(
            ["/bin/bash", "-uc", block], cwd=place.folder, env=env, capture_output=True, text=True
        )
        assert not done.stderr, (block, done.stderr)
    calls = record.read_text().removesuffix("\0\n")
    return [call.split("\0") for call in calls.split("\0\n")] if calls else []


@pytest.fixture(scope="module")
def commands(place: Shell) -> dict[tuple[str, ...], Path]:
    """The commands of all pages, each with the page that shows it first."""
    found: dict[tuple[str, ...], Path] = {}
    for page in PAGES:
        for call in typed(place, page):
            found.setdefault(tuple(call), page)
    assert {program for _, program, *_ in found} >= {"ninefold", "python", "make", "pip"}
    return found


@pytest.mark.slow
def test_each_command_that_a_page_shows_could_start(place, commands):
    ours = [call for call in commands if call[1] in PROGRAMS]
    halves = {place.folder / "a.json": ours[::2], place.folder / "b.json": ours[1::2]}
    env = {"HOME": str(place.folder / "home"), "PYTHONPATH": f"{ROOT}:{place.folder / 'mine'}"}
    for file, half in halves.items():
        file.write_text(json.dumps(half))
    running = [
        place.start("-m", "tests.promises.shown", str(file), forked=True, env=env)
        for file in halves
    ]
    for process in running:
        place.finish(process, code=0)
    wrong = [
        f"{commands[call].relative_to(ROOT)}: {' '.join(call[1:])}\n    {said}"
        for file, half in halves.items()
        for call, said in zip(half, json.loads(file.read_text()), strict=True)
        if said is not None
    ]
    assert not wrong, "\n".join(wrong)


def test_each_target_of_make_and_each_extra_that_a_page_names_exists(commands):
    for _, program, *words in commands:
        if program == "make":
            dry = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
            assert dry.returncode == 0, dry.stderr
        elif program == "pip":
            assert words[0] == "install"
            for what in words[1:]:
                name, _, extras = what.removesuffix("]").partition("[")
                assert name in (".", "WHEEL"), f"{what} is on no index"
                assert {*extras.split(",")} <= {"", *EXTRAS}, what


def test_each_report_that_a_page_asks_for_is_written(place, commands):
    lines = {" ".join(call[1:]).replace("ninefold report", REPORT) for call in commands}
    reports = [line for line in lines if line.startswith(f"{REPORT} ")]
    assert reports
    for line in reports:
        place.run(*line.split()[1:], code=0)
