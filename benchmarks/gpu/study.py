"""The part `study`: the comparison as a user runs it."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.check import Check, Expectation, Figures, ends_with
from benchmarks.gpu.session import Done, Session, read
from ninefold.report.stats.numerics import OTHER

SMALLEST = (
    "model=convnet", "model.net.width=8", "dataset=synthetic", "dataset.shape=[3,8,8]",
    "dataset.train_count=64", "dataset.test_count=16", "batch_size=16",
)  # fmt: skip
FEW = ("parallel=none,ddp", "amp=fp32,scaler", "seed=0,1", "epochs=1", "launch.cpu_processes=1")
SHORT = ("study.turns=2", "study.turn=0.02", "study.time_budget=0.02")
WHOLE = ("epochs=1", "checkpoint.every=null", "numerics=3")


def nine_way(session: Session) -> Figures:
    """The digits, whose steps are launches and little else, with one seed less."""
    return studied(session, "experiments=nine_way", *session.size(("seed=0,1",), (*FEW, *SHORT)))


def nine_way_gpu(session: Session) -> Figures:
    """A net that waits for its launches and one that fills the GPU, without dp and in less time."""
    full = ("parallel=none,ddp", "study.time_budget=2.5")
    tiny = ("parallel=none", "amp=fp32,scaler", *SMALLEST, *SHORT)
    return studied(session, "experiments=nine_way_gpu", *session.size(full, tiny))


def alexnet(session: Session) -> Figures:
    """AlexNet at 227 pixels: two seeds of six cells."""
    full = (
        "parallel=none,ddp", "amp=fp32,bf16,scaler", "seed=0,1", "model=alexnet",
        "dataset=synthetic", "dataset.train_count=6400", "dataset.test_count=512",
    )  # fmt: skip
    tiny = ("parallel=none", "amp=fp32,bf16", "seed=0,1", *SMALLEST)
    found = studied(session, "-m", *session.size(full, tiny), *WHOLE)
    each = found.get("seconds an epoch", {})
    for one, other in (("none-fp32", "none-bf16"), ("ddp-bf16", "none-bf16")):
        if each.get(one) and each.get(other):
            found[f"{one} over {other}"] = each[one] / each[other]
    return found


def swept(session: Session, *overrides: str) -> Done:
    folder = session.new_folder()
    options = (*overrides, f"hydra.sweep.dir={folder}")
    return session.train(*options, folder=folder, limit=330)


def studied(session: Session, *overrides: str) -> Figures:
    """Run a study; what its report says. The report is kept beside the part's log."""
    done = swept(session, *overrides)
    figures: Figures = {"exit code": done.code, "duration": done.seconds / 60}
    report = read(done.folder / "report" / "report.json")
    if not report:
        return figures
    session.keep(done.folder / "report")
    groups: list[dict[str, Any]] = report["groups"]
    cells = [cell for group in groups for cell in group["cells"]]
    rows = [row for group in groups for row in (group["numerics"] or {}).get("rows") or []]
    best = [report["answer"]["cell"]]
    several = len(groups) > 1
    return {
        **figures,
        "answer": report["answer"]["lead"],
        "caveats": report["answer"]["caveats"],
        "strategies that spread nothing and are recommended": [
            cell for cell in best if cell and session.gpus < 2 and not cell.startswith("none-")
        ],
        "cells that ended badly": [cell["cell"] for cell in cells if cell["status"]],
        "cells that compute something else": [
            row["cell"] for row in rows if row.get("verdict") == OTHER
        ],
        "A/A checks that failed": sum(
            (group["comparison"]["control"] or {}).get("state") == "failed" for group in groups
        ),
        "seconds an epoch": {
            f"{group['title']}: {cell['cell']}" if several else cell["cell"]: (
                cell["measures"].get("seconds") or {}
            ).get("mean")
            for group in groups
            for cell in group["cells"]
        },
    }


def sound(minutes: float) -> list[Expectation]:
    """What is expected of every study."""
    return [
        ends_with(),
        Expectation("duration", high=minutes, unit="min", means="the study takes longer than said"),
        Expectation("answer", gpus=0),
        Expectation("cells that ended badly", among=([],), gpus=0),
        Expectation(
            "strategies that spread nothing and are recommended",
            among=([],),
            gpus=0,
            means="on one GPU dp and ddp cannot be faster than none: see the report",
        ),
        Expectation(
            "cells that compute something else",
            among=([],),
            means="the thresholds of the numerics are those of bfloat16 on a CPU",
        ),
        Expectation("A/A checks that failed"),
        Expectation("caveats"),
    ]


CHECKS = [
    Check(
        "nine_way",
        "Does the nine-way study of the digits give a sound answer on a GPU?",
        nine_way,
        sound(4),
        seconds=150,
    ),
    Check(
        "nine_way_gpu",
        "Does the study that is sized for a GPU show which cells wait for the host?",
        nine_way_gpu,
        sound(5),
        seconds=190,
    ),
    Check(
        "alexnet",
        "What do the precisions give AlexNet, and does it wait for data?",
        alexnet,
        [
            *sound(3),
            Expectation(
                "none-fp32 over none-bf16",
                low=2.5,
                unit="×",
                means="bfloat16 gains less than predicted: does AlexNet wait for its data?",
            ),
            Expectation(
                "ddp-bf16 over none-bf16",
                high=1.06,
                unit="×",
                means="ddp costs more on one GPU than its wrapper should",
            ),
        ],
        seconds=110,
    ),
]
