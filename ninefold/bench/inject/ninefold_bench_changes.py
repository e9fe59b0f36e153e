"""Makes the changes that this command was started with, and sees what the script has of them.

Each is what a line of the script would be: so what it brings is what that line brings. Their names
are those of `Change` in ninefold/bench.
"""

import functools
import inspect
import itertools
import os
import sys

from ninefold_bench_calls import is_compiled, put_forward

# The changes that are wanted: what stands behind `=` by what stands before.
WANTED = dict(
    each.partition("=")[::2] for each in os.environ.get("NINEFOLD_BENCH_CHANGES", "").split(",")
)
PRECISIONS = {"fp32", "bf16", "fp16"}
LOOKS = "as it is" in WANTED  # at what the script has
KEPT = 8  # batches: the first may be unlike others, such as the longest of a sampler by length
# What was seen until the first step ended, as `Script` of ninefold/bench/messages.py has it.
# workers, iterable: of the loader whose pass began last.
SEEN = {
    "loader": None, "optimizer": None, "network": None, "workers": None, "threads": None,
    "fused": None, "convolutions": False, "compiled": False, "iterable": False,
}  # fmt: skip
LINES = 3  # that are told of several


def change(module, calls, steps):
    """Change a module of torch that was loaded, if it is what is to be changed, and look at it.

    calls: of the networks of torch.nn, once it is loaded. steps: tell what was seen.
    """
    name = module.__name__
    if calls:
        steps.watch = watch(calls)
        if LOOKS or not {"threads", "channels_last", "compile"}.isdisjoint(WANTED):
            see_networks(calls)
        if LOOKS:
            steps.script = SEEN
    if name == "torch.utils.data.dataloader":
        if LOOKS or "workers" in WANTED:
            see_loaders(module.DataLoader, WANTED.get("workers"))
        if "no reading" in WANTED:
            read_no_more(module.DataLoader)
    if name == "torch.nn.parallel.distributed" and "no averaging" in WANTED:
        average_nothing(module.DistributedDataParallel)
    if name == "torch.optim.optimizer":
        if LOOKS or "fused" in WANTED:
            see_optimizers(module.Optimizer, "fused" in WANTED)
        if "no optimizer" in WANTED:
            keep_weights(module.Optimizer)


def watch(calls):
    """What sees in which precision networks compute, if that is wanted; None else."""
    if not LOOKS and PRECISIONS.isdisjoint(WANTED):
        return None
    from ninefold_bench_precision import Watch

    return Watch("bf16" in WANTED, calls)


def see_loaders(loader, workers):
    """Have loaders read in so many processes; None: in as many as they do."""
    make, begin, lines = loader.__init__, loader.__iter__, {}

    @functools.wraps(make)
    def made(self, *arguments, **keywords):
        given = inspect.signature(make).bind(self, *arguments, **keywords).arguments
        dataset = given.get("dataset")
        # A framework makes a loader of its own for the dataset of the script's.
        lines[id(dataset)] = lines.get(id(dataset)) or line_of_script()
        if workers is not None and not iterates(dataset):
            given.update(num_workers=int(workers), persistent_workers=workers != "0")
            if workers == "0":  # which go with workers alone
                for name in ("prefetch_factor", "multiprocessing_context", "timeout"):
                    given.pop(name, None)
        made_as(make, given)

    @functools.wraps(begin)
    def begun(self):
        SEEN.update(loader=lines.get(id(self.dataset)), workers=self.num_workers)
        SEEN.update(iterable=iterates(self.dataset))
        return begin(self)

    loader.__init__, loader.__iter__ = made, begun


def iterates(dataset):
    """Whether each worker would read all of a dataset, so that more of them train on more data."""
    return isinstance(dataset, sys.modules["torch.utils.data"].IterableDataset)


def see_optimizers(optimizer, fused):
    """Have PyTorch's own optimizers that have one fused kernel use it."""

    def seen(cls, **keywords):
        super(optimizer, cls).__init_subclass__(**keywords)
        if cls.__module__.startswith("torch.optim.") and "__init__" in vars(cls):
            see_optimizer(cls, fused)

    optimizer.__init_subclass__ = classmethod(seen)


