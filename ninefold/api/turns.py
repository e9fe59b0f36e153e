"""`ninefold.turns`: lets contexts take turns in a training loop while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import active_children
from typing import Any

from ninefold.answer.times import Times
from ninefold.api.session import Session
from ninefold.api.steps import check_names
from ninefold.api.workers import RAN_ON
from ninefold.errors import ConfigError
from ninefold.tournament.plan import Turn


def turns(
    contexts: Mapping[str, Callable[[], AbstractContextManager[Any]]],
    *,
    minutes: float = 1.0,
    turn: float = 0.1,
    same: float = 0.02,
    level: float = 0.05,
    baseline: str | None = None,
    show: bool = True,
) -> Turns:
    """Benchmark context managers, such as torch.autocast, in a training loop while it trains.

    They alternate as the steps of `ninefold.time_steps` do:

        t = ninefold.turns({"fp32": nullcontext, "fp16": lambda: torch.autocast("cuda")})
        for batch in batches:
            with t.step():
                loss = model(batch)
            ...  # the backward pass and the optimizer, as they were
            if t.done:
                break

    contexts: by name, a function without arguments that makes a context manager for one step. It
        may change what may differ from step to step; a loader may not, as it reads ahead.
    baseline: as of `time_steps`; the steps after the last turn have its context, too.
    minutes, turn, same, level, show: as of `time_steps`.

    `t.times()` is the `Times` so far. Raises ConfigError for what cannot be used.
    """
    check_names("contexts", contexts, "a function that makes a context manager")
    wrong, do = "it cannot be called", "put lambda: before it"
    allowed = "a function that makes a context manager for each step"
    for name, context in contexts.items():
        if not callable(context):
            raise ConfigError(f"contexts[{name!r}]", type(context).__name__, wrong, allowed, do)
    session = Session(
        list(contexts),
        minutes=minutes,
        turn=turn,
        same=same,
        level=level,
        baseline=baseline,
        show=show,
    )
    return Turns(session, contexts, baseline or next(iter(contexts)))


class Turns:
    """Contexts that alternate in a training loop; `turns` makes it."""

    def __init__(
        self,
        session: Session,
        contexts: Mapping[str, Callable[[], AbstractContextManager[Any]]],
        after: str,
    ) -> None:
        self._session, self._contexts, self._after = session, contexts, after
        self._begun = False
        self._steps = 0  # of this turn
        self._found: Times | None = None  # when all are over

    @property
    def done(self) -> bool:
        """Whether all turns are over: the answer is decided, or the time is up."""
        return self._session.turn is None and self._begun

    @contextmanager
    def step(self) -> Iterator[str]:
        """The context of the next training step, as a context manager that gives its name.

        A step lasts until the next one begins: what the loop does after the context, such as the
        backward pass after autocast, is part of it. A step that raises begins its turn anew.
        """
        turn = self._turn()
        if turn is None:
            with self._contexts[self._after]():
                yield self._after
            return
        if self._steps == 0:
            self._session.begin_turn()
        if self._steps == turn.lead:
            self._session.start_clock()
        steps, self._steps = self._steps, 0  # of a turn that begins anew, if this step raises
        with self._contexts[turn.name]():
            yield turn.name
        self._steps = steps + 1

    def times(self) -> Times:
        """What is known so far. In a torch.distributed group all processes call it."""
        return self._found or self._session.times([RAN_ON] * bool(active_children()))

    def _turn(self) -> Turn | None:
        """The turn of the step that begins now; None when all are over."""
        if not self._begun:
            self._begun = True
            self._session.begin()
        turn = self._session.turn
        if turn is not None:
            self._session.leave_forked()
        if turn is None or self._steps < turn.steps:
            return turn
        self._session.end_turn(self._session.seconds() / turn.timed)
        self._steps = 0
        if self.done:
            self._found = self.times()
            self._session.close()
            self._session.show(self._found, returned=False)
        return self._session.turn
