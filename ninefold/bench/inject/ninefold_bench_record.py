"""Records what the first training steps compute, for `ninefold diff`: a line of JSON for each step.

A tensor becomes eight float64 numbers (`measure`). All but the last add up over examples, so over
micro-batches and ranks. It runs in the Python of the command, so it is for Python 3.9 and later.
"""

import functools
import json
import os
import sys
import zlib
from _thread import get_ident
from collections import deque
from contextlib import suppress
from time import sleep
from weakref import ref

from ninefold_bench_calls import is_in_backward
from ninefold_bench_hook import OPTIMIZER, RECORD, SOCKET, group, steps_around

TABLE = 65537  # normal numbers that a tensor is projected on, repeated
WRAPPED = {"module", "_forward_module", "_fsdp_wrapped_module"}  # in DDP, Fabric, FSDP
# Of a param group: what chooses a kernel, and what belongs to a schedule.
NO_OPTIONS = {
    *("params", "param_names", "foreach", "fused", "capturable", "differentiable", "initial_lr"),
    *("max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"),
}
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
AFTER_SAVE = 2  # steps that a start takes which is killed to be resumed
SEEDED = ("random", "numpy.random", OPTIMIZER)
ASKED = json.loads(os.environ[RECORD])
STREAMS = {}  # the order of another training's data, by loader: what is left of it
BORN = {}  # checksums of random states at the start, and how often default_rng() had no seed


def loaded(module, calls):
    """Change a module that was loaded: seed it, leave out what is random, or record it.

    calls: of the networks of torch.nn, once it is loaded.
    """
    name = module.__name__
    if name in SEEDED:
        seed(name, module, ASKED["fixed"])
    if name == OPTIMIZER:
        torch = sys.modules["torch"]
        switch_off(torch.nn.functional, ASKED["without"])
        if "deterministic" in ASKED["fixed"]:
            torch._C._set_deterministic_algorithms(True, warn_only=True)
        RECORDER.watch_optimizers(module, torch)
    if name == "torch.utils.data.dataloader" and not RECORDER.ended:
        if ASKED["replay"]:
            with open(ASKED["replay"], encoding="utf-8") as file:
                STREAMS.update({each: deque(of) for each, of in json.load(file).items()})
        RECORDER.watch_loaders(module._BaseDataLoaderIter)
    if calls:
        RECORDER.calls = calls
        calls.before.append(RECORDER.before)
        calls.after.append(RECORDER.after)


def seed(name, module, fixed):
    """Seed one library's numbers, before the command draws any, if that is asked for."""
    short = {"random": "random", "numpy.random": "numpy"}.get(name, "torch")
    if short == "torch":
        if short in fixed:
            sys.modules["torch"].manual_seed(0)
    elif short in fixed:
        module.seed(0)
    if short == "numpy":
        make = module.default_rng

        @functools.wraps(make)
        def made(seed=None):
            BORN["default_rng"] = BORN.get("default_rng", 0) + (seed is None)
            return make(0 if seed is None and "default_rng" in fixed else seed)

        module.default_rng = made
    BORN[short] = states()[short]


