"""Records what the first training steps compute, for `ninefold diff`: a line of JSON for each step.

A tensor becomes six float64 numbers (`measure`), which add up over examples, so over micro-batches
and ranks. It runs in the Python of the command, so it is for Python 3.9 and later.
"""

import functools
import json
import math
import os
import sys
import zlib
from _thread import get_ident
from collections import deque

from ninefold_bench_calls import is_in_backward, is_transformed
from ninefold_bench_devices import capturing
from ninefold_bench_hook import ENVIRONMENT, OPTIMIZER, RECORD, SOCKET, group, steps_around

TABLE = 65537  # normal numbers that a tensor is projected on, repeated
NUMBERS = 6  # that a tensor becomes
WRAPPED = {"module", "_forward_module", "_fsdp_wrapped_module"}  # in DDP, Fabric, FSDP
# Of a param group: what chooses a kernel, and what belongs to a schedule.
NO_OPTIONS = {
    *("params", "param_names", "foreach", "fused", "capturable", "differentiable", "initial_lr"),
    *("max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"),
}
SEEDED = {"random": "random", "numpy.random": "numpy", OPTIMIZER: "torch"}
with open(ENVIRONMENT[RECORD], encoding="utf-8") as wanted:
    ASKED = json.load(wanted)
# The order of another training's data, by loader: what is left of it.
STREAMS = {name: deque(order) for name, order in ASKED["replay"].items()}
BORN = {}  # checksums of random states at the start


def loaded(module, calls):
    """Change a module that was loaded: seed it, leave out what is random, or record it.

    calls: of the networks of torch.nn, once it is loaded.
    """
    name = module.__name__
    if name in SEEDED:
        seed(module, SEEDED[name], ASKED["fixed"])
    if name == OPTIMIZER:
        torch = sys.modules["torch"]
        switch_off(torch.nn.functional, ASKED["without"])
        if "deterministic" in ASKED["fixed"]:
            torch._C._set_deterministic_algorithms(True, warn_only=True)
        RECORDER.watch_optimizers(module, torch)
    if name == "torch.utils.data.dataloader" and not RECORDER.ended:
        RECORDER.watch_loaders(module._BaseDataLoaderIter)
    if calls:
        RECORDER.calls = calls
        calls.before.append(RECORDER.before)
        calls.after.append(RECORDER.after)
        calls.staying = RECORDER.before, RECORDER.after


def seed(module, name, fixed):
    """Seed one library's numbers, before the command draws any, if that is asked for."""
    if name in fixed:
        (sys.modules["torch"].manual_seed if name == "torch" else module.seed)(0)
    if name == "numpy" and "default_rng" in fixed:  # what it takes where no seed is given
        sys.modules["numpy.random.bit_generator"].randbits = lambda bits: 0
    BORN[name] = states()[name]


