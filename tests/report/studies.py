"""Made-up studies, of which the truth is known."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from ninefold.answer.cell import Cell
from ninefold.stats import statistics, verdicts
from ninefold.stats.verdicts import Comparison, Name, Timings, Values

Array = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Array]  # cells, rounds -> [cells, rounds]

AMPS = ("fp32", "autocast", "scaler")
NONE, NONE_AUTOCAST, NONE_SCALER = (Cell("none", amp) for amp in AMPS)
DP, DP_AUTOCAST, DP_SCALER = (Cell("dp", amp) for amp in AMPS)
DDP, DDP_AUTOCAST, DDP_SCALER = (Cell("ddp", amp) for amp in AMPS)
CELLS = [
    *(NONE, NONE_AUTOCAST, NONE_SCALER, DP, DP_AUTOCAST, DP_SCALER),
    *(DDP, DDP_AUTOCAST, DDP_SCALER),
]
Settings = partial(verdicts.Settings, baseline=NONE)


def compare(
    seconds: Values,
    accuracy: Values,
    settings: verdicts.Settings,
    controls: Sequence[tuple[Name, Name]] = (),
) -> Comparison:
    """Compare what is known at one look."""
    timings = Timings(seconds, shares=settings.shares)
    return statistics.compare([timings], accuracy, settings, controls, copies=controls)


def normal(rng: np.random.Generator, cells: int, rounds: int) -> Array:
    """The same noise in every cell."""
    return rng.standard_normal((cells, rounds))


def heavy(rng: np.random.Generator, cells: int, rounds: int) -> Array:
    """Student's t of 3 degrees of freedom, of sd 1: outliers."""
    return rng.standard_t(3, (cells, rounds)) / np.sqrt(3)


def skewed(rng: np.random.Generator, cells: int, rounds: int) -> Array:
    """The exponential distribution, of sd 1: some runs are delayed, none is faster."""
    return rng.exponential(1.0, (cells, rounds))


def noisy(last: int, times: float) -> Noise:
    """The last cells have more noise than the others."""

    def noise(rng: np.random.Generator, cells: int, rounds: int) -> Array:
        scale = np.where(np.arange(cells) >= cells - last, times, 1.0)
        return rng.standard_normal((cells, rounds)) * scale[:, None]

    return noise


def drifting(rng: np.random.Generator, cells: int, rounds: int) -> Array:
    """Five sd from a round's first run to its last; the order is shuffled for each two rounds."""
    place = rng.permuted(np.tile(np.arange(cells)[:, None], rounds), axis=0)
    place[:, 1::2] = cells - 1 - place[:, : rounds // 2 * 2 : 2]
    return rng.standard_normal((cells, rounds)) + 5 * place / (cells - 1)


def together(rng: np.random.Generator, cells: int, rounds: int) -> Array:
    """What a round does to the last third of the cells, of sd 1, it does not to the others."""
    moved = np.where(np.arange(cells) >= cells - cells // 3, 1.0, 0.0)
    return 0.5 * rng.standard_normal((cells, rounds)) + moved[:, None] * rng.standard_normal(rounds)


@dataclass(frozen=True)
class Truth:
    """What a study is drawn from: times with 1 % noise, accuracies with 0.3 points.

    A round moves all cells, by 3 % and 0.5 points (sd). faster: log of the seconds taken off a
    cell. lost: points of accuracy taken off it.
    """

    rounds: int = 5
    cells: list[Cell] = field(default_factory=lambda: CELLS)
    noise: Noise = normal
    faster: dict[Cell, float] = field(default_factory=dict)
    lost: dict[Cell, float] = field(default_factory=dict)

    def study(self, rng: np.random.Generator) -> tuple[Values, Values]:
        """Seconds and points of accuracy, of one study."""
        shape = len(self.cells), self.rounds
        seconds = 0.03 * rng.standard_normal(self.rounds) + 0.01 * self.noise(rng, *shape)
        points = 70 + 0.5 * rng.standard_normal(self.rounds) + 0.3 * self.noise(rng, *shape)
        seconds -= np.array([[self.faster.get(cell, 0.0)] for cell in self.cells])
        points -= np.array([[self.lost.get(cell, 0.0)] for cell in self.cells])
        return self._values(np.exp(seconds)), self._values(points)

    def studies(self, count: int, seed: int = 0) -> Iterator[tuple[Values, Values]]:
        """So many studies, the same ones for the same seed."""
        rng = np.random.default_rng(seed)
        return (self.study(rng) for _ in range(count))

    def _values(self, table: Array) -> Values:
        rows = zip(self.cells, table.tolist(), strict=True)
        return {cell: dict(enumerate(row)) for cell, row in rows}
