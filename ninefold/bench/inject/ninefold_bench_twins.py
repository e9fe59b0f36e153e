"""Twins: the same command without one part of its steps, which shows what that part costs."""

import functools
import itertools

KEPT = 8  # batches: the first may be unlike others, such as the longest of a sampler by length


def change(twin, module):
    """Change a module of torch that was loaded, if it is what the twin changes.

    twin: "batch" (a loader hands out its first ones again and again), "no-sync" (gradients are
    not averaged over ranks), or "no-optimizer" (weights stay).
    """
    changed, call = {
        "batch": ("torch.utils.data.dataloader", few_batches),
        "no-sync": ("torch.nn.parallel.distributed", no_sync),
        "no-optimizer": ("torch.optim.optimizer", no_optimizer),
    }[twin]
    if module.__name__ == changed:
        call(module)


def few_batches(module):
    iterate = module.DataLoader.__iter__
    kept = {}  # by loader, which stays, and so its id

    def again(self):
        if id(self) not in kept:
            kept[id(self)] = [*itertools.islice(iterate(self), KEPT)], self
        batches = itertools.cycle(kept[id(self)][0])
        try:
            return itertools.islice(batches, len(self))
        except TypeError:
            return batches

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
