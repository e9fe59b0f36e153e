"""Three studies whose report.json is written down: a small one, one of nine cells, a broken one.

    python -m tests.report.golden

writes tests/report/golden/*.json anew: what a change does to a report is then read as a difference
of those files. Numbers have nine digits, as the last ones are not the same on every machine.
"""

import json
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ninefold import report
from tests.report.made import entry, failure, result, sweep
from tests.report.studies import CELLS, DDP_AUTOCAST, NONE_SCALER

FOLDER = Path(__file__).parent / "golden"
EVIL = "a | b\nand <b>more [x](y)"


def small(folder: Path) -> Path:
    """Two cells and two seeds, trained as a whole, with shares of phases and notes."""
    one, all_ = "ddp has one device.", "Memory is that of the process."
    runs = [
        *(result(seed=n, train_seconds=20.0 + n, notes=[all_]) for n in range(2)),
        *(result("ddp", seed=n, train_seconds=10.0, score=0.89 + n / 100, notes=[one, all_],
                 peak_memory_bytes=[300 * 2**20, 100 * 2**20]) for n in range(2)),
    ]  # fmt: skip
    return sweep(folder, *runs, study="small", question="which is faster?", runs=4)


def nine_cells(folder: Path) -> Path:
    """All cells, in turns and as whole runs: one is the fastest, one loses accuracy."""
    chance, runs = random.Random(0), []
    for seed in range(4):
        common = chance.gauss(0, 0.004)
        for cell in CELLS:
            seconds = (20.0 if cell.amp == "fp32" else 10.0) * (0.8 if cell == DDP_AUTOCAST else 1)
            runs.append(result(
                cell.parallel, cell.amp, seed, train_seconds=seconds * chance.gauss(1, 0.002),
                score=0.9 + common + chance.gauss(0, 0.0003) - 0.03 * (cell == NONE_SCALER),
                dtype="float32" if cell.amp == "fp32" else "bfloat16",
                grad_scaler=cell.amp == "scaler",
            ))  # fmt: skip
    settings = {"report": {"margin": 1.0, "same": 0.02, "target": None}}
    return sweep(
        folder, *runs, turns=True, study="nine_cells", command="python train.py", looks=3,
        settings=settings,
    )  # fmt: skip


def broken(folder: Path) -> Path:
    """A study that was stopped: runs that failed, do not count, never ended or cannot be read."""
    slow = {"train_seconds": 900.0, "notes": ["a note of a slow run"]}
    private = f"box7 could not read /home/annabel/x.bin, nor {folder}/runs, nor C:\\Users\\annabel"
    runs = [
        result(**slow), result(**slow), result("ddp"), result(**slow), result("ddp", **slow),
        failure("none", "fp32", error=private), {**failure("ddp", "scaler"), "error": EVIL},
        result("ddp", "autocast", status="diverged"), result(batch_size=128),
    ]  # fmt: skip
    names = [f"runs/{n}_{each['parallel']}_{each['amp']}" for n, each in enumerate(runs)]
    cells = [{"parallel": p, "amp": amp} for p in ("none", "ddp") for amp in ("fp32", "scaler")]
    sweep(
        folder, *runs, question=EVIL, command="python train.py -m hydra.sweep.dir=/home/annabel/x",
        rounds=[entry(0, [names[2], *names[5:]])],
        planned_rounds=2, planned_cells=cells,
        swept={"parallel": ["none", "ddp"], "amp": ["fp32", "scaler"]},
    )  # fmt: skip
    (folder / names[4]).rename(folder / "superseded")
    (folder / names[3]).rename(folder / "superseded" / "3")
    files = {
        "deep/1_ddp_scaler/config.yaml": "parallel:\n  seed: 1\nseed: 7\nbatch_size: 64\nchoices:\n"
        "  experiments: made_up\n  parallel: ddp\n  amp: scaler\n  dataset: digits\n"
        "  model: convnet\n",
        "evaluation/config.yaml": "seed: 0\nchoices:\n  parallel: ddp\n",  # no unfinished run
        "evaluation/evaluation.json": "{}",
    }
    texts = ["{", "[]", '{"score": 1}', '{"status": "ok", "seed": "x"}']
    texts += [json.dumps(result(scores=s)) for s in ([1], {"a": "much"}, {"a": 1e99}, "text")]
    files |= {f"unreadable/{n}/result.json": text for n, text in enumerate(texts)}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


STUDIES: dict[str, Callable[[Path], Path]] = {
    "small": small, "nine_cells": nine_cells, "broken": broken
}  # fmt: skip


def text_of(folder: Path) -> str:
    """The report.json of a study, which is written, as it is written down here."""
    report.write(folder)
    content = json.loads((folder / "report" / "report.json").read_text())
    text = json.dumps(rounded(content), indent=1, ensure_ascii=False) + "\n"
    return re.sub(r"[\[{][^][{}]*[]}]", lambda found: re.sub(r"\n *", " ", found[0]), text)


def rounded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: rounded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [rounded(value) for value in tree]
    return float(f"{tree:.9g}") if isinstance(tree, float) else tree


if __name__ == "__main__":
    for name, made in STUDIES.items():
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{name}.json").write_text(text_of(made(Path(folder) / name)))
