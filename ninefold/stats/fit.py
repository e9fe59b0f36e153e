"""Cells compared by rounds of turns: one weighted fit, whose noise is of processes and of turns.

The logarithm of the mean turn of a process is level of its cell + round + noise. The noise has two
parts: what processes of one cell differ by, and the spread of its turns over their number. The
first is found as Paule and Mandel (1982) do. A cell that is noisier than the others has its own
variance raised, moderated as by Smyth (2004); a pair's degrees of freedom are Satterthwaite's
(1946). A cell is quiet if its turns take almost the same time, as where the GPU limits a step.
Quiet cells are compared with each other by their own rounds alone, without the prior and without
the noise of other cells. benchmarks/LOG.md has what its constants were held against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

import numpy as np
from scipy import special

from ninefold.stats.differences import Differences, Ints, Values, prior_freedom, shared_tests
from ninefold.stats.student import Array
from ninefold.stats.verdicts import Name

Turns = Mapping[Name, Mapping[int, Sequence[float]]]  # cell -> round -> seconds of each turn

# sd of what processes of a cell differ by, before any round is known, and while FEW are.
PROCESS, OF_FEW, FEW = 0.03, 0.05, 3
ENOUGH = 6.0  # degrees of freedom up to which that is added to what the rounds know
OF_TURNS = 4.0  # degrees of freedom of all turns that are added to a cell's own
LENT = 0.5  # times its own degrees of freedom that a cell borrows at most
LEAST = 4.0  # degrees of freedom of a cell, borrowed ones with its own
QUIET = 0.01  # sd of a turn below which its cell is quiet
LEAST_QUIET = 4  # degrees of freedom from which quiet cells are known by themselves
SMALLEST = 1e-8  # variance between processes: a clock can tell no less
Copies = Sequence[tuple[int, int]]  # rows that do the same work, the first of a group before


@dataclass(frozen=True)
class Fit:
    """The levels of cells, and what each process adds to their noise; arrays are float64.

    there: bool [cells, rounds], whether a cell has a process in a round.
    level: [cells], logarithms of seconds, without the rounds' part; nan: no process.
    weights: [cells, processes], of the processes' logarithms in each level.
    cell: int64 [processes], whose each is. variance: [processes]; nan: not known.
    freedom: [cells], degrees of freedom of a cell's variance. most: those that no pair exceeds.
    part: int64 [cells]; levels of cells with other numbers cannot be compared.
    between: sd of what processes of one cell differ by.
    quiet: the quiet cells and the fit of these alone; None: there are none beside others.
    """

    there: np.ndarray
    level: Array
    weights: Array
    cell: Ints
    variance: Array
    freedom: Array
    most: float
    part: Ints
    between: float
    quiet: tuple[Ints, Fit] | None = None

    def of(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return mean, standard error and degrees of freedom of contrasts [contrasts, cells]."""
        found = self._of(rows)
        if self.quiet is not None:
            cells, own = self.quiet
            inside = np.abs(rows).sum(axis=1) == np.abs(rows[:, cells]).sum(axis=1)
            for every, of_quiet in zip(found, own.of(rows[np.ix_(inside, cells)]), strict=True):
                every[inside] = of_quiet
        return found

    def _of(self, rows: Array) -> tuple[Array, Array, Array]:
        squares = (rows @ self.weights) ** 2 * self.variance
        share = squares @ np.eye(len(self.level))[self.cell]  # [contrasts, cells]
        total = share.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = total**2 / (share**2 / self.freedom).sum(axis=1)
        mean = rows @ np.nan_to_num(self.level)
        return mean, np.sqrt(total), np.minimum(freedom, max(self.most, 1.0))

    def own_variance(self, cell: int) -> float:
        """Return the variance of the level of a cell by its own processes."""
        own = self.cell == cell
        return float((self.weights[cell, own] ** 2 * self.variance[own]).sum())


