"""Has a plain loop compute in a precision, and sees in which one a step computes.

Frameworks choose their precision by variables of the environment, which `ninefold bench` sets. A
loop without one gets autocast around the forward pass of each network.
"""

import ast
import functools
import os
import sys
from weakref import WeakSet

from ninefold_bench_calls import is_compiled

FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric", "accelerate")
SHORT = {"bfloat16", "float16"}
# Of calls in which a script chooses its precision, or its strategy: arguments, and functions.
OF_PRECISION = {
    *("precision", "mixed_precision", "bf16", "fp16", "fp16_full_eval", "bf16_full_eval"),
    *("autocast", "GradScaler"),
}
OF_STRATEGY = {"strategy", "devices", "num_nodes", "gpus", "DataParallel"}


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
            kind = next((weight.device.type for weight in module.parameters()), "cpu")
            if module in self.cast:
                self.outputs.add("bfloat16")
            elif torch.is_autocast_enabled(kind):
                self.outputs.add(str(torch.get_autocast_dtype(kind)).partition(".")[2])

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
        kind, forward = next(module.parameters()).device.type, module.forward

        @functools.wraps(forward)
        def cast(*arguments, **keywords):
            with torch.autocast(kind, dtype=torch.bfloat16):
                found = forward(*arguments, **keywords)
            if self.calls.depth:  # still watched: a network of one layer
                self.add(torch, module, found)
            return in_float32(torch, found)

        module.forward = cast

    def said(self):
        """What a step computed in: its dtype, None where it is not known; who chose it; and whether
        a network was called.
        """
        short = self.outputs & SHORT
        computes = min(short) if short else "float32" if self.outputs else None
        return {
            "computes": computes,
            "framework": framework(),
            "line": line_of_choice(OF_PRECISION),
            "called": self.called,
        }


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


def line_of_choice(names):
    """`FILE:LINE` of the script that calls one of these functions, or one with such an argument."""
    folder = os.path.dirname(
        os.path.abspath(getattr(sys.modules["__main__"], "__file__", "") or "")
    )
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    own = [f for f in files if isinstance(f, str) and os.path.dirname(os.path.abspath(f)) == folder]
    for file in dict.fromkeys(own):
        try:
            with open(file, encoding="utf-8") as source:
                tree = ast.parse(source.read())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if names & {name, *(each.arg for each in node.keywords)}:
                return f"{os.path.relpath(file)}:{node.lineno}"
    return None
