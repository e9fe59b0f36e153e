"""Run the study of scaling on two Slurm nodes of this machine, joined by a link of a given rate.

    sudo python experiments/scaling/two_nodes.py FOLDER RATE [OVERRIDE ...]

The nodes are network namespaces (tests/faults/slurm.py): each has a network of its own and shares
this machine's cores with the other. FOLDER, which must not exist, gets the runs and the report.
RATE is in tc's units, such as 200mbit; the overrides are those of train.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults.slurm import NODES, cluster  # noqa: E402

STUDY = [
    *("experiments=scaling", "launch.engine=srun", "study.ask=null", "study.retries=0"),
    *("parallel=none,ddp,fsdp", "parallel.processes=1,2,4", "seed=0,1,2", "epochs=3"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rate")
    arguments, overrides = parser.parse_known_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="nf-") as state, cluster(Path(state)) as nodes:
        env = {**os.environ, **nodes.environment()}
        slowed = ("tc", "qdisc", "replace", "dev", "cable", "root", "tbf")
        for node in NODES:
            # A larger burst would let most of a step's message pass at full speed.
            limits = ("rate", arguments.rate, "burst", "32kb", "latency", "500ms")
            subprocess.run(nodes.on(node, *slowed, *limits), env=env, check=True)
        study = [*STUDY, f"hydra.sweep.dir={folder}", *overrides]
        command = ["salloc", "-Q", "-N2", "--ntasks-per-node=2", sys.executable]
        return subprocess.call(
            nodes.on("nodea", *command, str(ROOT / "train.py"), *study, folder=folder),
            env={**env, "PYTHONPATH": str(ROOT)},
        )


if __name__ == "__main__":
    sys.exit(main())
