"""Judges whether cells compute the same: their first steps against those of none-fp32."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ninefold.answer.cell import PLAIN, Cell, plainness
from ninefold.answer.numerics import Row
from ninefold.answer.runs import Run
from ninefold.answer.study_facts import OTHER, SAME, WITHIN, CellNumerics, Numerics
from ninefold.numbers import MISSING

ABOUT = (
    "Loss, gradient and update of the first {steps} steps compared with those of none, fp32 with "
    "the same seed, without dropout. The first step starts from the same weights, and decides; "
    "later ones show how fast rounding drives the configurations apart."
)


@dataclass(frozen=True)
class Tolerance:
    """How far the first step may be off: relative, but `cosine` below 1 and `flushed` a share."""

    loss: float
    cosine: float
    ratio: float
    flushed: float


# On a CPU, ConvNet in two processes and fp32 is off by at most 6e-8 in its first loss and by 4e-13
# in cosine. Other examples give a cosine of about 0, batch norm over half of a batch one of 0.5.
# ResNet-50 is off by 4e-3 and 0.26 in float16, by 3e-2 and 0.87 in bfloat16: there the direction
# tells nothing.
ROUNDING = Tolerance(loss=1e-5, cosine=1e-6, ratio=1e-3, flushed=1e-4)
SHORT = Tolerance(loss=1e-2, cosine=0.5, ratio=0.1, flushed=1e-2)  # float16, or TF32
BFLOAT16 = Tolerance(loss=5e-2, cosine=1.2, ratio=0.15, flushed=1e-2)


SAME_SIZE = 1.3  # times: two updates by other gradients that no learning rate tells apart


def summarize(rows: Sequence[Row], runs: Sequence[Run]) -> Numerics | None:
    """What `rows` come to for the cells of `runs`, a group's; None if there are none of them.

    Of several seeds the figures are the worst: what holds of a cell holds of each of its runs.
    """
    by_run: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.step):
        by_run.setdefault(row.folder, []).append(row)
    cells: dict[Cell, list[tuple[Run, list[Row]]]] = {}
    for run in runs:
        if run.folder in by_run:
            cells.setdefault(run.cell, []).append((run, by_run[run.folder]))
    if not cells:
        return None
    steps = max(len(found) for members in cells.values() for _, found in members)
    judged = [_cell(cell, cells[cell]) for cell in sorted(cells, key=plainness)]
    return Numerics(ABOUT.format(steps=steps), judged)


def _cell(cell: Cell, members: Sequence[tuple[Run, list[Row]]]) -> CellNumerics:
    firsts = [found[0] for _, found in members]
    run, rows = max(members, key=lambda each: _how_wrong(each[0], each[1][0]))
    verdict, sentence = _judge(run, rows[0])
    ratios = (row.update_ratio for row in firsts if row.update_ratio is not None)
    return CellNumerics(
        cell=cell,
        first_loss_deviation=_worst(row.loss_deviation for row in firsts),
        loss_deviation=_worst(row.loss_deviation for _, found in members for row in found),
        cosine=min((row.cosine for row in firsts if row.cosine is not None), default=None),
        flushed=_worst(row.flushed for row in firsts),
        update_ratio=max(ratios, key=_off, default=None),
        verdict=verdict,
        sentence=sentence,
        by_design=verdict == OTHER and all(_by_design(run, found[0]) for run, found in members),
    )


def _how_wrong(run: Run, first: Row) -> tuple[int, bool, float]:
    """What sorts runs by their verdict, what no design explains, and the cosine: of the worst one
    is the sentence.
    """
    verdict = (SAME, WITHIN, OTHER).index(_judge(run, first)[0])
    apart = math.inf if first.cosine is None else -first.cosine
    return verdict, not _by_design(run, first), apart


def _by_design(run: Run, first: Row) -> bool:
    """Return whether batch norm over parts of a batch explains what a run does otherwise.

    That is how its strategy is meant to work, and the score has to tell what it costs.
    """
    update = first.update_ratio
    fine = update is not None and _off(update) <= math.log(SAME_SIZE)
    fine = fine and not _underflows(first, SHORT)
    return first.batch_norm and max(run.replicas or 1, run.chunks or 1) > 1 and fine


def _underflows(first: Row, allowed: Tolerance) -> bool:
    loss = math.inf if first.loss_deviation is None else first.loss_deviation
    return (first.flushed or 0.0) > allowed.flushed and loss <= allowed.loss


def _judge(run: Run, first: Row) -> tuple[str, str]:
    """The verdict on a run by its first step, and why."""
    if run.cell == PLAIN:
        return SAME, "The other configurations are compared with it."
    if not _wrong(run, first, ROUNDING):
        return SAME, "Loss, gradient and update of the first step differ by no more than rounding."
    short = {"float16": SHORT, "bfloat16": BFLOAT16}.get(str(run.dtype))
    tf32 = run.tf32 or run.tf32_convolutions
    wrong = _wrong(run, first, short or (SHORT if tf32 else ROUNDING))
    if wrong is None and _by_design(run, first):
        wrong = _of_parts(run, first)
    if wrong:
        return OTHER, wrong
    precision = run.dtype if short else "TF32"
    return WITHIN, f"The gradient of the first step differs by what {precision} rounds away."


def _wrong(run: Run, first: Row, allowed: Tolerance) -> str | None:
    """Return what is wrong with a run, in one sentence, by its first step; None if nothing is."""
    if (first.weights or 0.0) > allowed.loss:
        return "It starts from other weights, so that nothing else of it can be compared."
    loss, cosine = first.loss_deviation, first.cosine
    if loss is None:
        return "Its loss at the first step is not finite."
    if cosine is None:
        return "Its gradient at the first step is zero or not finite."
    elsewhere = 1 - cosine > allowed.cosine
    if _underflows(first, allowed):
        return (
            f"{first.flushed or 0.0:.1%} of its gradient is zero where none, fp32's is not: it "
            f"underflows in {run.dtype}."
        )
    gradient, update = first.gradient_ratio, first.update_ratio
    sized = any(of is not None and _off(of) > allowed.ratio for of in (gradient, update))
    if not (elsewhere or loss > allowed.loss or sized):
        return None
    if _by_design(run, first):
        return _of_parts(run, first)
    return (
        f"From the same weights its first loss is {loss:.1%} off, its gradient has a cosine of "
        f"{_text(cosine)} with none, fp32's and is {_text(gradient)} times as large, its update "
        f"{_text(update)} times: it takes other examples, or computes something else."
    )


def _of_parts(run: Run, first: Row) -> str:
    """What batch norm over parts of a batch changes, in one sentence."""
    replicated = (run.replicas or 1) > 1
    part, count = ("replica", run.replicas) if replicated else ("chunk", run.chunks)
    return (
        f"From the same weights its first loss is {first.loss_deviation or 0.0:.1%} off, and its "
        f"gradient has a cosine of {_text(first.cosine)} and is {_text(first.gradient_ratio)} "
        f"times as large: batch norm takes the mean and variance of each {part}'s own part of a "
        f"batch, of which there are {count}."
    )


def _off(ratio: float) -> float:
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _text(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.4f}".rstrip("0").ljust(3, "0") if value < 10 else f"{value:,.0f}"
