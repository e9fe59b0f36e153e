"""A toy project in git: a package below src/, a script that trains it for ever, slower commits."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]  # of ninefold
LAYERS = 50  # of its network: a step takes some 2 ms on one core, 2 to 4 % less than in proportion
TRAINING = """\
\"\"\"A deep network that learns a sum for ever, on one thread.\"\"\"

import torch

LAYERS = {layers}


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.1 * layer(x).tanh()
        return x


def train():
    torch.set_num_threads(1)
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        x = torch.randn(32, 32)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "toy"
version = "0.1"
"""


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=toy", "-c", "user.email=toy@example.com")
    argv = ["git", *who, *arguments]
    return subprocess.run(
        argv, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, files: dict[str, str], message: str = "more") -> None:
    """Write files, and commit all that there is."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)


def with_layers(share: float) -> dict[str, str]:
    """The training of which a step is so much more work, as a share, in whole layers."""
    return {"src/toy/training.py": TRAINING.replace("{layers}", str(round(LAYERS * (1 + share))))}


def make(folder: Path, *shares: float) -> None:
    """Make the project in `folder`, on its branch main.

    Its first commit is plain and has the tag v1. Then one for each of `shares`, of work that a step
    has more than in the first: 0.08 is 8 % more layers, and no sleep.
    """
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    files = {
        "pyproject.toml": PROJECT,
        ".gitignore": "__pycache__/\n.venv/\ndata/\nbench/\n",
        "src/toy/__init__.py": "",
        "scripts/train.py": "from toy.training import train\n\ntrain()\n",
        **with_layers(0),
    }
    commit(folder, files, "a project")
    git(folder, "tag", "v1")
    for share in shares:
        commit(folder, with_layers(share), f"{share:.0%} more")


def installed(folder: Path, environment: Path) -> Path:
    """The Python of a new environment in which the project is installed in editable mode.

    For a package below src/ that is a line of a .pth file, with pip too. The packages of this
    Python are in another.
    """
    command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(command, check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    lines = [str(folder / "src"), sysconfig.get_path("purelib")]
    (packages / "__editable__.toy-0.1.pth").write_text("".join(f"{line}\n" for line in lines))
    return environment / "bin" / "python"
