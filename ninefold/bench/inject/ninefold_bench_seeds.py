"""Changes a whole run: adds a number to its seeds, the same for all in a round; sets its precision.

A script that is seeded by 42 is then seeded by 42, 43, 44 in the rounds, and one that is not seeded
by 0, 1, 2. A call that asks for a new seed, such as `default_rng()`, gets another one each time.
What has a seed of its own, such as `random.Random(7)`, stays as it is.

Of changes only the precision is the hook's in a whole run.
"""

import functools
import itertools
import operator
import os
import sys
import zlib
from weakref import WeakSet

NUMBER = int(os.environ["NINEFOLD_BENCH_SEED"])  # of the round
CHANGED = os.environ.get("NINEFOLD_BENCH_CHANGES")  # names of changes, with commas
SEEDED = "random", "numpy.random", "torch.random", "torch.cuda.random"
NETWORKS, OPTIMIZERS = "torch.nn.modules.module", "torch.optim.optimizer"
CALLS = itertools.count()  # of functions that seed, without a seed
WATCH = []  # what changes the networks that are called, if anything does
NEW = WeakSet()  # optimizers that have taken no step


def loaded(module):
    """Change a module that was loaded: what seeds in it, or in what its networks compute."""
    if module.__name__ in SEEDED:
        move_seeds(module)
    elif CHANGED and module.__name__ == NETWORKS:
        import ninefold_bench_calls
        import ninefold_bench_changes

        calls = ninefold_bench_calls.Calls(module.Module)
        if watch := ninefold_bench_changes.watch(calls):
            WATCH.append(watch)
        else:
            calls.end()
    elif CHANGED and module.__name__ == OPTIMIZERS:
        watch_what_is_made(module.Optimizer)
        module.register_optimizer_step_post_hook(end_watch)


def watch_what_is_made(optimizer):
    """Watch again once there is another optimizer: it may be of another network."""
    make = optimizer.__init__

    @functools.wraps(make)
    def made(self, *given, **named):
        make(self, *given, **named)
        NEW.add(self)
        for watch in WATCH:
            if not watch.calls.before:  # it has ended
                watch.begin()

    optimizer.__init__ = made


def end_watch(optimizer, *_):
    """Watch no more once each optimizer has taken a step."""
    NEW.discard(optimizer)
    for watch in WATCH:
        if watch.calls.before and not NEW:
            watch.calls.end()


def move_seeds(module):
    """Change the functions of a module that seed, and seed it."""
    if module.__name__ == "torch.random":
        module.default_generator.manual_seed(NUMBER)
    elif module.__name__ == "torch.cuda.random":
        module.manual_seed_all(NUMBER)  # once a GPU is used
    else:
        module.seed(NUMBER)
    if module.__name__ == "numpy.random":  # what it takes where no seed is given
        sys.modules["numpy.random.bit_generator"].randbits = lambda bits: new_seed()
    for name in ("seed", "manual_seed", "manual_seed_all", "default_rng"):
        if hasattr(module, name) and not (name == "seed" and module.__name__.startswith("torch")):
            limit = 2**32 if module.__name__ == "numpy.random" and name == "seed" else None
            setattr(module, name, moved(getattr(module, name), limit))


def moved(function, limit=None):
    """A function of a seed that gets another one. limit: that its seeds are below."""

    @functools.wraps(function)
    def call(*given, **named):
        if NESTED:  # torch.manual_seed calls that of CUDA with the seed that it has got
            return function(*given, **named)
        given, named = list(given), dict(named)
        if given:
            given[0] = by(given[0], limit)
        elif "seed" in named or "a" in named:
            name = "seed" if "seed" in named else "a"
            named[name] = by(named[name], limit)
        else:
            given = [new_seed()]
        NESTED.append(function)
        try:
            return function(*given, **named)
        finally:
            NESTED.pop()

    return call


NESTED = []


def new_seed():
    """Return a seed for a call without one: another in each call, rank and worker of a loader.

    Both commands of a round get the same seeds if they make the same calls.
    """
    torch, rank = sys.modules.get("torch"), os.environ.get("RANK", "0")
    own = torch.initial_seed() if hasattr(torch, "initial_seed") else ""
    return zlib.crc32(f"{NUMBER} {rank} {own} {next(CALLS)}".encode())


def by(seed, limit=None):
    """Another seed: of a number the sum, of none a new one; of other kinds as it is."""
    if seed is None:
        return new_seed()
    try:
        seed = operator.index(seed)  # also of NumPy's integers
    except TypeError:
        return seed
    return (seed + NUMBER) % limit if limit and seed >= 0 else seed + NUMBER