def states():
    """Checksums of the states of random numbers, by library."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy.random")
    found = {"random": zlib.crc32(repr(sys.modules["random"].getstate()).encode())}
    if numpy is not None and hasattr(numpy, "get_state"):
        found["numpy"] = zlib.crc32(repr([*map(bytes, numpy.get_state()[1:2])]).encode())
        found["numpy"] += numpy.get_state()[2]
    if torch is not None and hasattr(torch, "get_rng_state"):
        found["torch"] = zlib.crc32(torch.get_rng_state().numpy().tobytes())
        if torch.cuda.is_initialized():
            found["cuda"] = zlib.crc32(torch.cuda.get_rng_state().numpy().tobytes())
    return found


def switch_off(functional, without):
    """Have dropout be the identity, and BatchNorm use its running statistics."""
    if "dropout" in without:
        for name in DROPOUTS:
            setattr(functional, name, lambda input, *arguments, **keywords: input)
        attention = functional.scaled_dot_product_attention

        @functools.wraps(attention)
        def attended(query, key, value, attn_mask=None, dropout_p=0.0, *arguments, **keywords):
            return attention(query, key, value, attn_mask, 0.0, *arguments, **keywords)

        functional.scaled_dot_product_attention = attended
    if "batchnorm" in without:
        norm = functional.batch_norm

        @functools.wraps(norm)
        def normed(x, mean, var, weight=None, bias=None, training=False, *rest, **keywords):
            return norm(x, mean, var, weight, bias, training and mean is None, *rest, **keywords)

        functional.batch_norm = normed


def quiet(method):
    """Have a method note what it cannot record in place of raising it, and record nothing there."""

    @functools.wraps(method)
    def call(self, *arguments, **keywords):
        torch = sys.modules["torch"]
        if self.ended or get_ident() != self.thread:
            return None
        self.gradients = torch.is_grad_enabled()
        try:
            with torch.no_grad():
                return method(self, *arguments, **keywords)
        except Exception as error:
            self.lost = self.lost or f"{type(error).__name__}: {error}"[:200]
            return None

    return call


class Frame:
    """A module's call. on: whether it is recorded. root: whether it is the outermost that counts.

    leaf: whether no other module was called in it. got: entries of what it got.
    """

    def __init__(self, module, depth, on, wraps, root):
        self.module, self.depth, self.on, self.wraps, self.root = module, depth, on, wraps, root
        self.leaf, self.got = True, []


class Recorder:
    """The steps of this process. `lost`: the first error of recording.

    entries: [phase, name, dtype, size of the first dimension, tensor of eight numbers] of the step
    under way. gradients: whether they were on when recording began. roots: networks by id, with
    what their names begin with. names: of parameters and modules, by id. known: outputs of modules
    by id, with their versions. scaled: losses by id that a GradScaler has made, and its scale.
    saved: the step behind which torch.save was called first. changed: functions that were put in
    the place of others.
    """

    def __init__(self):
        self.calls, self.thread, self.ended, self.lost = None, get_ident(), False, None
        self.stack, self.roots, self.names, self.tensors = [], {}, {}, {}
        self.count, self.loading, self.saved, self.file, self.table = 0, 0, None, None, {}
        self.first = {"params": {}, "ties": [], "modules": {}}
        self.scaled, self.scale, self.changed = {}, None, []
        self.begin()

    def change(self, owner, name, made):
        """Put a function in the place of another one, until `end`."""
        self.changed.append((owner, name, made, getattr(owner, name)))
        setattr(owner, name, made)

    def go_on(self):
        """Record calls, though all else that has seen them has ended."""
        if not self.ended and self.calls is not None:
            self.calls.before, self.calls.after = [self.before], [self.after]
            self.calls.put(self.calls.called)

    def end(self):
        """Have all be as before, and the peak of memory be that of what comes."""
        if self.ended or self.calls is None:  # torch.nn was not imported
            self.ended = True
            return
        self.ended = True
        for owner, name, made, before in reversed(self.changed):
            if getattr(owner, name) is made:
                setattr(owner, name, before)
        self.calls.before = [each for each in self.calls.before if each != self.before]
        self.calls.after = [each for each in self.calls.after if each != self.after]
        if not (self.calls.before or self.calls.after):
            self.calls.end()
        self.table, self.known, self.stack, self.entries = {}, {}, [], []
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized():
            cuda.reset_peak_memory_stats()
        with suppress(OSError), open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")

    def begin(self):
        self.entries, self.data, self.examples, self.known = [], [], [], {}
        self.micro, self.rng, self.hyper = 0, None, {}

    # What calls of modules show.

    @quiet
    def before(self, module, arguments, keywords, outermost):
        torch, depth = sys.modules["torch"], self.calls.depth
        if self.loading or is_in_backward() or not self.may_record(torch):
            return
        while self.stack and self.stack[-1].depth >= depth:  # an exception has ended them
            self.stack.pop()
        on = self.stack[-1].on if self.stack else self.gradients
        wraps = hands_on(module)
        root = not wraps and all(frame.wraps for frame in self.stack)
        for frame in self.stack:
            frame.leaf = False
        frame = Frame(module, depth, on, wraps, root)
        self.stack.append(frame)
        if not on or wraps:
            return
        if root:
            self.enter(torch, module)
        for place, tensor in enumerate(tensors_in(torch, [*arguments, *keywords.values()])):
            if not self.is_known(tensor):
                name = f"{self.name(module)}[{place}]" if place else self.name(module)
                frame.got.append(self.entry(torch, "input" if root else "between", name, tensor))
                if root and place == 0 and tensor.dim():
                    self.examples.append([self.name(module), self.rows(torch, tensor)])
        if root:
            self.entries += frame.got
            frame.got = []

    @quiet
    def after(self, module, found):
        frame = self.stack[-1] if self.stack else None
        if frame is None or frame.module is not module or frame.depth != self.calls.depth:
            return
        self.stack.pop()
        if not frame.on or frame.wraps or not (frame.leaf or frame.root):
            return
        torch = sys.modules["torch"]
        self.entries += frame.got
        for place, tensor in enumerate(tensors_in(torch, [found])):
            if tensor.dim() and frame.leaf:
                self.known[id(tensor)] = ref(tensor), tensor._version
            if tensor.dim():  # a mean over examples does not add up; `loss` has it
                name = f"{self.name(module)}[{place}]" if place else self.name(module)
                phase = "output" if frame.root else "forward"
                self.entries.append(self.entry(torch, phase, name, tensor))

    def may_record(self, torch):
        return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())

    def is_known(self, tensor):
        found = self.known.get(id(tensor))
        return found is not None and found[0]() is tensor and found[1] == tensor._version

    def name(self, module):
        if id(module) not in self.names and self.roots:  # it was made after the first call
            for root in [*self.roots.values()]:
                self.name_all(*root)
        return self.names.get(id(module), type(module).__name__)

    def enter(self, torch, root):
        """The call of a network begins."""
        if self.rng is None:
            self.rng = states()
        if id(root) in self.roots:
            return
        if not self.roots:
            self.watch_scaler(torch)
        kind = type(root).__name__
        same = sum(type(each).__name__ == kind for each, _ in self.roots.values())
        prefix = f"{kind}{f'#{same + 1}' if same else ''}." if self.roots else ""
        self.roots[id(root)] = root, prefix
        self.name_all(root, prefix)
        for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
            if id(tensor) not in self.tensors:
                self.tensors[id(tensor)] = tensor
                trains = isinstance(tensor, torch.nn.Parameter)
                if trains:
                    self.first["params"][prefix + name] = [*tensor.shape]
                phase = "start" if trains else "held"
                self.entries.append(self.entry(torch, phase, prefix + name, tensor))

    def name_all(self, root, prefix):
        for path, module in root.named_modules():
            name = prefix + path if path else prefix[:-1] or "the network"
            self.names.setdefault(id(module), name)
            own = [self.names.get(id(p), f"{prefix}{path}{'.' * bool(path)}{last}")
                   for last, p in module._parameters.items() if p is not None]  # fmt: skip
            self.first["modules"][name] = type(module).__name__, own
        shared = {}
        for name, weight in root.named_parameters(remove_duplicate=False):
            self.names.setdefault(id(weight), prefix + name)
            shared.setdefault(id(weight), []).append(prefix + name)
        ties = [of for of in shared.values() if len(of) > 1]
        self.first["ties"] += [of for of in ties if of not in self.first["ties"]]

    # What a tensor becomes.

    def numbers(self, torch, device):
        """The table of normal numbers on a device."""
        if device not in self.table:
            made = torch.Generator().manual_seed(9)
            wide = torch.randn(TABLE, generator=made, dtype=torch.float64, device="cpu")
            self.table[device] = wide.to(device)
        return self.table[device]

    def entry(self, torch, phase, name, tensor):
        if tensor is None:
            return [phase, name, None, 0, None]
        transformed = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", None)
        if transformed and transformed(tensor):
            raise RuntimeError("tensors of vmap and grad transforms have no values of their own")
        plain = readable(tensor)
        found = measure(torch, plain, self.numbers(torch, plain.device))
        first = plain.shape[0] if plain.dim() else 1
        return [phase, name, str(tensor.dtype).partition(".")[2], first, found]

    def rows(self, torch, tensor):
        """A projection for each example."""
        plain = readable(tensor).reshape(tensor.shape[0], -1).double()
        return project(plain, self.numbers(torch, plain.device)).tolist()

    # What the data, the backward pass and a GradScaler show.

    def watch_loaders(self, kind):
        """Note the indices that a loader's sampler gives, when the batch is handed out."""
        draw, advance, reset = kind._next_index, kind.__next__, kind._reset

        def drawn(loader):
            index, name = draw(loader), name_of(loader)
            if type(index) is list and index and index[0] is not None:
                index = replayed(name, index)
                vars(loader).setdefault("_ninefold", deque()).append([name, index])
            return index

        @functools.wraps(advance)
        def advanced(loader):
            self.loading += 1
            try:
                batch = advance(loader)
            finally:
                self.loading -= 1
            waiting = vars(loader).get("_ninefold")
            if waiting and not self.ended:
                name, index = waiting.popleft()
                self.data.append([name, [*map(plain_number, index)]])
            return batch

        def restarted(loader, *arguments, **keywords):
            vars(loader).pop("_ninefold", None)
            return reset(loader, *arguments, **keywords)

        for name, made in (("_next_index", drawn), ("__next__", advanced), ("_reset", restarted)):
            self.change(kind, name, made)

    def watch_optimizers(self, module, torch):
        backward, save = torch.autograd.backward, torch.save

        @functools.wraps(backward)
        def noted(tensors, *arguments, **keywords):
            self.backward_begins(tensors)
            return backward(tensors, *arguments, **keywords)

        @functools.wraps(save)
        def saved(*arguments, **keywords):
            found = save(*arguments, **keywords)
            if self.count and self.saved is None and get_ident() == self.thread:
                self.saved = self.count
            return found

        self.change(torch.autograd, "backward", noted)
        self.change(torch, "save", saved)
        module.register_optimizer_step_pre_hook(self.step_begins)
        module.register_optimizer_step_post_hook(self.step_ends)

    @quiet
    def backward_begins(self, tensors):
        torch = sys.modules["torch"]
        if is_in_backward():
            return
        for tensor in tensors_in(torch, [tensors]):
            made, scale = self.scaled.pop(id(tensor), (None, None))
            value = tensor / scale if made is not None and made() is tensor else tensor
            self.entries.append(self.entry(torch, "loss", "loss", value.sum()))
        self.micro += 1

    def watch_scaler(self, torch):
        kind = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
        scaled, step = kind.scale, kind.step

        @functools.wraps(scaled)
        def scale(scaler, outputs):
            found = scaled(scaler, outputs)
            if scaler.is_enabled() and isinstance(found, torch.Tensor) and not self.ended:
                self.scale = scaler.get_scale()
                self.scaled[id(found)] = ref(found), self.scale
            return found

        @functools.wraps(step)
        def step_of_scaler(scaler, optimizer, *arguments, **keywords):
            count = self.count
            found = step(scaler, optimizer, *arguments, **keywords)
            if scaler.is_enabled() and count == self.count:  # it was skipped
                self.step_begins(optimizer, (), {})
                self.step_ends(optimizer, (), {})
            return found

        self.change(kind, "scale", scale)
        self.change(kind, "step", step_of_scaler)

    # Steps.

    @quiet
    def step_begins(self, optimizer, arguments, keywords):
        if steps_around() > 1:
            return
        torch = sys.modules["torch"]
        several = len(optimizer.param_groups) > 1
        for number, of in enumerate(optimizer.param_groups):
            for key, value in of.items():
                value = value.item() if isinstance(value, torch.Tensor) else value
                if key not in NO_OPTIONS and isinstance(value, (bool, int, float, tuple)):
                    self.hyper[f"{key} of group {number}" if several else key] = value
        for name, weight in named(self, optimizer):
            for key, value in (optimizer.state.get(weight) or {}).items():
                if isinstance(value, (int, float)):
                    value = torch.tensor(float(value), dtype=torch.float64)
                if isinstance(value, torch.Tensor):
                    self.entries.append(self.entry(torch, "state", f"{key} of {name}", value))
        if not closes(arguments, keywords):
            self.note_gradients(torch, optimizer)

    def note_gradients(self, torch, optimizer):
        scale = getattr(optimizer, "grad_scale", None)
        for name, weight in named(self, optimizer):
            value = weight.grad
            if value is not None and scale is not None:
                value = value / scale
            self.entries.append(self.entry(torch, "grad", name, value))

    @quiet
    def step_ends(self, optimizer, arguments, keywords):
        if steps_around() > 1:
            return
        torch, ranks = sys.modules["torch"], group()
        if closes(arguments, keywords):
            self.note_gradients(torch, optimizer)
        for name, weight in named(self, optimizer):
            self.entries.append(self.entry(torch, "param", name, weight))
        for root, prefix in self.roots.values():
            for name, buffer in root.named_buffers():
                self.entries.append(self.entry(torch, "buffer", prefix + name, buffer))
        self.count += 1
        found = {
            "rank": ranks.get_rank() if ranks else 0,
            "world": ranks.get_world_size() if ranks else 1,
            "micro": self.micro,
            "entries": fetched(torch, self.entries),
            "data": self.data,
            "examples": self.examples,
            "rng": self.rng or states(),
            "after": states(),
            "hyper": self.hyper,
            "scale": self.scale,
            "lost": self.lost,
            **({**self.first, "born": BORN} if self.count == 1 else {}),
        }
        self.begin()
        self.write(found)

    def write(self, found):
        """Write a step, and wait for the end behind the last one."""
        if self.file is None:
            folder = os.path.dirname(os.environ[SOCKET])
            self.file = open(  # noqa: SIM115
                os.path.join(folder, f"{os.getpid()}.steps"), "w", encoding="utf-8"
            )
        until = ASKED["until"]
        enough = until == "save" and self.saved and self.count >= self.saved + AFTER_SAVE
        last = bool(enough) or self.count >= ASKED["steps"]
        self.file.write(json.dumps({**found, "saved": self.saved, "last": last}) + "\n")
        self.file.flush()
        while last and ASKED["alone"]:  # until it is killed
            sleep(60)
        if last:
            self.end()