def states():
    """Checksums of the states of random numbers, by library."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    found = {"random": repr(sys.modules["random"].getstate()).encode()}
    if hasattr(numpy, "get_state"):
        _, numbers, *rest = numpy.get_state()  # its repr would take a millisecond
        found["numpy"] = repr(rest).encode() + numbers.tobytes()
    if hasattr(torch, "get_rng_state"):
        found["torch"] = bytes(torch.get_rng_state().tolist())
        if torch.cuda.is_initialized():
            found["cuda"] = b"".join(bytes(of.tolist()) for of in torch.cuda.get_rng_state_all())
    return {name: zlib.crc32(state) for name, state in found.items()}


def switch_off(functional, without):
    """Have dropout be the identity, and BatchNorm use its running statistics."""
    attention, norm = functional.scaled_dot_product_attention, functional.batch_norm

    def attended(query, key, value, attn_mask=None, dropout_p=0.0, *arguments, **keywords):
        return attention(query, key, value, attn_mask, 0.0, *arguments, **keywords)

    def normed(x, mean, var, weight=None, bias=None, training=False, *arguments, **keywords):
        by_batch = training and mean is None
        return norm(x, mean, var, weight, bias, by_batch, *arguments, **keywords)

    if "dropout" in without:
        for name in [name for name in vars(functional) if "dropout" in name]:
            setattr(functional, name, lambda input, *arguments, **keywords: input)
        functional.scaled_dot_product_attention = attended
    if "batchnorm" in without:
        functional.batch_norm = normed


def quiet(method):
    """Have a method note what it cannot record in place of raising it, and record nothing there.

    Nothing is recorded while a CUDA graph is captured, in other threads, and in workers of a
    loader, which are forked and go on.
    """

    @functools.wraps(method)
    def call(self, *arguments):
        torch = sys.modules["torch"]
        if self.ended or get_ident() != self.thread or capturing():
            return
        if torch.utils.data.get_worker_info():
            return
        self.gradients = torch.is_grad_enabled()
        try:
            with torch.no_grad():
                method(self, *arguments)
        except Exception as error:
            self.unrecorded = self.unrecorded or f"{type(error).__name__}: {error}"[:200]
            self.lacks |= method.__name__ != "after"

    return call


class Recorder:
    """The steps of this process. unrecorded: the first error of recording. lacks: whether weights,
    inputs or gradients are not all recorded.

    entries: [phase, name, dtype, rows, six numbers] of the step under way. gradients: whether they
    were on when recording began. depth: of the call of a network that is under way; a network is an
    outermost module that computes itself. on: whether that is recorded. networks: by id, with what
    their names begin with. entered: those of this step. begun: micro-batches when the optimizer's
    step began. repeats: whether the closure of that step has been called, so that further calls are
    not recorded. again: calls of each module since the last backward pass. names: of parameters and
    modules, by id. modules: classes, by name. ties: names of each parameter that has several.
    scale: of the GradScaler whose step it is. state: of random numbers at the last output. drew:
    outputs for which some were drawn.
    """

    def __init__(self):
        self.calls, self.thread, self.ended, self.unrecorded = None, get_ident(), False, None
        self.lacks = False
        self.depth, self.on, self.networks, self.names = None, False, {}, {}
        self.count, self.loading, self.file, self.table = 0, 0, None, {}
        self.modules, self.ties = {}, []
        self.loaders = set()  # that gave batches to the first step
        self.begin()

    def begin(self):
        self.entries, self.data, self.examples, self.entered = [], [], [], set()
        self.micro, self.begun, self.rng, self.scale = 0, 0, None, None
        self.repeats = False
        self.state, self.drew, self.again = None, [], {}

    def end(self):
        """Record nothing more. What was put in the place of functions stays, and hands on."""
        already, self.ended = self.ended, True
        if already or self.calls is None:  # torch.nn was not imported
            return
        self.calls.drop(self.before, self.after)
        self.table, self.networks = {}, {}
        self.begin()

    # What calls of modules show.

    def is_apart(self):
        """Whether calls are no part of a forward pass."""
        return self.loading or self.repeats or is_in_backward()

    @quiet
    def before(self, module, arguments, keywords, outermost):
        if self.calls.depth == 0:  # an exception may have ended the network before
            self.depth = None
        if self.depth is not None or self.is_apart() or hands_on(module):
            return
        self.depth, self.on = self.calls.depth, self.gradients
        if not self.on:
            return
        self.enter(module)
        for place, (name, tensor) in enumerate(self.named([arguments, keywords], module)):
            made = tensor.grad_fn is not None  # by another network
            if not made and tensor.dim() and not is_transformed(tensor):
                own = self.note("input", name, tensor, by_example=True)
                if not place:
                    self.examples.append([self.names[id(module)], own])

    @quiet
    def after(self, module, found):
        if self.depth is None or self.calls.depth < self.depth or self.is_apart():
            return
        if self.calls.depth == self.depth:
            self.depth = None
        if not self.on:
            return
        # What does not add up over examples: a mean, which `loss` has, and indices.
        own = self.named(found, module)
        outputs = [(name, each) for name, each in own if each.dim() and has_fractions(each)]
        name = self.name_of(module)
        self.again[name] = self.again.get(name, 0) + 1
        for name, tensor in outputs:
            self.note("output", name, tensor, by_example=True, tf32=may_be_tf32(module))
        if outputs:
            before, self.state = self.state, states()
            if not before.items() <= self.state.items():
                self.drew += [name for name, _ in outputs]

    def named(self, values, module):
        """The tensors that a module gets or returns, each with the module's name and its place.

        A module that is called again before the backward pass has `[call 2]` behind its name.
        """
        name = self.name_of(module)
        call = self.again.get(name, 0) + 1
        name += f"[call {call}]" if call > 1 else ""
        for place, tensor in enumerate(tensors_in(values)):
            yield f"{name}[{place}]" if place else name, tensor

    def name_of(self, module):
        return self.names.get(id(module), type(module).__name__)

    def enter(self, network):
        """The call of a network begins: note its weights, if it is the first in this step."""
        self.state = states()
        self.rng = self.rng or self.state
        if id(network) in self.entered:
            return
        self.entered.add(id(network))
        if id(network) not in self.networks:
            self.add(network)
        (_, prefix), shared = self.networks[id(network)], {}
        for path, weight in network.named_parameters(remove_duplicate=False):
            name = self.names.setdefault(id(weight), prefix + path)
            if id(weight) not in shared and not (is_part(weight) or is_transformed(weight)):
                self.note("param", name, weight)
            shared.setdefault(id(weight), []).append(prefix + path)
        for path, buffer in network.named_buffers():
            self.note("buffer", prefix + path, buffer)
        self.ties = [names for names in shared.values() if len(names) > 1] or self.ties

    def add(self, network):
        """Name a network and its modules; the first one has no name in front of theirs.

        Those without weights, as a loss that is made anew at each call, share that of their class.
        """
        kind, prefix = type(network).__name__, ""
        if self.networks:
            known = [each for each, _ in self.networks.values() if [*each.parameters()]]
            same = sum(type(each).__name__ == kind for each in known)
            prefix = f"{kind}#{same + 1}." if same else f"{kind}."
        else:
            self.watch_scaler()
        self.networks[id(network)] = network, prefix
        for weight in filter(has_fractions, network.parameters()) if ASKED["nudge"] else ():
            own = weight.data.to_local() if hasattr(weight, "to_local") else weight.data
            own.mul_(1 + ASKED["nudge"] * self.repeated(own.device, own.numel()).view(own.shape))
        for path, module in network.named_modules():
            name = prefix + path if path else prefix[:-1] or "the network"
            self.modules[self.names.setdefault(id(module), name)] = type(module).__name__

    # What a tensor becomes.

    def numbers(self, device):
        """The table of normal numbers on a device."""
        if device not in self.table:
            torch, draw = sys.modules["torch"], sys.modules["random"].Random(9).gauss
            made = [draw(0.0, 1.0) for _ in range(TABLE)]  # not torch's: vmap lets it draw none
            self.table[device] = torch.tensor(made, dtype=torch.float64, device="cpu").to(device)
        return self.table[device]

    def repeated(self, device, size):
        """As many normal numbers as a tensor has elements."""
        return self.numbers(device).repeat(-(-size // TABLE))[:size]

    def note(self, phase, name, tensor, by_example=False, tf32=False):
        """Add an entry; returns the projections of its rows.

        by_example: whether the tensor has a row for each; else all is one row. A number has none.
        tf32: whether a GPU rounds to that what it multiplies in float32.
        """
        dtype, own, found = None, [], [0.0] * NUMBERS
        if isinstance(tensor, (int, float)):
            dtype, found = "float64", of_number(tensor)
        elif tensor is not None:
            plain = readable(tensor, whole=phase not in ("input", "output", "loss"))
            each = rows(plain) if by_example else plain.reshape(1, -1)
            own, found = measure(each, self.repeated(each.device, each.shape[-1]))
            dtype = str(plain.dtype)[len("torch.") :]
            if tf32 and plain.is_cuda and dtype == "float32":
                dtype = "TF32"
        self.entries.append([phase, name, dtype, len(own), found])
        return own

    # What the data, the backward pass and a GradScaler show.

    def watch_loaders(self, kind):
        """Note the indices that a loader's sampler gives, when the batch is handed out."""
        draw, advance, reset = kind._next_index, kind.__next__, kind._reset

        def drawn(loader):
            index = draw(loader)
            if self.ended or not sys.modules["torch"].is_grad_enabled():  # in an evaluation
                return index
            if type(index) is list and index and index[0] is not None:
                name = name_of(loader)
                index = replayed(name, index)
                vars(loader).setdefault("_ninefold", deque()).append([name, [*index]])
            return index

        @functools.wraps(advance)
        def advanced(loader):
            self.loading += 1
            try:
                batch = advance(loader)
            finally:
                self.loading -= 1
            waiting = vars(loader).get("_ninefold")
            handed = waiting.popleft() if waiting else None
            if handed and not self.count:
                self.loaders.add(handed[0])
            if handed and handed[0] in self.loaders:  # a later one is of an evaluation
                self.data.append(handed)
            return batch

        def restarted(loader, *arguments, **keywords):
            vars(loader).pop("_ninefold", None)
            return reset(loader, *arguments, **keywords)

        kind._next_index, kind.__next__, kind._reset = drawn, advanced, restarted

    def watch_optimizers(self, module, torch):
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def noted(tensors, *arguments, **keywords):
            self.backward_begins(tensors)
            return backward(tensors, *arguments, **keywords)

        torch.autograd.backward = noted
        module.register_optimizer_step_pre_hook(self.before_step)
        module.register_optimizer_step_post_hook(lambda optimizer, *_: self.step_ends(optimizer))

    @quiet
    def backward_begins(self, tensors):
        if not self.is_apart():
            for tensor in tensors_in(tensors):
                self.note("loss", "loss", tensor.sum())
            self.micro += 1
            self.again = {}

    def watch_scaler(self):
        """Note the scale of a GradScaler, and count a step that it skips, too."""
        torch = sys.modules["torch"]
        kind = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
        scale, step = kind.scale, kind.step

        def note_scale(scaler):
            if scaler.is_enabled() and not (self.ended or capturing()):
                self.scale = scaler.get_scale()

        @functools.wraps(scale)
        def scale_of_scaler(scaler, outputs):
            scaled = scale(scaler, outputs)
            note_scale(scaler)
            return scaled

        @functools.wraps(step)
        def step_of_scaler(scaler, optimizer, *arguments, **keywords):
            if self.ended or capturing():  # where bench has wrapped this, it stays
                return step(scaler, optimizer, *arguments, **keywords)
            count = self.count
            note_scale(scaler)
            found = step(scaler, optimizer, *arguments, **keywords)
            if self.scale is not None and count == self.count:
                self.step_begins(optimizer)
                self.step_ends(optimizer)
            return found

        kind.scale, kind.step = scale_of_scaler, step_of_scaler

    # Steps.

    def before_step(self, optimizer, arguments, keywords):
        """Note that a step begins; of the closure that it may take, record only the first call."""
        self.step_begins(optimizer)
        by_place = len(arguments) > 1  # behind the optimizer
        closure = arguments[1] if by_place else keywords.get("closure")
        if self.ended or steps_around() > 1 or not callable(closure):
            return None

        def call():
            found = closure()
            self.closure_ends(optimizer)
            return found

        if by_place:
            return (optimizer, call, *arguments[2:]), keywords
        return arguments, {**keywords, "closure": call}

    @quiet
    def closure_ends(self, optimizer):
        if self.micro > self.begun and not self.repeats:  # it has computed the gradients
            self.entries = [each for each in self.entries if each[0] != "grad"]
            self.note_gradients(optimizer)
            # The first call may be what has named the weights.
            trained = enumerate(self.trained(optimizer))
            known = {f"parameter {number}": name for number, (name, *_) in trained}
            for entry in self.entries:
                what, of, name = entry[1].rpartition(" of ")
                entry[1] = what + of + known.get(name, name)
        self.repeats = True

    @quiet
    def step_begins(self, optimizer):
        if steps_around() > 1:
            return
        for network, prefix in self.networks.values():
            for path, weight in network.named_parameters():  # FSDP2 has others in an evaluation
                self.names.setdefault(id(weight), prefix + path)
        self.begun, self.repeats = self.micro, False
        if self.scale is not None:
            self.note("scale", "scale", self.scale)
        groups = [dict(numbers_in(group)) for group in optimizer.param_groups]
        for key, value in groups[0].items():
            if all(group.get(key) is value or group.get(key) == value for group in groups):
                self.note("hyper", key, value)
        for name, weight, options in self.trained(optimizer):
            for key, value in numbers_in(options):
                self.note("hyper", f"{key} of {name}", value)
            state = {} if is_part(weight) else optimizer.state.get(weight) or {}
            for key, value in numbers_in(state):
                self.note("state", f"{key} of {name}", value)
        self.note_gradients(optimizer)

    def trained(self, optimizer):
        """The weights of an optimizer, with their names and options."""
        found = [(weight, of) for of in optimizer.param_groups for weight in of["params"]]
        for number, (weight, options) in enumerate(found):  # some are of no network
            yield self.names.get(id(weight), f"parameter {number}"), weight, options

    @quiet
    def note_gradients(self, optimizer):
        scale = getattr(optimizer, "grad_scale", None)
        for name, weight, _ in self.trained(optimizer):
            given = weight.grad
            if is_part(weight):
                why = "weights are in parts (FullyShardedDataParallel)"
                self.unrecorded, self.lacks = self.unrecorded or why, True
            else:
                self.note("grad", name, given if given is None or scale is None else given / scale)

    @quiet
    def step_ends(self, optimizer):
        if steps_around() > 1:
            return
        self.count += 1
        ranks = group()
        found = {
            "rank": ranks.get_rank() if ranks else 0,
            "micro": self.micro,
            "entries": self.entries,
            "data": self.data,
            "examples": self.examples,
            "rng": self.rng or states(),
            "after": states(),
            "drew": self.drew,
            "unrecorded": self.unrecorded,
            "lacks": self.lacks,
            "ties": self.ties,
            "modules": self.modules,
            "born": BORN,
        }
        if self.file is None:
            path = os.path.join(os.path.dirname(ENVIRONMENT[SOCKET]), f"{os.getpid()}.steps")
            self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self.file.write(json.dumps(found, default=plain) + "\n")
        self.file.flush()
        self.begin()
        if self.count >= ASKED["steps"]:
            self.end()


