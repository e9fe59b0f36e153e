"""Nothing yet."""

from benchmarks.measure import Bench

BENCHES: list[Bench] = []
