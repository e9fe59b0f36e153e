"""Twins: the same command without one part of its steps, which shows what that part costs."""

import functools
import itertools


def change(twin, module):
    """Change a module of torch that was loaded, if it is what the twin changes.

    twin: "batch" (a loader hands out its first batch again and again), "no-sync" (gradients are not
    averaged over ranks), or "no-optimizer" (weights stay).
    """
    changed, call = {
        "batch": ("torch.utils.data.dataloader", one_batch),
        "no-sync": ("torch.nn.parallel.distributed", no_sync),
        "no-optimizer": ("torch.optim.optimizer", no_optimizer),
    }[twin]
    if module.__name__ == changed:
        call(module)


def one_batch(module):
    iterate = module.DataLoader.__iter__
    first = {}  # by loader

    def again(self):
        if id(self) not in first:
            first[id(self)] = next(iter(iterate(self))), self  # the loader stays, and its id
        batch = first[id(self)][0]
        try:
            count = len(self)
        except TypeError:
            return itertools.repeat(batch)
        return itertools.repeat(batch, count)

    module.DataLoader.__iter__ = again


def no_sync(module):
    made = module.DistributedDataParallel.__init__

    @functools.wraps(made)
    def make(self, *arguments, **keywords):
        made(self, *arguments, **keywords)
        self.require_backward_grad_sync = False

    module.DistributedDataParallel.__init__ = make


def no_optimizer(module):
    hooked = module.Optimizer.profile_hook_step

    def without(step):
        @functools.wraps(step)
        def same_weights(self, closure=None):
            return None if closure is None else closure()

        return hooked(same_weights)

    module.Optimizer.profile_hook_step = staticmethod(without)