RECORDER = Recorder()


def named(recorder, optimizer):
    """The parameters of an optimizer, with their names; those of no network by their place."""
    weights = [each for of in optimizer.param_groups for each in of["params"]]
    names = recorder.names
    return [(names.get(id(each), f"parameter {n}"), each) for n, each in enumerate(weights)]


def hands_on(module):
    """Whether a module only hands on what the network gets."""
    lightning = "LightningModule" in {kind.__name__ for kind in type(module).__mro__}
    children = {*module._modules}
    holds = children <= WRAPPED or "_forward_module" in children
    return lightning or (bool(children) and holds and not module._parameters)


def closes(arguments, keywords):
    """Whether a step was given a closure. arguments: the optimizer itself, first."""
    given = [*arguments[1:2], keywords.get("closure")]
    return any(callable(each) for each in given)


def name_of(loader):
    data = loader._dataset
    try:
        return f"{type(data).__name__}[{len(data)}]"
    except (TypeError, NotImplementedError):
        return type(data).__name__


def plain_number(index):
    return index if isinstance(index, (int, str)) else int(index)


def replayed(name, index):
    """The indices that this rank takes of another training's order, if there is one left."""
    ranks, stream = group(), STREAMS.get(name)
    world, rank = (ranks.get_world_size(), ranks.get_rank()) if ranks else (1, 0)
    if not stream or len(stream) < world * len(index):
        return index
    return [stream.popleft() for _ in range(world * len(index))][rank::world]


