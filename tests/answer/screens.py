"""What each door shows of answers whose turns are made up: screens.txt has all of it.

    python -m tests.answer.screens

writes screens.txt anew: what a change does to a screen is read as a difference of that file.
"""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ninefold
from ninefold import report
from ninefold.answer.facts import facts_of
from ninefold.answer.times import times
from ninefold.bench import batches, score
from ninefold.bench.command import Command
from ninefold.bench.measurements import Measurements, Options
from ninefold.bench.pacing import Pause
from ninefold.bench.precisions import PRECISIONS
from ninefold.bench.summary import Summary
from ninefold.bench.trial import ChangesTrial
from ninefold.stats.verdicts import Settings
from ninefold.tournament.taken import TurnLog
from tests.bench.test_change import computes
from tests.bench.test_strategies import simulated
from tests.bench.test_trial import chosen, play
from tests.report.golden import nine_cells

WRITTEN = Path(__file__).with_name("screens.txt")
KEEP = Path.cwd() / "bench" / "2026-11-28_05-48-56"
GIB = 2**30


def found(
    steps: Mapping[str, float], rounds: int = 6, noise: float = 0.01, **changes: Any
) -> Measurements:
    """A bench of commands whose steps take so many seconds, with so much noise of a round."""
    commands = [Command(f"python train.py --{name}", name) for name in steps]
    made = Measurements(commands, ends={rounds: 20.0 * rounds})
    draw = random.Random(rounds)
    for number in range(rounds):
        for name, seconds in steps.items():
            own = draw.gauss(1, noise)
            for _ in range(6):
                step = seconds * own * draw.gauss(1, 0.01)
                made.log.add(name, number, seconds=step, steps=10, others=0.0)
            made.memory[name][number] = int((1 + 0.1 * len(made.memory)) * GIB)
    for name in steps:
        made.batches[name] = batches.taken([[([64], 640)] * 4])
        made.told[name] = {"world": 1}
    return replace(made, **changes)


def bench(made: Measurements) -> str:
    return Summary(made).text(KEEP, whole=False)


def gated(steps: Mapping[str, float], noise: float) -> str:
    return bench(found(steps, noise=noise, options=Options(allowed=0.03)))


def tried(keep: Path) -> str:
    def seconds(has: set[str]) -> float:
        read = 0.0 if "no reading" in has else 0.01 if "workers=2" in has else 0.1
        return max(read, 0.02 if "channels_last" in has else 0.04)

    changes = "ninefold.bench.precisions.computes_in_bfloat16"
    with patch("ninefold.bench.trial.cores", lambda: 2), patch(changes, lambda: True):
        trial: ChangesTrial = chosen(keep)
    for _ in range(5):
        play(trial, seconds)
    trial.measured.ends[trial.done] = 200.0
    return bench(replace(trial.measured, helps=trial.helps()))


def of_batches() -> str:
    made = found({"b=16": 0.1, "b=256": 0.4}, examples={"b=16": 1.0, "b=256": 16.0})
    made.batches["b=16"] = batches.taken([[([16], 160)] * 4])
    made.batches["b=256"] = batches.taken([[([256], 2560)] * 4])
    return bench(made)


def of_precisions() -> str:
    said = {
        name: computes(of)
        for name, of in (("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16"))
    }
    made = found({"fp32": 0.1, "bf16": 0.05, "fp16": 0.052}, hellos=said)
    made.told["fp16"]["unscaled"] = True
    commands = [replace(each, changes=(PRECISIONS[each.name],)) for each in made.commands]
    return bench(replace(made, commands=commands))


def of_strategies() -> str:
    made = simulated(0.16, 2.0)
    made.ends[made.rounds] = 100.0
    return bench(made)


def of_scores() -> str:
    draw = random.Random(0)
    scores = [(draw.gauss(1, 0.01), draw.gauss(0.97, 0.01)) for _ in range(5)]
    return str(score.judge(scores, score.Rule(re.compile(""), "less", 0.01)))


def steps(of: Mapping[str, float], rounds: int = 6, noise: float = 0.01) -> str:
    log, draw = TurnLog(), random.Random(rounds)
    for number in range(rounds):
        for name, seconds in of.items():
            for _ in range(4):
                log.add(name, number, seconds=seconds * draw.gauss(1, noise), steps=10, others=0.2)
    return repr(times(facts_of([*of], log.turns, {}, rounds, Settings())))


def screens(folder: Path) -> Iterator[tuple[str, str]]:
    """The name of each door, and what it shows."""
    pause = Pause(2.0, 0.01, 0.05)
    yield "bench, decided", bench(found({"A": 0.039, "B": 0.0315}))
    yield "bench, not decided", bench(found({"A": 0.039, "B": 0.0386}, noise=0.05))
    yield "bench, equal", bench(found({"A": 0.039, "B": 0.039}, noise=0.002))
    yield "bench, too few rounds", bench(found({"A": 0.039, "B": 0.0315}, rounds=1))
    yield (
        "bench of seven",
        bench(found({f"workers={n}": 0.1 / (1 + n) for n in range(7)}, noise=0.02)),
    )
    yield "bench of three, none faster", bench(found({"A": 0.02, "B": 0.03, "C": 0.04}))
    yield (
        "bench, steps that wait for a clock",
        bench(found({"A": 0.1, "B": 0.1}, paced={"B": pause})),
    )
    yield "bench --max-slowdown 3%, passes", gated({"main": 0.039, "HEAD": 0.0391}, 0.002)
    yield "bench --max-slowdown 3%, fails", gated({"main": 0.039, "HEAD": 0.045}, 0.002)
    yield "bench --max-slowdown 3%, open", gated({"main": 0.039, "HEAD": 0.040}, 0.05)
    yield "bench --each b=16,256", of_batches()
    yield "bench --precisions fp32,bf16,fp16", of_precisions()
    yield "bench --strategies none,ddp", of_strategies()
    yield "bench --try", tried(folder)
    yield "bench --score", of_scores()
    yield "time_steps, decided", steps({"eager": 0.03, "compiled": 0.02})
    yield "time_steps of three", steps({"eager": 0.03, "compiled": 0.02, "fused": 0.025})
    yield "time_steps, not decided", steps({"eager": 0.03, "compiled": 0.0295}, noise=0.1)
    study = nine_cells(folder / "study")
    for name, text in (
        ("study and ninefold report", report.write(study).text),
        ("compare", repr(ninefold.Answer(study))),
    ):
        yield name, text.replace(str(study), "outputs/study")


def all_screens() -> str:
    with tempfile.TemporaryDirectory() as folder:
        made = screens(Path(folder))
        return "\n\n".join(f"=== {name}\n{text.rstrip()}" for name, text in made) + "\n"


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    WRITTEN.write_text(all_screens())
    sys.exit()