RECORDER = Recorder()


def hands_on(module):
    """Whether a module only hands on what the network gets.

    DataParallel of several GPUs does not: it has copies compute, in other threads.
    """
    if len(getattr(module, "device_ids", None) or ()) > 1:
        return False
    lightning = "LightningModule" in {kind.__name__ for kind in type(module).__mro__}
    children = {*module._modules}
    holds = children <= WRAPPED or "_forward_module" in children
    return lightning or (bool(children) and holds and not module._parameters)


def is_part(weight):
    """Whether FullyShardedDataParallel has made parts of it; those of `fully_shard` are read."""
    return getattr(weight, "_fsdp_flattened", False)


def numbers_in(options):
    """Each option or state of a weight that is a number or a tensor; of several with its place."""
    for key, value in options.items():
        several = isinstance(value, (list, tuple))
        for place, each in enumerate(value if several else [value]):
            numeric = isinstance(each, (int, float, sys.modules["torch"].Tensor))
            if numeric and key not in NO_OPTIONS:
                yield f"{key}[{place}]" if several else key, each


def of_number(x):
    """The six numbers of one that is no tensor, and of no row."""
    finite = math.isfinite(x)
    x = float(x) if finite else 0.0
    return [1.0, float(not finite), float(x == 0), x, x * x, x]


