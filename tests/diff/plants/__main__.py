"""How often `ninefold diff` names each mistake as meant, and finds none where there is none.

python -m tests.diff.plants [--starts 10] [--controls 20] [--jobs 1] [NAME ...]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conftest import ROOT
from tests.diff.plants import CONTROLS, PLANTS, Plant, wrong


def said(plant: Plant, seed: int) -> str | None:
    """What a start is said to be in place of what is meant; None: it is named as meant."""
    words = [word.replace("{s}", str(seed)) for word in plant.words]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ninefold", "diff", "--json=found.json", *words]
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip()[-200:]
        found = json.loads(Path(folder, "found.json").read_text())
    unlike = wrong(plant, found)
    return f"{found['kind']} {unlike}" if unlike else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--starts", type=int, default=10, help="of each plant")
    parser.add_argument("--controls", type=int, default=20, help="of each control")
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    asked = parser.parse_args()
    with ThreadPoolExecutor(asked.jobs) as pool:
        for plants, starts in ((PLANTS, asked.starts), (CONTROLS, asked.controls)):
            for name, plant in plants.items():
                if not asked.names or name in asked.names:
                    found = list(pool.map(said, [plant] * starts, range(starts)))
                    others = Counter(each for each in found if each is not None)
                    kinds = "; ".join(f"{count} x {each}" for each, count in others.items())
                    print(f"{name:<13} {found.count(None):>3} of {starts:<4} {kinds}", flush=True)


if __name__ == "__main__":
    main()
