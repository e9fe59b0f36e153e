"""Sees how many examples a training step takes, and by what gradients are averaged over ranks.

Nobody tells how many examples a step takes. But the first dimension of the tensors that a network
gets, over all its calls in a step, is their number: with micro-batches, and in any loop.
"""

import functools
import weakref

from ninefold_bench_calls import is_compiled, is_transformed
from ninefold_bench_precision import autocast_dtype

AVERAGING = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"}
MOST = 10_000  # calls of networks after which a process that takes no step is left alone


class Batches:
    """What networks get in the first training steps, until `end`.

    steps: of each optimizer's step by whose it was, sums of first dimensions by network, and of
    elements, since the one before; sums, elements: those since the last. got: tensors since then,
    and the state of the weights that they met. waiting: the network that is called and whose
    tensors were not seen yet. averages: the class by which gradients are averaged, if one was
    called. half: whether a network computes in float16 by autocast; scaled: whether a GradScaler
    was updated. left: calls of networks without a step after which nothing more is seen.
    """

    def __init__(self, calls):
        self.calls, self.steps, self.kind = calls, [], None
        self.waiting = self.averages = None
        self.left, self.half, self.scaled = MOST, False, False
        self.begin()
        calls.before.append(self.see)

    def begin(self):
        self.sums, self.elements, self.got = {}, 0, {}

    def see(self, module, arguments, keywords, outermost):
        """Note a call in training. Whatever it cannot read is no error of the script."""
        try:
            self.note(module, arguments, keywords, outermost)
            if outermost and not self.steps:
                self.left -= 1
        except Exception:
            self.left = 0
        if self.left == 0:
            self.steps, self.sums = [], {}
            self.calls.drop(self.see)

    def note(self, module, arguments, keywords, outermost):
        import torch

        if not (torch.is_grad_enabled() and module.training):
            return
        if self.kind is None:
            self.spare_skipped_steps(torch)
        if outermost:
            weight = next(module.parameters(), None)
            self.waiting = None if weight is None else module
            self.half |= weight is not None and autocast_dtype(torch, weight) == torch.float16
        for each in module.modules() if is_compiled(module) else (module,):
            names = {kind.__name__ for kind in type(each).__mro__} & AVERAGING
            self.averages = self.averages or min(names, default=None)
        if self.waiting is not None:
            self.count(torch, [*arguments, *keywords.values()])

    def count(self, torch, values):
        """Count the first tensor that the network gets, or else that what it calls first gets.

        The same tensor once more in a step, after weights have changed, is no new example (SAM,
        LBFGS).
        """
        flat = [one for each in values for one in (each.values() if type(each) is dict else [each])]
        tensors = [each for each in flat if isinstance(each, torch.Tensor) and each.dim()]
        if not tensors or type(tensors[0].size(0)) is not int or is_transformed(tensors[0]):
            return
        first, network, self.waiting = tensors[0], self.waiting, None
        state = sum(weight._version for weight in network.parameters())
        key = id(network), id(first)
        known = self.got.get(key)
        if known and known[0]() is first and known[1] != state:
            return
        self.got[key] = weakref.ref(first), state
        self.sums[id(network)] = self.sums.get(id(network), 0) + first.size(0)
        self.elements += first.numel()

    def step_ends(self, name):
        """Note that an optimizer has taken a step. name: what it is known by."""
        self.steps.append((name, self.sums, self.elements))
        self.begin()

    def taken(self, lead):
        """Of each training step the numbers of examples that networks got, and of elements.

        lead: what the optimizer is known by whose steps end a training step.
        """
        found, sums, elements = [], {}, 0
        for name, of_step, more in self.steps:
            elements += more
            for network, count in of_step.items():
                sums[network] = sums.get(network, 0) + count
            if name == lead:
                if sums:
                    found.append((sorted({*sums.values()}), elements))
                sums, elements = {}, 0
        return found

    def spare_skipped_steps(self, torch):
        """Forget what a step got that a GradScaler has skipped: the step comes with other ones."""
        self.kind = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
        self.update = self.kind.update

        @functools.wraps(self.update)
        def updated(scaler, *arguments, **keywords):
            self.begin()
            self.scaled |= scaler.is_enabled()
            return self.update(scaler, *arguments, **keywords)

        self.kind.update = updated

    @property
    def unscaled(self):
        """Whether losses are float16's and nothing scales them; DeepSpeed does that by itself."""
        return self.half and not self.scaled and self.averages != "DeepSpeedEngine"

    def end(self):
        """Have a GradScaler be as before."""
        if self.kind is not None:
            self.kind.update = self.update