def fit(logs: Array, counts: Array, spread: Array, process: float = PROCESS) -> Fit:
    """Return the levels of cells; arrays are float64 [cells, rounds].

    logs: logarithm of the mean seconds of a step of a process; nan: there is none.
    counts: turns that it is the mean of. spread: variance of a turn over its mean squared; nan:
    not known. process: sd of what processes of a cell differ by, before any round.
    """
    quiet = np.flatnonzero(_quiet(counts, spread))
    own = _fit(logs[quiet], counts[quiet], spread[quiet], process, 0.0) if len(quiet) > 1 else None
    if own is not None and own.most < LEAST_QUIET:
        own = None
    if own is not None and len(quiet) == len(logs):
        return own
    every = _fit(logs, counts, spread, process, ENOUGH)
    return every if own is None else replace(every, quiet=(quiet, own))


def _fit(logs: Array, counts: Array, spread: Array, process: float, enough: float) -> Fit:
    """Return the fit of these; `process` is a prior of `enough` degrees of freedom, less theirs."""
    there = np.isfinite(logs)
    cells, rounds = logs.shape
    cell, number = np.nonzero(there)
    y = logs[there]
    known = _of_turns(spread, counts)[there]
    part = _parts(there)
    design = np.zeros((len(y), cells + rounds))
    design[np.arange(len(y)), cell] = 1.0
    design[np.arange(len(y)), cells + number] = 1.0
    left = len(y) - np.linalg.matrix_rank(design) if len(y) else 0
    lacking = max(enough - left, 0.0)
    process = max(process, OF_FEW if rounds < FEW else 0.0)
    typical = float(np.median(known)) if len(y) else 0.0

    def solved(between: float) -> tuple[Array, Array, Array]:
        """Weights, the inverse of the normal equations, and residuals."""
        w = 1 / (between + known)
        normal = (design.T * w) @ design
        inverse = np.asarray(np.linalg.pinv(normal, 1e-10, hermitian=True), np.float64)
        return w, inverse, y - design @ (inverse @ (design.T @ (w * y)))

    def excess(between: float) -> float:
        """By how much the weighted residuals are larger than their degrees of freedom."""
        w, _, rest = solved(between)
        prior = lacking * (process**2 + typical) / (between + typical)
        return float((w * rest**2).sum() + prior - left - lacking)

    low, high = SMALLEST, 1.0
    if excess(low) <= 0:
        high = low
    while high > 1.001 * low:  # bisection of the logarithm
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    w, inverse, rest = solved(high)
    leverage = w * np.einsum("ij,jk,ik->i", design, inverse, design)
    own = np.maximum(np.bincount(cell, 1 - leverage, cells), 1e-9)
    ratio = np.bincount(cell, w * rest**2, cells) / own  # 1: as noisy as the others
    lent = np.maximum(np.minimum(_alike(ratio, own), LENT * own), np.maximum(LEAST - own, 0.0))
    # A cell that seems to be quieter than the others has been lucky.
    factor = np.maximum((lent + own * ratio) / (lent + own), 1.0)
    if left == 0 and not np.isfinite(spread).any():  # nothing is known of the noise
        factor *= np.nan
    weights = (inverse @ (design.T * w))[:cells]
    return Fit(
        there=there,
        level=np.where(there.any(axis=1), weights @ y, np.nan),
        weights=weights,
        cell=cell,
        variance=factor[cell] / w,
        freedom=lent + own,
        most=left + lacking,
        part=part,
        between=float(np.sqrt(high)),
    )


def of_seconds(seconds: Values, turns: Turns | None = None, process: float = PROCESS) -> Fit:
    """Return the fit of the logarithms of seconds, by cell and round.

    turns: seconds of the turns that each of these is the mean of, but for a factor that a cell has
    in all rounds; without them all noise is the processes'. process: see `fit`.
    """
    rounds = sorted({round for of in seconds.values() for round in of})
    turns = turns or {}
    shape = len(seconds), len(rounds)
    logs, counts, spread = np.full(shape, np.nan), np.ones(shape), np.full(shape, np.nan)
    for row, (name, of) in enumerate(seconds.items()):
        for column, round in enumerate(rounds):
            value = of.get(round, np.nan)
            if value > 0 and np.isfinite(value):
                logs[row, column] = np.log(value)
            if len(taken := turns.get(name, {}).get(round, ())) > 1:
                counts[row, column] = len(taken)
                spread[row, column] = variance(taken) / fmean(taken) ** 2
    return fit(logs, counts, np.where(np.isfinite(logs), spread, np.nan), process)


