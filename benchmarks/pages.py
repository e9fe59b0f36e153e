"""Runs what pages show, and writes into them what it prints.

    python -m benchmarks.pages README.md docs/start/*.md docs/guides/*.md

A block of output follows a line `<!-- output -->`, and is what the block of commands, or of Python,
before that line prints; of Python without what goes to stderr, which is the progress.
`<!-- output :: FILTER -->` names a command that the lines pass through.
Lines with `pip install` are no such commands.
Python blocks below `NAME.py`: are files beside. PHOTOS is a folder of images: digits,
enlarged. `cd examples/NAME` leads to a copy of that folder of this repository.
--keep FOLDER keeps what was printed, and a second call runs only what is not there yet.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:`(?P<name>\w+\.py)`:\n\n)?```python\n(?P<python>.*?)^```$"
    r"|(?P<shell>^ {4}\S[^\n]*\n(?: {4}[^\n]+\n)*)"
    r"|<!-- output(?: :: (?P<filter>[^\n]*))? -->\n+```text\n(?P<output>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def photos(root: Path) -> None:
    """1,797 JPEG files of 256x256 pixels in ten classes; every fifth is for testing."""
    images, labels = load_digits(return_X_y=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = root / ("test" if number % 5 == 0 else "train") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (image.reshape(8, 8) * 15.9).astype(np.uint8)
        picture = Image.fromarray(pixels).resize((256, 256)).convert("RGB")
        picture.save(folder / f"{number}.jpg")


def printed(command: str, place: Path, keep: Path) -> str:
    """What a command prints in `place`, stdout and stderr together."""
    kept = keep / f"{hashlib.sha256(command.encode()).hexdigest()[:12]}.txt"
    if not kept.exists():
        if "PHOTOS" in command and not (place / "PHOTOS").exists():
            photos(place / "PHOTOS")
        if example := re.match(r"cd (examples/\S+)", command):
            shutil.copytree(ROOT / example[1], place / example[1], dirs_exist_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        start = time.monotonic()
        done = subprocess.run(
            ["/bin/bash", "-uc", command],
            cwd=place,
            env=os.environ | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(f"{time.monotonic() - start:.0f} s, exit code {done.returncode}: {command[:70]!r}")
        kept.write_text(done.stdout.replace(f"{place}/", ""))
    return kept.read_text()


def rebuilt(page: str, place: Path, keep: Path) -> Iterator[str]:
    """The parts of a page, with new output."""
    command, end = "", 0
    for found in BLOCK.finditer(page):
        if found["python"]:
            if found["name"]:
                (place / found["name"]).write_text(found["python"])
            else:
                command = f"cat > page.py <<'END'\n{found['python']}END\npython page.py 2> progress"
        elif found["shell"]:
            if not found["shell"].startswith("    pip install"):
                command = re.sub(r"^ {4}", "", found["shell"], flags=re.MULTILINE)
        else:
            text = printed(command, place, keep)
            if found["filter"]:
                text = subprocess.run(
                    ["/bin/bash", "-c", found["filter"]], input=text, stdout=-1, text=True
                ).stdout
            yield page[end : found.start("output")]
            yield "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())
            end = found.end("output")
    yield page[end:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place, keep = Path(folder), given.keep or Path(folder, "kept")
        keep.mkdir(exist_ok=True)
        for path in given.pages:
            path.write_text("".join(rebuilt(path.read_text(), place, keep)))


if __name__ == "__main__":
    main()
