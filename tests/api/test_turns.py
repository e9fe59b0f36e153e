"""`ninefold.turns`: contexts that take turns in a training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

import ninefold
from ninefold.errors import ConfigError


def contexts(seconds: dict[str, float], taken: list[str]) -> dict[str, Any]:
    """Context managers that take so long to leave."""

    @contextmanager
    def context(name: str) -> Iterator[None]:
        taken.append(name)
        yield
        time.sleep(seconds[name])

    return {name: lambda name=name: context(name) for name in seconds}


def test_contexts_take_turns_in_a_loop_and_then_the_first_stays() -> None:
    taken: list[str] = []
    t = ninefold.turns(contexts({"fast": 0.002, "slow": 0.008}, taken), minutes=0.2, show=False)
    assert t.times().best is None
    names = []
    while not t.done:
        with t.step() as name:
            names.append(name)
    assert names == taken
    found = t.times()
    assert (found.best, found.pairs[0].verdict) == ("fast", "slower")
    assert found.seconds["slow"] > 0.008
    assert "In this process fast is the fastest" in found.sentence
    with t.step() as name:
        assert name == "fast"
    assert len(set(names[-100:])) == 2


def test_a_step_that_raises_begins_its_turn_anew() -> None:
    taken: list[str] = []
    t = ninefold.turns(contexts({"a": 0.0, "b": 0.0}, taken), minutes=0.02, show=False)
    with pytest.raises(KeyError), t.step():
        raise KeyError
    count = 0
    while not t.done:
        count += 1
        with t.step():
            if count % 1000 == 0:
                break
    assert count == 1000 or t.done


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
