"""`ninefold.turns`: contexts that take turns in a training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest

import ninefold
from ninefold.errors import ConfigError


def contexts(seconds: dict[str, float], taken: list[str]) -> dict[str, Any]:
    """Context managers: the step takes so long after each."""

    @contextmanager
    def context(name: str) -> Iterator[None]:
        taken.append(name)
        yield

    return {name: lambda name=name: context(name) for name in seconds}


def test_contexts_take_turns_in_a_loop_and_then_the_first_stays() -> None:
    taken: list[str] = []
    seconds = {"fast": 0.002, "slow": 0.008}
    t = ninefold.turns(contexts(seconds, taken), minutes=0.2, show=False)
    assert t.times().best is None
    names = []
    while not t.done:
        with t.step() as name:
            names.append(name)
        time.sleep(seconds[name])
    assert names == taken
    del names[-1]  # what came first after the turns
    found = t.times()
    assert (found.best, found.pairs[0].verdict) == ("fast", "slower")
    assert found.seconds["slow"] > 0.008
    assert "In this process slow is slower than fast: 0." in found.sentence
    with t.step() as name:
        assert name == "fast"
    assert len(set(names[-100:])) == 2


def test_the_turn_of_a_step_that_raises_is_not_counted() -> None:
    t = ninefold.turns(contexts({"a": 0.0, "b": 0.0}, []), minutes=0.1, show=False)
    steps, failed = 0, []
    while not t.done:
        steps += 1
        with suppress(KeyError), t.step():
            time.sleep(0.002)
            if steps in (60, 110, 160):  # some in a turn's lead, some in what is timed
                failed.append(steps)
                time.sleep(1.0)
                raise KeyError
    assert failed == [60, 110, 160]
    assert max(row["seconds"] for row in t.times().rows()) < 0.01  # 0.02 with a second in a turn


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"a": nullcontext}, "error: contexts=a: there is nothing"),
        ({"a": nullcontext, "b": nullcontext()}, "error: contexts['b']=nullcontext: it cannot"),
    ],
)
def test_contexts_that_cannot_be_compared_are_refused(given: Any, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ninefold.turns(given)
    assert str(raised.value).startswith(line)
