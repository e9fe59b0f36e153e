"""Runs of made-up studies, of which the truth is known."""

from typing import Any

from ninefold.answer.runs import Run
from ninefold.tournament.taken import TakenTurn
from tests.report.made import facts_of

STEPS = 24  # of an epoch with a batch of 64; of the largest batch, 512, there are 3


def run(parallel: str, amp: str, number: int, step: float, batch: int = 64, **changes: Any) -> Run:
    """A run of an epoch whose steps take so many seconds, with this seed or in this round."""
    steps = STEPS * 64 // batch
    return Run(
        **{
            "folder": f"{parallel}-{amp}-{batch}-{changes.get('processes', 1)}-{number}",
            "status": "ok", "dataset": "digits", "model": "convnet", "parallel": parallel,
            "amp": amp, "seed": number, "round": number, "batch_size": batch, "epochs": 1,
            "planned_epochs": 10, "steps": steps, "train_seconds": steps * step,
            "devices": ["cpu"], "processes": 1, "replicas": 1, "threads": 1,
            **facts_of(parallel, amp, 2), **changes,
        }
    )  # fmt: skip


def timed(
    parallel: str, amp: str, number: int, step: float, batch: int = 64, **changes: Any
) -> Run:
    """The same as a timing run."""
    turns = {"turns": 1, "taken": [TakenTurn(turn=0, seconds=step, steps=STEPS)], "folder": ""}
    found = run(parallel, amp, number, step, batch, **{**changes, **turns})
    found.folder = f"timing/{number}/{found.cell}-{batch}"
    return found
