"""What checkpoints cost a training step: a run that saves each epoch against one that never does.

    python benchmarks/checkpoint_cost.py [pairs]

Both kinds of run, and the first kind once more as an A/A control, take turns in one sweep. The
ratio is of their inner clocks (training steps only), with a bootstrap interval over the turns; the
outer clock, in which the saves are, is told beside it. If the control's interval does not contain
1 the machine was not quiet, and the sitting is void.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
RUN = [
    "model=resnet18", "dataset=synthetic", "dataset.shape=[3,16,16]", "dataset.train_count=2048",
    "dataset.test_count=64", "batch_size=64", "epochs=3", "logger=quiet",
]  # fmt: skip


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, str(ROOT / "train.py"), "-m", *RUN, f"hydra.sweep.dir={folder}",
             f"seed={','.join(map(str, range(pairs)))}", "checkpoint.every=0,null,0"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        runs = sorted(Path(folder).glob("*/result.json"), key=turn)
        results = [json.loads(path.read_text()) for path in runs]
        size = (runs[0].parent / "checkpoints" / "last.pt").stat().st_size / 1e6
    inner = np.array([r["train_seconds"] for r in results]).reshape(pairs, 3)
    outer = np.array([r["total_seconds"] for r in results]).reshape(pairs, 3)
    environment = results[0]["environment"]
    print(f"{pairs} turns of 3 epochs, a checkpoint of {size:.0f} MB after each")
    versions, commit = environment["versions"], environment["commit"][:7]
    print(f"{environment['cpu']}, {environment['cores']} cores, "
          f"torch {versions['torch']}, commit {commit}")  # fmt: skip
    told = ratio(inner[:, 0], inner[:, 1])
    control = ratio(inner[:, 0], inner[:, 2])
    for name, values in (
        ("inner clock, saving / not saving", told),
        ("outer clock, saving / not saving", ratio(outer[:, 0], outer[:, 1])),
        ("inner clock, saving / saving again (control)", control),
    ):
        print(f"{name:<46} {values[0]:.4f} [{values[1]:.4f}, {values[2]:.4f}]")
    if not control[1] <= 1 <= control[2]:
        print("void: the control's interval does not contain 1")
    return 0


def turn(path: Path) -> int:
    """A run's place in the sweep, with which its folder's name begins."""
    return int(path.parent.name.partition("_")[0])


def ratio(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """The median of a / b turn by turn, and its 95 % bootstrap interval."""
    ratios = a / b
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)


if __name__ == "__main__":
    sys.exit(main())