def differences(found: Fit, copies: Copies = ()) -> Differences:
    """Return the differences of every pair of cells.

    copies: cells that do the same work: their mean, weighted by the inverse of the variance, takes
    the place of each where they are compared with others.
    """
    cells = len(found.level)
    first, second = np.triu_indices(cells, 1)
    group = _groups(cells, copies)
    own = np.eye(cells)
    merged = _merged(found, group) if copies else own
    copied = group[first] == group[second]
    rows = np.where(copied[:, None], own[second] - own[first], merged[second] - merged[first])
    mean, error, freedom = found.of(rows)
    rounds = (found.there[first] & found.there[second]).sum(axis=1)
    known = (found.part[first] == found.part[second]) & (found.part[first] >= 0)
    mean, error = (np.where(known, each, np.nan) for each in (mean, error))
    return Differences(
        first=first,
        second=second,
        rounds=rounds,
        mean=mean,
        error=error,
        freedom=freedom,
        alone=error,
        alone_freedom=freedom,
        test=shared_tests(group),
    )


def _quiet(counts: Array, spread: Array) -> np.ndarray:
    """bool [cells]: whether the turns of a cell are alike."""
    squares, own = _squares(counts, spread)
    found: np.ndarray = (own.sum(axis=1) > 0) & (squares.sum(axis=1) < QUIET**2 * own.sum(axis=1))
    return found


def _squares(counts: Array, spread: Array) -> tuple[Array, Array]:
    """The squares of what turns differ by, and their degrees of freedom, of each process."""
    own = np.where(np.isfinite(spread), counts - 1, 0.0)
    return own * np.nan_to_num(spread), own


def _of_turns(spread: Array, counts: Array) -> Array:
    """The variance of each process's logarithm by its turns; 0 where no spread is known."""
    squares, weight = _squares(counts, spread)
    own = weight.sum(axis=1)
    pooled = squares.sum() / max(own.sum(), 1.0)
    of_turn = (squares.sum(axis=1) + OF_TURNS * pooled) / (own + OF_TURNS)
    found: Array = of_turn[:, None] / counts
    return found


def _parts(there: np.ndarray) -> Ints:
    """A number for each cell, equal for those that rounds link to each other; -1: no process."""
    part = np.arange(len(there))
    for own in there.T:
        linked = np.flatnonzero(own)
        if len(linked):
            part[np.isin(part, part[linked])] = part[linked].min()
    found: Ints = np.where(there.any(axis=1), part, -1)
    return found


def _alike(ratio: Array, freedom: Array) -> float:
    """How alike the cells' variances are, in degrees of freedom; of few cells it is not known."""
    seen = (freedom > 0.5) & (ratio > 1e-12)
    if seen.sum() < 3:
        return 0.0 if seen.sum() < 2 else np.inf
    half = freedom[seen] / 2
    logs = np.log(ratio[seen]) - special.digamma(half) + np.log(half)
    excess = logs.var(ddof=1) - special.polygamma(1, half).mean()
    return float(prior_freedom(np.asarray(excess)))


def _groups(cells: int, copies: Copies) -> Ints:
    """The first cell of each cell's group."""
    group = np.arange(cells, dtype=np.int64)
    for base, copy in copies:
        group[group == group[copy]] = group[base]
    return group


def _merged(found: Fit, group: Ints) -> Array:
    """The weights [cells, cells] of cells in what stands for each cell."""
    merged = np.zeros((len(group), len(group)))
    for first in {*group.tolist()}:
        of_group = np.flatnonzero(group == first).tolist()
        members = [i for i in of_group if np.isfinite(found.level[i])]
        inverse = np.array([1 / found.own_variance(i) for i in members])
        known = np.where(np.isfinite(inverse), inverse, 1.0)
        merged[np.ix_(of_group, members)] = known / known.sum()
    return merged
