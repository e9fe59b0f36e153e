"""The calls of modules of torch.nn, and what is to see them in the first steps."""

import functools
import sys

DYNAMO = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")


class Calls:
    """Module.__call__ with what sees each call, until `end`.

    kind: torch.nn.Module. before: functions of the module, its arguments and keywords, and whether
    it is outermost (none that backward calls is), which may change it. after: functions of the
    module and what it has returned.
    """

    def __init__(self, kind):
        self.kind, self.call, self.depth, self.before, self.after = kind, kind.__call__, 0, [], []

        @functools.wraps(self.call)
        def called(module, *arguments, **keywords):
            return self.see(module, arguments, keywords)

        self.now = kind.__call__ = called

    def see(self, module, arguments, keywords):
        outermost = not self.depth and not is_in_backward()
        for each in self.before:
            each(module, arguments, keywords, outermost)
        compiled = is_compiled(module)
        if compiled:  # the compiler would stumble over `called`
            self.kind.__call__ = self.call
            self.spare_compiler()
        self.depth += 1
        try:
            found = self.call(module, *arguments, **keywords)
        finally:
            self.depth -= 1
            if compiled:
                self.kind.__call__ = self.now
        for each in self.after:
            each(module, found)
        return found

    def spare_compiler(self):
        """Have the compiler, which has noted `called` as the usual call, take its short cut."""
        for name in DYNAMO:
            module = sys.modules.get(name)
            if getattr(module, "unpatched_nn_module_call", None) is self.now:
                module.unpatched_nn_module_call = self.call

    def end(self):
        """Have modules be called as before."""
        self.now = self.kind.__call__ = self.call


def is_in_backward():
    """Whether gradients are computed: blocks that were not kept are computed again there."""
    task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def is_compiled(module):
    return hasattr(module, "_orig_mod") or bool(getattr(module, "_compiled_call_impl", None))
