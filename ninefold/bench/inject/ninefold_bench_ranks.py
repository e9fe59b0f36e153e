"""Sees how long a rank waits in its backward passes for the gradients of the other ranks.

DistributedDataParallel waits for them when the rank has computed its own, in what the engine of
autograd calls at the end of a pass, in the order in which it was queued. What is queued first is
called right before that, and what is queued by that right after it.
"""

import sys

from ninefold_bench_devices import capturing


class Waits:
    """The waits in the steps of a process, from `begin` to `end`.

    steps: of the process. moments: by the number of a step, when a pass had computed its gradients
    and when all ranks' were averaged, of one pass after another. handle: of the hook of a weight.
    over: whether they have been looked at.
    """

    def __init__(self, steps):
        self.steps, self.moments, self.handle, self.over = steps, {}, None, False

    def begin(self, optimizer):
        """See the waits from now on, by a weight of an optimizer, unless that was done before."""
        if self.handle is not None or self.over:
            return
        weights = [each for of in optimizer.param_groups for each in of["params"]]
        weight = next((each for each in weights if each.requires_grad), None)
        if weight is not None:
            self.handle = weight.register_hook(self.passes)

    def passes(self, gradient):
        self.queue(self.computed)

    def computed(self):
        self.note()
        self.queue(self.note)

    def note(self):
        if not capturing():
            moments = self.moments.setdefault(len(self.steps.stamps), [])
            moments.append(self.steps.now())

    def queue(self, function):
        """Queue a function for the end of the pass. What torch does not allow is no error."""
        try:
            sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(function)
        except Exception:
            self.end()

    def taken(self, used, count):
        """Seconds that each of the steps of a turn waited, None where that was not seen.

        used: the devices, settled. count: the steps.
        """
        if self.handle is None:
            return []
        moments, self.moments = self.moments, {}
        waited = [used.between(moments.get(number, []))[::2] for number in range(1, count + 1)]
        return [sum(each) if each else None for each in waited]

    def end(self):
        """See no more of them, for good."""
        if self.handle is not None:
            self.handle.remove()
        self.handle, self.over = None, True
