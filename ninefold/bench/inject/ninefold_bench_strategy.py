"""Sees what a training step of this process takes, and by what gradients are averaged over ranks.

Nobody tells how many examples a step takes. But how long the first dimension of what its layers get
is, of all their calls in a step, shows how many times more they are than in another command.
"""

import functools

from ninefold_bench_calls import is_compiled
from ninefold_bench_cures import line_of_script

AVERAGING = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
MOST = 64  # layers that are told of


class Batches:
    """What the modules of the first training step get, until `end`.

    layers: the sums of first dimensions, and of elements, by layer, a module without others in it,
    in the order of first calls. averages: the class by which gradients are averaged. network:
    `FILE:LINE` of the script that calls the first network. changed: what `end` puts back.
    """

    def __init__(self):
        self.layers, self.averages, self.network, self.changed = {}, None, None, []

    def see(self, torch, module, arguments, keywords, outermost):
        """Note a call in training."""
        if not self.changed:
            self.spare_skipped_steps(torch)
        if outermost:
            self.network = self.network or line_of_script()
        compiled = is_compiled(module)
        for each in module.modules() if compiled else (module,):
            names = {kind.__name__ for kind in type(each).__mro__} & AVERAGING
            self.averages = self.averages or min(names, default=None)
        if compiled:
            self.see_compiled(torch, module)
        elif next(module.children(), None) is None:
            self.count(torch, module, arguments, keywords)

    def see_compiled(self, torch, module):
        """Have calls of a compiled network counted outside of what the compiler reads.

        What it has inside is not seen any more, so it is what counts.
        """
        self.layers.clear()
        name = "forward" if hasattr(module, "_orig_mod") else "_compiled_call_impl"
        entry = getattr(module, name)

        @functools.wraps(entry)
        def counted(*arguments, **keywords):
            self.count(torch, module, arguments, keywords)
            return entry(*arguments, **keywords)

        self.put(vars(module), name, counted)

    def spare_skipped_steps(self, torch):
        """Forget what a step got that a GradScaler has skipped: the step comes with other ones."""
        kind = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
        update = kind.update

        @functools.wraps(update)
        def updated(*arguments, **keywords):
            self.layers.clear()
            return update(*arguments, **keywords)

        kind.update = updated
        self.changed.append(lambda: setattr(kind, "update", update))

    def put(self, names, name, value):
        before = names[name]
        names[name] = value
        self.changed.append(lambda: names.update({name: before}))

    def count(self, torch, module, arguments, keywords):
        got = first_tensor(torch, [*arguments, *keywords.values()])
        known = id(module) in self.layers
        if got is not None and (known or len(self.layers) < MOST):
            sums = self.layers.setdefault(id(module), [0, 0])
            sums[0] += got.size(0)
            sums[1] += got.numel()

    def end(self):
        """Have all called as before."""
        while self.changed:
            self.changed.pop()()

    def said(self, line):
        """What was seen. line: where the script chooses a strategy."""
        return {
            "averages": self.averages,
            "layers": [*self.layers.values()],
            "network": self.network,
            "line": line,
        }


def first_tensor(torch, values):
    """The first tensor with a dimension in values, lists and dicts among them; None: none."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.dim():
                return value
        elif isinstance(value, (list, tuple, dict)):
            inner = value.values() if isinstance(value, dict) else value
            found = first_tensor(torch, inner)
            if found is not None:
                return found
    return None
