"""Puts back what training steps change: state_dicts, gradients and random states."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from ninefold.api import devices
from ninefold.errors import ConfigError


@contextmanager
def restored(things: Sequence[Any]) -> Iterator[None]:
    """Keep the states of things with a state_dict (modules, optimizers, schedulers, scalers) and
    put them back at the end, after an exception too.

    With them the gradients of modules, and the random states of Python, numpy and torch. Without
    things nothing is kept. The copies are on the devices of the originals, and as large.
    """
    if not things:
        yield
        return
    put_back: list[Callable[[], None]] = [keep(thing) for thing in things]
    put_back += [keep_random(), devices.random_state()]
    try:
        yield
    finally:
        for each in put_back:
            each()


def keep(thing: Any) -> Callable[[], None]:
    """Copy the state of a thing; return what puts it back."""
    state = copy.deepcopy(thing.state_dict())
    parameters = list(thing.parameters()) if isinstance(thing, nn.Module) else []
    gradients = [None if p.grad is None else p.grad.detach().clone() for p in parameters]

    def put_back() -> None:
        thing.load_state_dict(state)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    return put_back


def keep_random() -> Callable[[], None]:
    """Keep the random states of Python and numpy; return what puts them back."""
    of_python, of_numpy = random.getstate(), np.random.get_state()

    def put_back() -> None:
        random.setstate(of_python)
        np.random.set_state(of_numpy)

    return put_back


def check(things: object) -> tuple[Any, ...]:
    """`restore=` as a tuple. Raises ConfigError for what has no state to put back."""
    several = tuple(things) if isinstance(things, list | tuple) else (things,)
    for thing in several:
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ConfigError(
                "restore",
                type(thing).__name__,
                "it has no state_dict to put back; modules, optimizers, schedulers and scalers "
                "have one; leave it out",
            )
    return several
