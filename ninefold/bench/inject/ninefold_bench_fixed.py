"""Fixes sources of chance in a command, for two starts of it to be equal, and sees its inputs."""

import functools
import inspect
import sys
import zlib

from ninefold_bench_cures import made_as

INPUTS = [None]  # a checksum of tensors that networks got in training; None: not known
SEEDED = {"random": "random", "numpy.random": "numpy", "torch.optim.optimizer": "torch"}


def change(fixed, module, calls):
    """Change a module that was loaded, if it is what is to be fixed.

    fixed: of "torch", "numpy" and "random" (seeds), "workers" (a loader has none) and
    "deterministic" (algorithms), with commas between them; "none": inputs are only looked at.
    calls: of the networks of torch.nn, once it is loaded.
    """
    wanted, name = fixed.split(","), module.__name__
    if SEEDED.get(name) in wanted:
        seed(SEEDED[name], module)
    if name == "torch.optim.optimizer" and "deterministic" in wanted:
        sys.modules["torch"]._C._set_deterministic_algorithms(True, warn_only=True)
    if name == "torch.utils.data.dataloader" and "workers" in wanted:
        without_workers(module.DataLoader)
    if name == "torch.nn.modules.module":
        see_inputs(calls)


def seed(name, module):
    """Seed one library's numbers, before the command draws any."""
    if name == "torch":
        sys.modules["torch"].manual_seed(0)
        return
    module.seed(0)
    if name == "numpy":
        make = module.default_rng
        module.default_rng = functools.wraps(make)(
            lambda seed=None: make(0 if seed is None else seed)
        )


def without_workers(loader):
    make = loader.__init__

    @functools.wraps(make)
    def made(self, *arguments, **keywords):
        given = inspect.signature(make).bind(self, *arguments, **keywords).arguments
        for name in ("prefetch_factor", "multiprocessing_context", "timeout", "persistent_workers"):
            given.pop(name, None)
        given["num_workers"] = 0
        made_as(make, given)

    loader.__init__ = made


def see_inputs(calls):
    """Add up what networks get in training, as far as it can be read."""

    def add_up(network, arguments, keywords, outermost):
        try:
            if outermost and network.training:
                add([*arguments, *keywords.values()])
        except Exception:
            INPUTS[0] = None
            calls.end()

    calls.before.append(add_up)


def add(values):
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            numbers = value.detach().flatten()[:4096].double().tolist()
            INPUTS[0] = zlib.crc32(repr(numbers).encode(), INPUTS[0] or 0)
        elif isinstance(value, (list, tuple)):
            add(value)
        elif isinstance(value, dict):
            add(value.values())


def inputs():
    return INPUTS[0]
