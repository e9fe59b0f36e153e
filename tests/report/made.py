"""Made-up runs and studies, as folders and as objects, and what a report says of them."""

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ninefold.answer.answer import Answer
from ninefold.answer.cell import Cell
from ninefold.answer.gather import gather
from ninefold.answer.grouping import groups
from ninefold.answer.rounds import turns_of
from ninefold.answer.runs import Run
from ninefold.answer.study_facts import OTHER, CellNumerics, Numerics, StudyFacts
from ninefold.report.builder import build
from ninefold.report.data.recording import Recording, find_recording, read_recording, record
from ninefold.report.render.templates import report_text
from ninefold.report.tree import Report
from ninefold.study_record import StudyRecord
from ninefold.tournament.taken import TakenTurn
from tests.report.studies import DDP, DDP_AUTOCAST, NONE, NONE_AUTOCAST

ROOT = Path(__file__).parents[2]


def facts_of(parallel: str, amp: str, replicas: int = 1) -> dict[str, Any]:
    """What options declare, as a run records it."""
    one = parallel in ("none", "dp")
    return {
        "max_processes": 1 if one else None, "tf32": amp == "tf32", "random_inputs": False,
        "no_op": parallel == "dp" and replicas == 1, "backend": None if one else "gloo",
    }  # fmt: skip


def result(parallel: str = "none", amp: str = "fp32", seed: int = 0, **changes: Any) -> dict:
    """A successful run's result.json with made-up numbers."""
    return {
        "status": "ok", "error": None, "study": "made_up", "parallel": parallel, "amp": amp,
        **facts_of(parallel, amp, changes.get("replicas", 1)),
        "dataset": "digits", "model": "convnet", "seed": seed, "dtype": "float32",
        "grad_scaler": False, "processes": 1, "replicas": 1, "devices": ["cpu"], "threads": 2,
        "batch_size": 64, "epochs": 10, "steps": 220, "skipped_steps": 0, "score": 0.9,
        "best_score": 0.91, "test_loss": 0.1, "test_count": 360, "train_seconds": 20.0,
        "evaluate_seconds": 1.0, "total_seconds": 23.0, "epoch_seconds": [2.0] * 10,
        "examples_per_second": 1000.0, "peak_memory_bytes": [200 * 2**20], "notes": [],
        "phase_seconds": {
            "data": 1.0, "transfer": 1.0, "forward": 2.0, "backward": 4.0, "optimizer": 2.0
        },
        "environment": {
            "python": "3.12.1", "torch": "2.15.0", "driver": None, "commit": "0123456789abcdef",
            "dirty": False, "hostname": "box7", "cpu": "A CPU", "cores": 2,
            "time": f"2026-01-02T03:04:0{seed}Z",
        },
        **changes,
    }  # fmt: skip


def failure(parallel: str, amp: str, seed: int = 0, **changes: Any) -> dict:
    """The little that a run knows which failed before it trained."""
    return {
        "status": "failed", "error": "error: device=cuda: no GPU; found cpu; use device=cpu",
        "study": "made_up", "parallel": parallel, "amp": amp, "dataset": "digits",
        "model": "convnet", "seed": seed, "max_processes": facts_of(parallel, amp)["max_processes"],
        **changes,
    }  # fmt: skip


def sweep(folder: Path, *results: dict, turns: bool = False, **facts: Any) -> Path:
    """Write results as the run folders of a sweep, and its facts as sweep.json.

    turns: whether cells took turns, in which they were as fast as in these runs.
    """
    names = [f"runs/{n}_{each['parallel']}_{each['amp']}" for n, each in enumerate(results)]
    for name, content in zip(names, results, strict=True):
        write_result(folder / name, content)
    if turns:
        facts["timing"] = take_turns(folder, *results)
    if "timing" in facts:
        facts.setdefault("rounds", _rounds(zip(names, results, strict=True)))
    facts.setdefault("settings", {}).setdefault("study", {}).setdefault("ask", ["time", "score"])
    folder.mkdir(exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(facts))
    return folder


def write_result(run: Path, content: Mapping[str, Any]) -> None:
    run.mkdir(parents=True)
    (run / "result.json").write_text(json.dumps(content))


def change(path: Path, **changes: Any) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def entry(number: int, runs: list[str], **changes: Any) -> dict[str, Any]:
    """A round of sweep.json."""
    return {"round": number, "seed": number, "part": 0, "runs": runs, **changes}


def take_turns(folder: Path, *results: dict) -> list[dict[str, Any]]:
    """Write a timing run for each result that is ok, in the round of its seed; the rounds.

    Of a result without turns it has one, which is as fast as the run.
    """
    made = []
    for content in (each for each in results if each["status"] == "ok"):
        others = [content["model"]] * (content["model"] != "convnet")
        others += [str(content["batch_size"])] * (content["batch_size"] != 64)
        cell = "_".join(
            [f"{content['parallel']}-{content['amp']}", *others, *content.get("overrides", [])]
        )
        name = f"timing/{content['seed']}/{cell}"
        seconds = content["train_seconds"] / content["steps"]
        unscored = dict.fromkeys(("score", "best_score", "test_loss", "score_name"))
        turns = {"turns": 1, "turn_seconds": [seconds]} if "turns" not in content else {}
        write_result(folder / name, {**content, **unscored, "scores": {}, "figures": {}, **turns})
        made.append((name, content))
    return _rounds(made)


def _rounds(runs: Iterable[tuple[str, dict]]) -> list[dict[str, Any]]:
    found: dict[int, list[str]] = {}
    for name, content in runs:
        found.setdefault(content["seed"], []).append(name)
    return [entry(seed, names) for seed, names in found.items()]


