"""The calls of modules of torch.nn, and what is to see them in the first steps."""

import functools
import sys
import types

DYNAMO = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")


class Calls:
    """Module.__call__ with what sees each call, until `end`.

    kind: torch.nn.Module. call: as it was before, now: as it is. before: functions of the module,
    its arguments and keywords, and whether it is outermost (none that backward calls is), which may
    change it. after: functions of the module and what it has returned. staying: those of both that
    go on seeing calls after `end`.

    The compiler neither traces nor compiles what sees a call: a network is compiled as without it.
    """

    def __init__(self, kind):
        self.kind, self.depth, self.before, self.after, self.staying = kind, 0, [], [], ()
        self.call = self.now = kind.__call__

        @functools.wraps(self.call)
        def called(module, *arguments, **keywords):
            if is_traced() or not (self.before or self.after):
                return self.call(module, *arguments, **keywords)
            return self.see(module, arguments, keywords)

        self.called = called
        pass_over(called, Calls.see, is_traced, compiler, uncompiled)
        self.put(called)

    def see(self, module, arguments, keywords):
        outermost = not self.depth and not is_in_backward()
        for each in self.before:
            uncompiled(each, module, arguments, keywords, outermost)
        compiled = is_compiled(module)
        if compiled:  # what it has inside is not seen
            self.put(self.call)
        self.depth += 1
        try:
            found = self.call(module, *arguments, **keywords)
        finally:
            self.depth -= 1
            if compiled and self.before:
                self.put(self.called)
        for each in self.after:
            uncompiled(each, module, found)
        return found

    def put(self, call):
        """Have modules be called so, unless others have changed that since.

        The compiler takes a short cut where modules are called as it has noted.
        """
        if self.kind.__call__ is not self.now:
            return
        self.now = self.kind.__call__ = call
        for module in [sys.modules[name] for name in DYNAMO if name in sys.modules]:
            module.unpatched_nn_module_call = call

    def drop(self, *functions):
        """Have functions see no more calls; with none left modules are called as before."""
        self.before = [each for each in self.before if each not in functions]
        self.after = [each for each in self.after if each not in functions]
        if not (self.before or self.after):
            self.put(self.call)

    def end(self):
        """Drop all but what stays."""
        self.drop(*(each for each in (*self.before, *self.after) if each not in self.staying))


def put_forward(module, around):
    """Replace the forward of a module, and of later copies of it, by one that returns
    `around(forward, arguments, keywords)`.
    """
    bound = getattr(module.forward, "__self__", None) is module
    own = module.forward.__func__ if bound else module.forward

    @functools.wraps(own)
    def forward(*arguments, **keywords):
        return around(own, arguments, keywords)

    module.forward = types.MethodType(forward, module) if bound else forward


def compiler():
    """What has frames compiled; None where torch is not loaded, or has no such thing."""
    return getattr(getattr(sys.modules.get("torch._C"), "_dynamo", None), "eval_frame", None)


def pass_over(*functions):
    """Have torch.compile pass over functions, but not over what they call."""
    found = compiler()
    skip = getattr(found, "skip_code", None)
    if hasattr(found, "set_code_exec_strategy"):  # of newer versions
        action = found._FrameAction
        strategy = found._FrameExecStrategy(action.SKIP, action.DEFAULT)
        skip = lambda code: found.set_code_exec_strategy(code, strategy)  # noqa: E731
    for each in functions if skip else ():
        skip(each.__code__)


def uncompiled(function, *arguments):
    """Call a function of which torch.compile passes over what it calls, too."""
    found = compiler()
    if found is None:
        return function(*arguments)
    before = found.set_eval_frame(None)
    try:
        return function(*arguments)
    finally:
        found.set_eval_frame(before)


def is_traced():
    """Whether a compiler reads this, for which it is True, or a tracer runs it."""
    torch = sys.modules["torch"]
    compiles = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
    return compiles() or torch.jit.is_tracing()


def is_in_backward():
    """Whether gradients are computed: blocks that were not kept are computed again there."""
    task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def is_transformed(tensor):
    """Whether vmap or a grad transform hides dimensions and values of a tensor."""
    functorch = getattr(sys.modules["torch"]._C, "_functorch", None)
    is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return bool(is_wrapped and is_wrapped(tensor))


def is_compiled(module):
    return hasattr(module, "_orig_mod") or bool(getattr(module, "_compiled_call_impl", None))
