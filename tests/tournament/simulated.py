"""Configurations and commands whose steps take what is drawn, on a clock that only they move."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ninefold.result import Result

SECONDS = {
    "none-fp32": 0.0031, "none-autocast": 0.0041, "none-scaler": 0.0041, "dp-fp32": 0.0031,
    "dp-autocast": 0.0041, "dp-scaler": 0.0041, "ddp-fp32": 0.0063, "ddp-autocast": 0.0076,
    "ddp-scaler": 0.0076,
}  # fmt: skip


class Clock:
    """The module `time`, but that its clocks stand."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class NoLoad:
    """A machine on which nothing else runs."""

    def begin(self, processes: Sequence[int]) -> None:
        pass

    def share(self, processes: Sequence[int] | None = None) -> float:
        return 0.0


CLOCK = Clock()


def noisy(seconds: float, noise: float, *key: object) -> float:
    draw = random.Random("/".join(map(str, key)))
    return seconds * math.exp(noise * draw.gauss(0, 1) - noise**2 / 2)


def main(seed: str, noise: float, process: float) -> None:
    """Run train.py with its arguments; its configurations are simulated.

    noise, process: standard deviations of the logarithms of turns, and of what processes differ by.
    """
    from ninefold.launch import turns
    from ninefold.main import main
    from ninefold.tournament import rounds

    class Ranks(turns.TurnTaker):
        def __init__(self, spec: Any, processes: int, name: str, turn_seconds: float) -> None:
            self.spec, self.name, self.several, self.turn_seconds = (
                spec,
                name,
                processes > 1,
                turn_seconds,
            )
            self.parallel, _, self.amp = name.partition("-")
            self.free, self.one_thread, self.step_seconds = None, None, 0.003
            self.processes = []
            self.alone, self.computes = self.parallel != "ddp", (self.amp == "fp32",)
            self._turn, self._steps, self._count = 0, 0, processes
            self._of = seed, spec.folder.name, spec.folder.parent.name
            CLOCK.now += 0.25
            self._each = noisy(SECONDS[name], process, *self._of, "process")

        def _ask(self, within: float, **asked: Any) -> list[Any]:
            if not asked:
                CLOCK.now += 0.02
                return [self._result()]
            self._turn += 1
            own = noise if asked["counted"] else noise / 2
            each = noisy(self._each, own, *self._of, self._turn)
            CLOCK.now += (asked["lead"] + asked["steps"]) * each + 0.001
            self._steps += asked["steps"] if asked["counted"] else 0
            return [each]

        def _result(self) -> Result:
            dtype = "float32" if self.amp == "fp32" else "bfloat16"
            return Result(
                status="ok", parallel=self.parallel, amp=self.amp, dataset="digits",
                model="convnet", seed=0, dtype=dtype, grad_scaler=self.amp == "scaler",
                processes=self._count, replicas=self._count, no_op=self.parallel == "dp",
                devices=["cpu"], threads=1, batch_size=32, steps=self._steps,
                epochs=self._steps / 4, planned_epochs=1, total_seconds=1.0, hosts=1, tf32=False,
            )  # fmt: skip

        def close(self) -> None:
            pass

    class Starts(ExitStack):
        def start(self, *given: Any) -> Ranks:
            return self.enter_context(closing(Ranks(*given)))

    init = rounds.Tournament.__init__

    def on_the_clock(self: Any, *given: Any, **more: Any) -> None:
        init(self, *given, **more, clock=CLOCK.monotonic)

    changed: list[tuple[Any, str, Any]] = [
        (turns, "TurnTakers", Starts), (rounds, "NeighborLoad", NoLoad), (rounds, "time", CLOCK),
        (rounds.Tournament, "__init__", on_the_clock),
    ]  # fmt: skip
    for module, name, value in changed:
        setattr(module, name, value)
    main("train")


class Taken:
    """A turn of a simulated command."""

    def __init__(self, seconds: float, steps: int, begin: float) -> None:
        self.seconds = self.cpu = seconds
        self.steps, self.begin, self.end = steps, begin, CLOCK.time()
        self.each, self.marked = [seconds] * steps, dict[str, list[float]]()


def command(
    seed: str, noise: float, process: float, seconds: dict[str, float], start: float
) -> type:
    """The class of simulated commands whose steps take so many seconds, after those of a start."""

    class Simulated:
        def __init__(self, command: Any, number: int, keep: Path, marking: set[str]) -> None:
            self.command, self._number, self.log = command, number, keep / "log"
            self.processes, self.steps, self.paused, self._turn = list[int](), 0, 0.0, 0
            self.said = {"world": 1, "cuda": False, "workers": 0}
            each = seconds[command.name]
            self._each = noisy(each, process, seed, command.name, number, "process")
            self._ready = CLOCK.now + start

        def arrived(self) -> bool:
            CLOCK.now = max(CLOCK.now, self._ready)
            return True

        def turn(self, lead: int, steps: int, expected: float | None = None) -> Taken:
            self._turn += 1
            begin = CLOCK.time()
            each = noisy(self._each, noise, seed, self.command.name, self._number, self._turn)
            CLOCK.now += (lead + steps) * each
            self.steps += lead + steps
            return Taken(each, steps, begin)

        def close(self) -> None:
            pass

    return Simulated


if __name__ == "__main__":
    words = sys.argv[1:4]
    del sys.argv[1:4]
    main(words[0], float(words[1]), float(words[2]))