def one_seed(folder: Path, rounds: int = 8) -> Path:
    """A study of three precisions with one seed of scores, the last cell in three rounds only."""
    slow = ["This CPU has no instructions for bfloat16 and converts each number."]
    runs = [
        result(amp=amp, seed=n, train_seconds=took + 0.01 * n, notes=slow * (amp != "fp32"))
        for n in range(rounds)
        for amp, took in (("fp32", 20.0), ("tf32", 30.0), ("autocast", 90.0))
        if amp != "autocast" or n < 3
    ]
    first = [run for run in runs if run["seed"] == 0]
    names = [f"runs/{n}_none_{run['amp']}" for n, run in enumerate(first)]
    return sweep(folder, *first, timing=take_turns(folder, *runs), rounds=[entry(0, names)])


def recorded(folder: Path) -> Recording:
    """Record a folder as its report does; what was recorded."""
    gathered, target = find_recording(folder)
    if target != folder:
        record(gathered, target)
    return read_recording(target)


def table_of(recording: Recording) -> str:
    """The text of the report.md of a recording."""
    return report_text(built(recording))


def tables_of(folder: Path) -> str:
    """The text of the report.md of a folder."""
    return table_of(recorded(folder))


def built(recording: Recording) -> Report:
    return build(recording, recording.facts)


@cache
def recording(study: str, place: str = "*") -> Report:
    """The report of a recorded study. place: which of its recordings, the first of these."""
    return built(read_recording(min(ROOT.glob(f"experiments/{study}/20{place}"))))


def each_text(tree: Any, change: Callable[[str], str]) -> Any:
    """A report with every text in it changed, but for keys and cells."""
    if isinstance(tree, Cell):
        return tree
    if is_dataclass(tree) and not isinstance(tree, type):
        known = {each.name: getattr(tree, each.name) for each in fields(tree)}
        return replace(tree, **{name: each_text(value, change) for name, value in known.items()})
    if isinstance(tree, Mapping):
        return {key: each_text(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [each_text(value, change) for value in tree]
    return change(tree) if isinstance(tree, str) else tree


def row(text: str, section: str, name: str) -> list[str]:
    """The cells of one row in the table below a heading."""
    below = re.split(f"^#+ {section}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    names = (f"| {name} ", f"| **{name}** ")
    line = next(line for line in below.splitlines() if line.startswith(names))
    return [cell.strip() for cell in line.split("|")[2:-1]]


TIMED = {"study": {"ask": ["time"]}}
EMPTY = StudyRecord(settings=TIMED)
SECONDS = {NONE: 5.0, NONE_AUTOCAST: 4.0, DDP: 3.0, DDP_AUTOCAST: 2.0}


def runs_of(
    seconds: Mapping[Cell, float],
    accuracy: Mapping[Cell, float] | None = None,
    seeds: int = 6,
    noise: float = 0.005,
    draw: int = 0,
    spread: float = 0.05,
    **changes: Any,
) -> list[Run]:
    """Runs of made-up cells: seconds per epoch, and percent that a cell's accuracy is off.

    Each is there as a training run with a seed, and as a timing run in the round of this number.
    """
    chance = random.Random(draw)
    found = []
    for seed in range(seeds):
        common = chance.gauss(80, 0.4)
        for cell, base in seconds.items():
            parallel, amp, _ = cell
            replicas = 1 if parallel != "ddp" else 2
            points = common + (accuracy or {}).get(cell, 0.0) + chance.gauss(0, spread)
            found.append(Run(
                folder=f"{cell}_{seed}", status="ok", dataset="digits", model="convnet",
                parallel=parallel, amp=amp, seed=seed, replicas=replicas,
                devices=["cpu"] * replicas, batch_size=64, epochs=1, score=points / 100,
                train_seconds=base * chance.gauss(1, noise), examples_per_second=1000 / base,
                **{"steps": 100, **facts_of(parallel, amp, replicas), **changes},
            ))  # fmt: skip
    return [*found, *map(in_turns, found)]


def whole(runs: Sequence[Run]) -> list[Run]:
    """Those that were trained as a whole."""
    return [run for run in runs if not run.timed]


def in_turns(run: Run) -> Run:
    """A timing run that takes as long as a training run."""
    taken = TakenTurn(turn=0, seconds=run.step_seconds or 0.0, steps=run.steps or 0)
    return replace(
        run, folder=f"timing/{run.seed}/{run.cell}", turns=1, taken=[taken], round=run.seed,
        score=None, score_name=None, scores={},
    )  # fmt: skip


def numerics_of(
    *cells: Cell, verdict: str = OTHER, sentence: str = "", by_design: bool = False
) -> Numerics:
    """First steps of cells that all have the same verdict."""
    return Numerics("", [CellNumerics(c, *[None] * 5, verdict, sentence, by_design) for c in cells])


def evidence(runs: Sequence[Run], numerics: Numerics | None = None, **report: Any) -> StudyFacts:
    """What runs come to."""
    [group] = groups(runs)
    record = StudyRecord(settings={"report": report, **TIMED})
    return gather(group, record, turns_of(runs, record), numerics)


def report_of(runs: Sequence[Run], folder: Path | None = None, **environment: Any) -> Report:
    return built(Recording(runs, {"sweep": {"settings": TIMED}, **environment}, [], [], folder))


def answer_of(runs: Sequence[Run], folder: Path | None = None, **environment: Any) -> Answer:
    return report_of(runs, folder, **environment).answer
