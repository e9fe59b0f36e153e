"""Has a plain loop compute in a precision, and sees in which one a step computes.

Frameworks choose their precision by variables of the environment, which `ninefold bench` sets. A
loop without one gets autocast around the forward pass of each network.
"""

import sys
from weakref import WeakSet

from ninefold_bench_calls import is_compiled, put_forward

FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric", "accelerate")
SHORT = {"bfloat16", "float16"}


class Watch:
    """What the modules of the first training steps show, until `end`.

    casts: whether networks of a plain loop get autocast to bfloat16; cast: those that have got it.
    outputs: dtypes that layers with weights have returned, and of a compiled network that of
    autocast, as its layers are not seen. called: whether a network was, in training.
    """

    def __init__(self, casts, calls):
        self.casts, self.calls, self.outputs, self.cast = casts, calls, set(), WeakSet()
        self.called = False
        self.begin()

    def begin(self):
        """Have the calls of networks be seen, until those of `calls` end."""
        self.calls.before.append(self.see)
        self.calls.after.append(self.note)
        self.calls.put(self.calls.called)

    def see(self, module, arguments, keywords, outermost):
        import torch

        if not (torch.is_grad_enabled() and module.training):
            return
        if outermost and next(module.parameters(), None) is not None:
            self.called = True
            self.wrap(torch, module)
        if is_compiled(module):
            weight = next(module.parameters(), None)
            own = None if weight is None else autocast_dtype(torch, weight)
            if module in self.cast:
                self.outputs.add("bfloat16")
            elif own is not None:
                self.outputs.add(str(own).partition(".")[2])

    def note(self, module, found):
        """Note what a layer with weights has returned in training."""
        import torch

        if not (torch.is_grad_enabled() and module.training) or module in self.cast:
            return
        self.add(torch, module, found)

    def add(self, torch, module, found):
        weights = [p for p in module._parameters.values() if p is not None]
        if weights and isinstance(found, torch.Tensor) and found.is_floating_point():
            self.outputs.add(str(found.dtype).partition(".")[2])

    def wrap(self, torch, module):
        """Give a network of a plain loop autocast, and float32 outputs, as accelerate does.

        Not in float16: the loop would need a GradScaler, whose time is a part of a step.
        """
        own = "forward" in vars(module) and not hasattr(module, "_orig_mod")
        if framework() or not self.casts or own or module in self.cast:
            return
        self.cast.add(module)
        kind = next(module.parameters()).device.type

        def cast(forward, arguments, keywords):
            with torch.autocast(kind, dtype=torch.bfloat16):
                found = forward(*arguments, **keywords)
            if self.calls.depth:  # still watched: a network of one layer
                self.add(torch, module, found)
            return in_float32(torch, found)

        put_forward(module, cast)

    def said(self):
        """What a step computed in: its dtype, None where it is not known; who chose it; and whether
        a network was called.
        """
        short = self.outputs & SHORT
        computes = min(short) if short else "float32" if self.outputs else None
        return {"computes": computes, "framework": framework(), "called": self.called}


def in_float32(torch, value):
    """`value` with float32 in place of shorter floats, in tuples, lists and dicts, too."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, dict):
        made = {name: in_float32(torch, each) for name, each in value.items()}
        return made if type(value) is dict else type(value)(**made)
    if type(value) in (tuple, list):
        return type(value)(in_float32(torch, each) for each in value)
    return value


def framework():
    """The framework of this process, if it has one."""
    found = [name for name in FRAMEWORKS if name in sys.modules]
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    if not getattr(state, "_shared_state", None):  # another package imports it
        found = [name for name in found if name != "accelerate"]
    return next(iter(found), None)


def autocast_dtype(torch, weight):
    """The dtype of autocast on the device of a weight; None without one."""
    try:
        kind = weight.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    except (AttributeError, TypeError):  # torch before 2.4
        cuda = weight.is_cuda and torch.is_autocast_enabled()
        return torch.get_autocast_gpu_dtype() if cuda else None