def see_optimizer(cls, fused):
    make = cls.__init__
    has = "fused" in inspect.signature(make).parameters

    @functools.wraps(make)
    def made(self, *arguments, **keywords):
        given = inspect.signature(make).bind(self, *arguments, **keywords).arguments
        if type(self) is cls and has:
            SEEN["optimizer"] = with_line(SEEN["optimizer"], line_of_script())
            SEEN["fused"] = bool(given.get("fused")) and SEEN["fused"] is not False
        if type(self) is cls and has and fused and not given.get("foreach"):
            given["fused"] = True
        made_as(make, given)

    cls.__init__ = made


def made_as(make, given):
    """Call an __init__ with the arguments that `inspect` has bound."""
    keywords = dict(given)
    make(keywords.pop("self"), **{**keywords.pop("kwargs", {}), **keywords})


def read_no_more(loader):
    """Have loaders hand out their first batches again and again."""
    iterate = loader.__iter__
    kept = {}  # by loader, which stays, and so its id

    def again(self):
        if id(self) not in kept:
            kept[id(self)] = [*itertools.islice(iterate(self), KEPT)], self
        batches = itertools.cycle(kept[id(self)][0])
        try:
            return itertools.islice(batches, len(self))
        except TypeError:
            return batches

    loader.__iter__ = again


def average_nothing(kind):
    """Have DistributedDataParallel average no gradients over ranks."""
    make = kind.__init__

    @functools.wraps(make)
    def made(self, *arguments, **keywords):
        make(self, *arguments, **keywords)
        self.require_backward_grad_sync = False

    kind.__init__ = made


def keep_weights(optimizer):
    """Have steps of optimizers change nothing."""
    hooked = optimizer.profile_hook_step

    def without(step):
        @functools.wraps(step)
        def same_weights(self, closure=None):
            return None if closure is None else closure()

        return hooked(same_weights)

    optimizer.profile_hook_step = staticmethod(without)


def see_networks(calls):
    """Change each network at the first call in which it trains."""
    known = set()

    def look_and_change(network, arguments, keywords, outermost):
        import torch

        trains = outermost and torch.is_grad_enabled() and network.training
        if not trains or id(network) in known or not any(True for _ in network.parameters()):
            return
        known.add(id(network))
        for module in network.modules():
            SEEN["convolutions"] |= isinstance(module, torch.nn.modules.conv._ConvNd)
            SEEN["compiled"] |= is_compiled(module)
        SEEN["network"] = with_line(SEEN["network"], line_of_script())
        SEEN["threads"] = torch.get_num_threads()
        if "threads" in WANTED:
            torch.set_num_threads(int(WANTED["threads"]))
        if "channels_last" in WANTED:
            in_channels_last(torch, network)
        if "compile" in WANTED:
            network.compile()

    calls.before.append(look_and_change)


def in_channels_last(torch, network):
    """Give a network, and the images that it gets, the layout of channels last."""
    layout = torch.channels_last
    network.to(memory_format=layout)

    def turned(value):
        images = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=layout) if images else value

    def of_images(forward, arguments, keywords):
        given = {name: turned(value) for name, value in keywords.items()}
        return forward(*map(turned, arguments), **given)

    put_forward(network, of_images)


def with_line(lines, line):
    """`lines` and one more, LINES at most."""
    told = lines.split(", ") if lines else []
    new = line is not None and line not in told and len(told) < LINES
    return ", ".join([*told, line]) if new else lines


def line_of_script():
    """`FILE:LINE` of the script that makes a call of torch itself; None: a package does.

    So a line that is told can be changed as told.
    """
    ours, torch = os.path.dirname(__file__), os.path.dirname(sys.modules["torch"].__file__)
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((ours, torch)):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    in_package = "site-packages" in file or "dist-packages" in file
    if in_package or not os.path.exists(file):
        return None
    return f"{os.path.relpath(file)}:{frame.f_lineno}"
