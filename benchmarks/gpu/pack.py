"""What travels to a machine with a GPU that has torch and no network, and what comes back."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.gpu.session import ROOT
from ninefold.errors import ConfigError
from ninefold.measure.environment import COMMIT

# What a machine that is made for torch lacks; the compiled ones for each Python that it may have.
WHEELS = ("hydra-core", "omegaconf", "antlr4-python3-runtime")
COMPILED = ("msgspec",)
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
# Of archives of ours; Pythons before 3.11.4 extract without one.
FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
SCRIPT = "sitting.sh"
FOUND = "gpu"  # in what comes back: the folder of the checks
# Of the part `study`: which option of `experiments` each study is.
STUDIES = {"nine_way": "nine_way", "nine_way_gpu": "nine_way_gpu", "alexnet": "alexnet_cifar10"}


def pack(folder: Path) -> None:
    """Put a copy of HEAD, its commit, wheels and the script of a sitting into a new `folder`.

    Raises ConfigError if it exists, or if this is no clone of the repository.
    """
    if folder.exists():
        raise ConfigError("pack", folder, "it exists; a new folder is made; name another")
    try:
        archive = _git("archive", "HEAD")
        commit = _git("rev-parse", "HEAD")
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise ConfigError(
            "pack", ROOT, f"git cannot read it ({said}); a clone is needed; clone it"
        ) from error
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, **FILTER)
    (folder / COMMIT).write_bytes(commit)
    shutil.copy(Path(__file__).with_name(SCRIPT), folder / SCRIPT)
    pip, place = (sys.executable, "-m", "pip"), str(folder / "wheels")
    wheel = (*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", place)
    subprocess.run([*wheel, *(f"{name}=={version(name)}" for name in WHEELS)], check=True)
    fetch = (*pip, "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", place)
    fetch = (*fetch, *(f"--platform={name}" for name in PLATFORMS))
    compiled = [f"{name}=={version(name)}" for name in COMPILED]
    for python in PYTHONS:
        subprocess.run([*fetch, f"--python-version={python}", *compiled], check=True)


def unpack(files: Iterable[Path], output: Path) -> list[str]:
    """Put what sittings brought back into `output`, that of later files over that of earlier ones.

    Each study becomes a recording in `experiments/`. Returns two lines for each: where it is, and
    the answer with its conditions, as the README has them.
    Raises ConfigError if a file is not there or is no archive of a sitting.
    """
    for path in files:
        try:
            with tarfile.open(path) as found:
                found.extractall(output, **FILTER)
        except (OSError, tarfile.TarError) as error:
            raise ConfigError(
                "unpack", path, f"{error!s}; found.tgz of a sitting is expected; name that"
            ) from error
    lines: list[str] = []
    for study, experiment in STUDIES.items():
        if (report := output / FOUND / "study" / study).exists():
            lines += recorded(experiment, report)
    return lines


def recorded(experiment: str, report: Path) -> list[str]:
    """Copy the `report` of a study into `experiments/`; returns what `unpack` does."""
    found = json.loads((report / "report.json").read_text())
    environment = json.loads((report / "environment.json").read_text())["environment"]
    gpu = re.sub(r"\W+", "-", ", ".join(environment["hosts"][0]["gpus"]) or "no gpu").lower()
    folder = ROOT / "experiments" / experiment / f"{environment['time']['first'][:10]}_{gpu}"
    shutil.copytree(report, folder, dirs_exist_ok=True)
    return [f"{folder.relative_to(ROOT)}:", f"  {found['machine']} {found['answer']['lead']}"]


def _git(*command: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(ROOT), *command], capture_output=True, check=True
    ).stdout