def name_of(loader):
    data = loader._dataset
    try:
        return f"{type(data).__name__}[{len(data)}]"
    except Exception:  # it is the user's: some have no length, and some know none
        return type(data).__name__


def plain(value):
    """A tensor, or an index of a sampler of the user's, as JSON has it."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def replayed(name, index):
    """The indices that this rank takes of another training's order, if there is one left."""
    ranks, stream = group(), STREAMS.get(name)
    world, rank = (ranks.get_world_size(), ranks.get_rank()) if ranks else (1, 0)
    if not stream or len(stream) < world * len(index):
        return index
    taken = [stream.popleft() for _ in range(world * len(index))][rank::world]
    return [*map(tuples, taken)]


def tuples(index):
    """An index that JSON had, as a sampler gave it."""
    return tuple(map(tuples, index)) if isinstance(index, list) else index


def tensors_in(values):
    """The tensors in tuples, lists, dicts, and in the outputs of a framework that are dicts."""
    if isinstance(values, sys.modules["torch"].Tensor):
        return [values]
    if not isinstance(values, (dict, list, tuple)):
        return []
    each = values.values() if isinstance(values, dict) else values
    return [tensor for value in each for tensor in tensors_in(value)]


def has_fractions(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def readable(tensor, whole=False):
    """A strided tensor of real numbers: of a sparse one all, of a DTensor this rank's part.

    whole: of a DTensor all parts, which all ranks call this for.
    """
    torch, tensor = sys.modules["torch"], tensor.detach()
    if is_transformed(tensor):
        raise RuntimeError("tensors of vmap and grad transforms have no values of their own")
    if hasattr(tensor, "to_local"):
        tensor = tensor.full_tensor() if whole else tensor.to_local()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def may_be_tf32(module):
    """Whether a GPU of NVIDIA may round what a module multiplies in float32 to TF32."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized() or torch.cuda.get_device_capability() < (8, 0):
        return False
    convolves = isinstance(module, (torch.nn.modules.conv._ConvNd, torch.nn.RNNBase))
    cudnn = torch.backends.cudnn
    of = getattr(cudnn, "conv", cudnn) if convolves else torch.backends.cuda.matmul
    precision = getattr(of, "fp32_precision", None)  # since torch 2.9
    return of.allow_tf32 if precision is None else precision == "tf32"


def rows(tensor):
    """A row for each example. tensor: of (examples, ...), or a number."""
    return tensor.flatten(1) if tensor.dim() > 1 else tensor.reshape(-1, 1)


def measure(each, numbers):
    """A projection of each row on the numbers, and what the rows become: n, how many are not
    finite, zeros, sums of x and x^2, and of the projections.

    each: (rows, columns). numbers: (columns). Numbers that are not finite count as 0.
    """
    torch = sys.modules["torch"]
    wide = each.to(torch.float64, copy=True).nan_to_num_(0.0, 0.0, 0.0)
    line, own = wide.flatten(), wide @ numbers
    n = wide.new_tensor(line.numel())
    counts = n, n - each.isfinite().sum(), n - each.count_nonzero()
    return own, torch.stack([*counts, line.sum(), line @ line, own.sum()])