def tensors_in(torch, values):
    """The tensors in tuples, lists, dicts, and in the outputs of a framework that are dicts."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            found += tensors_in(torch, value.values())
        elif isinstance(value, (list, tuple)):
            found += tensors_in(torch, value)
    return found


def readable(tensor):
    """A strided tensor of real numbers: of a shard its own part, of a sparse one all."""
    tensor = tensor.detach()
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    tensor = tensor.to_dense() if tensor.layout is not sys.modules["torch"].strided else tensor
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return sys.modules["torch"].view_as_real(tensor) if tensor.is_complex() else tensor


def project(wide, numbers):
    """Sums over the last dimension, each element times one of the numbers, which repeat."""
    size = wide.shape[-1]
    whole = size // TABLE * TABLE
    rest = wide[..., whole:] @ numbers[: size - whole]
    if not whole:
        return rest
    folded = wide[..., :whole].unflatten(-1, (whole // TABLE, TABLE)).sum(-2)
    return folded @ numbers + rest


def measure(torch, tensor, numbers):
    """n, how many are not finite, zeros, sums of x, |x|, x^2, and two projections: of the sum over
    the first dimension, and of all in their order. Numbers that are not finite count as 0.
    """
    flat = tensor.reshape(tensor.shape[0] if tensor.dim() else 1, -1)
    wide = flat.double()
    bad = torch.zeros((), dtype=torch.float64, device=flat.device)
    line = wide.flatten()
    square = line @ line
    if flat.device.type != "cpu" or not square.isfinite():
        fine = wide.isfinite()
        bad = bad + (~fine).sum()
        wide = wide.where(fine, torch.zeros_like(bad))
        line = wide.flatten()
        square = line @ line
    columns = wide.sum(0)
    zeros = line.numel() - flat.count_nonzero()
    size = torch.linalg.vector_norm(line, 1)
    counts = [torch.full_like(bad, line.numel()), bad, zeros.double()]
    sums = [columns.sum(), size, square, project(columns, numbers), project(line, numbers)]
    return torch.stack([*counts, *sums])


def fetched(torch, entries):
    """The entries with plain numbers, fetched from each device at once."""
    by_device = {}
    for entry in entries:
        if entry[4] is not None:
            by_device.setdefault(entry[4].device, []).append(entry)
    for of in by_device.values():
        for entry, numbers in zip(of, torch.stack([e[4] for e in of]).tolist()):  # noqa: B905
            entry[4] = numbers
    return entries
