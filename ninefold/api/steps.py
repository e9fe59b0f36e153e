"""`ninefold.time_steps`: which of several training steps is the fastest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import torch

from ninefold.answer.times import Times
from ninefold.api.session import Session
from ninefold.api.workers import RAN_ON, StepWorkers
from ninefold.errors import ConfigError
from ninefold.stats.verdicts import Settings
from ninefold.tournament.plan import Turn

Step = Callable[[], Any] | Generator[Any, None, Any]


def time_steps(
    steps: Mapping[str, Step],
    *,
    minutes: float = 1.0,
    turn: float = 0.1,
    same: float = 0.02,
    level: float = 0.05,
    baseline: str | None = None,
    show: bool = True,
) -> Times:
    """Benchmark training steps against each other: which is the fastest in this process?

    The steps take short turns in random order, so that background load affects all alike. Devices
    are synchronized at the ends of turns only. What it estimates is the mean seconds of a step in a
    long run of it, on this machine as it is most of the time; turns that other programs disturb are
    left out, unless most are.

    Worker processes that a step starts, such as a DataLoader's, are stopped while others train (on
    Linux, those that were forked), so that its time has the wait for data in it. Threads run on,
    and so do processes that were there before or that several steps use. What these read ahead
    while others train is missing in a step's time. The answer reports such processes.

    steps: by name, a function without arguments that takes one training step, or a generator that
        yields after each step and does not end. They train what they train: of a network that is
        to stay as it is give them a copy, `copy.deepcopy((net, optimizer))`.
    minutes: how long it takes at most, if that is enough for one round. The warm-up is a part of
        it: 200 calls of each step, or a fifth of the time if that is less. What it takes to compile
        steps in their first three calls is not. It ends sooner once the answer is decided and the
        speedups of the fastest are known within 3 %.
    turn: seconds that are timed in a turn; the 0.04 before them are not.
    same: steps whose times differ by at most this share count as equally fast.
    level: the chance that any step is falsely called faster or slower is at most this.
    baseline: the step that the others are compared with, by default the first. One that you give
        is also the answer if it is shown to be within `same` of the fastest.
    show: print the answer, which an interactive session shows by itself, with the time that has
        passed meanwhile on a terminal.

    Returns `Times`, which prints as the answer: `best` is the step that it names, `seconds` of each
    are there, and `rows()` has the turns.

    Raises ConfigError for steps or arguments that cannot be used, and for a step that leaves a
    setting of torch changed (autocast, gradients, kernels, TF32, the default dtype), as the others
    would compute with it. What a step raises is raised with a note that names the step.
    """
    check_names(steps)
    calls = {name: as_function(name, step) for name, step in steps.items()}
    settings = Settings(same=same, level=level, baseline=baseline)
    session = Session([*calls], minutes=minutes, turn=turn, settings=settings, show=show)
    try:
        found = session.times([RAN_ON] * take_turns(session, calls))
    finally:
        session.close()
    if show and not hasattr(sys, "ps1"):  # an interactive session shows it as it returns
        print(found, flush=True)
    return found


def repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


def take_turns(session: Session, calls: Mapping[str, Callable[[], Any]]) -> bool:
    """Let steps take turns to the end; return whether worker processes ran on between them."""
    threads = dict.fromkeys(calls, torch.get_num_threads())
    with closing(StepWorkers(list(calls))) as workers:
        take = partial(take_turn, session, workers, threads)
        session.play({name: partial(take, call) for name, call in calls.items()})
    return workers.run_on


@contextmanager
def own_threads(name: str, threads: dict[str, int]) -> Iterator[None]:
    """Give a step the number of threads at which it left torch, which has one for all steps.

    threads: these numbers, by step.
    """
    before = torch.get_num_threads()
    if threads[name] != before:
        torch.set_num_threads(threads[name])
    try:
        yield
    finally:
        threads[name] = torch.get_num_threads()
        if threads[name] != before:
            torch.set_num_threads(before)


def take_turn(
    session: Session,
    workers: StepWorkers,
    threads: dict[str, int],
    call: Callable[[], Any],
    turn: Turn,
) -> float:
    """Let a step take a turn; return the seconds of a call."""
    before = settings()
    try:
        with own_threads(turn.name, threads), workers.turn(turn.name, turn.steps):
            repeat(call, turn.lead)
            session.start_clock()
            repeat(call, turn.timed)
            seconds = session.seconds() / turn.timed
    except Exception as error:
        error.add_note(f"ninefold.time_steps: in the step {turn.name!r}")
        raise
    if changed := [name for name, value in settings().items() if value != before[name]]:
        wrong = "the step leaves it changed, for the other steps too"
        do = "enter it and leave it in each step, or set it for all before"
        allowed = "a step that leaves it as it was is allowed"
        raise ConfigError(f"steps[{turn.name!r}]", changed[0], wrong, allowed, do)
    return seconds


def settings() -> dict[str, object]:
    """Torch's settings of a process or thread, which all steps share: each by what sets it."""
    backends, cuda = torch.backends, torch.backends.cuda
    kinds = ("cpu", getattr(torch.accelerator.current_accelerator(), "type", "cuda"))
    kernels = ("flash", "mem_efficient", "math", "cudnn")  # of attention
    return {
        "torch.autocast": [
            (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds
        ],
        "torch.set_grad_enabled": torch.is_grad_enabled(),
        "torch.set_default_dtype": torch.get_default_dtype(),
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.nn.attention.sdpa_kernel": [getattr(cuda, f"{k}_sdp_enabled")() for k in kernels],
        "torch.backends.cudnn": [
            getattr(backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")
        ],
        "TF32": (cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision),  # type: ignore[attr-defined]
    }


def check_names(steps: object) -> None:
    """Raise ConfigError unless `steps` is a mapping from two names or more."""
    if not isinstance(steps, Mapping):
        allowed = "a dict of names, with a function or generator each"
        raise ConfigError("steps", type(steps).__name__, "it is no mapping", allowed, "give one")
    if odd := [name for name in steps if not isinstance(name, str)]:
        raise ConfigError("steps", repr(odd[0]), "it is no name", "strings are", "rename it")
    if len(steps) < 2:
        names, wrong = ", ".join(steps) or "empty", "there is nothing to compare it with"
        raise ConfigError("steps", names, wrong, "two or more are needed", "add one")


def as_function(name: str, step: object) -> Callable[[], Any]:
    """A step as a function without arguments. Raises ConfigError, at its first call too."""
    field = f"steps[{name!r}]"
    if isinstance(step, GeneratorType):
        return lambda: advance(field, step)
    if not callable(step):
        allowed = "a function that takes a step, or a generator that yields after each"
        raise ConfigError(field, type(step).__name__, "it cannot be called", allowed, "give one")
    function: Callable[[], Any] = step

    def call() -> None:
        found = function()
        if isinstance(found, GeneratorType | CoroutineType | AsyncGeneratorType):
            if isinstance(found, CoroutineType):  # else Python warns that nothing awaited it
                found.close()
            wrong = "calling it takes no step, but makes something that would"
            allowed = "a function that takes one, or the generator itself"
            raise ConfigError(field, type(found).__name__, wrong, allowed, "call it first")

    return call


def advance(field: str, step: Iterator[Any]) -> None:
    """Let a generator take a step."""
    for _ in step:
        return
    allowed = "steps alternate until the time is up"
    raise ConfigError(field, "generator", "it has ended", allowed, "let it loop without an end")
