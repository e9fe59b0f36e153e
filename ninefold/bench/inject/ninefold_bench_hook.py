"""Tells `ninefold bench` where the training steps of this process end, and waits there for a turn.

It runs in the Python of the compared command, so it is for Python 3.9 and later, imports nothing
but the standard library, and uses the torch that the command has imported.

Messages are lines of JSON. At the first step's end this process says who it is (`Steps.hello`).
Then it waits for {"lead": n, "steps": n, "records": whether, "marking": [what is left out]}, takes
`lead` steps that are not timed and `steps` that are, and answers {"seconds": [of each timed step],
"marks": {number: what it contained}, ...}.
"""

import functools
import json
import os
import sys
from _thread import get_ident
from time import perf_counter, sleep

SOCKET, STEP, TWIN = "NINEFOLD_BENCH", "NINEFOLD_BENCH_STEP", "NINEFOLD_BENCH_TWIN"
CURE = "NINEFOLD_BENCH_CURE"  # what is to be changed; "none": it is only looked at the script
RECORD = "NINEFOLD_BENCH_RECORD"  # what is recorded of the first steps, as JSON
ONE = "NINEFOLD_BENCH_ONE_OPTIMIZER"  # that there is no other one was seen in a process before
PRECISION = "NINEFOLD_BENCH_PRECISION"  # fp32, bf16 or fp16: what the command is to compute in
PROCESSES = "NINEFOLD_BENCH_PROCESSES"  # how many are to train together
ORIGIN = "NINEFOLD_BENCH_ORIGIN"  # a folder: the files of modules below it are told
CUDA, OPTIMIZER, MODULE = "torch.cuda", "torch.optim.optimizer", "torch.nn.modules.module"
FIRST, SELDOM = 16, 64  # steps by which one optimizer is chosen to lead; if another is seldom
FEW, PATIENCE = 4, 20.0  # steps that suffice if there is one optimizer, or after so many seconds
WATCHED = 0.2  # seconds: NCCL's watchdog looks every 0.1
# Of a usual step: a block without gradients that takes longer is an evaluation; a GPU that has done
# what is queued sooner waits for its host.
LONG = 0.5


def loaded(module):
    """Change a module that was loaded as far as this command asks for."""
    calls, precision = None, os.environ.get(PRECISION)
    if module.__name__ == MODULE:
        import ninefold_bench_calls

        calls = ninefold_bench_calls.Calls(module.Module)
    if calls and precision:
        import ninefold_bench_precision

        STEPS.watch = ninefold_bench_precision.Watch(precision, calls)
    if os.environ.get(RECORD):
        import ninefold_bench_record

        ninefold_bench_record.loaded(module, calls)
        STEPS.recorder = ninefold_bench_record.RECORDER
        if ninefold_bench_record.ASKED["alone"]:
            return
    step, _, function = os.environ.get(STEP, "").partition(":")
    if module.__name__ == CUDA:
        wait_for_gpu(module)
    if module.__name__ == OPTIMIZER:
        note("torch")
        spare_compiler()
        if not step:
            module.register_optimizer_step_post_hook(STEPS.after_step)
    if module.__name__ == step:
        wrap_step(module, function)
    cure = os.environ.get(CURE)
    if calls:
        import ninefold_bench_batches

        STEPS.batches = ninefold_bench_batches.Batches(calls, bool(os.environ.get(PROCESSES)))
        STEPS.ends += [calls.end, STEPS.batches.end]
    if cure:
        import ninefold_bench_cures

        STEPS.script, STEPS.besides = ninefold_bench_cures.SEEN, ninefold_bench_cures.BESIDES
        if module.__name__ == MODULE:
            STEPS.ends.append(ninefold_bench_cures.end)
        ninefold_bench_cures.change(cure, module, calls)
    if os.environ.get(TWIN):
        import ninefold_bench_twins

        ninefold_bench_twins.change(os.environ[TWIN], module)


def note(name):
    """Put an empty file beside the socket; returns the folder."""
    folder = os.path.dirname(os.environ[SOCKET])
    with open(os.path.join(folder, name), "a"):
        return folder


def wait_for_gpu(cuda):
    """Block the first use of a GPU until `ninefold bench` has put the file `go` there."""
    begin = cuda._lazy_init

    def wait():
        go = os.path.join(note("at-gpu"), "go")
        while not (cuda.is_initialized() or os.path.exists(go)):
            sleep(0.01)
        cuda._lazy_init = begin
        begin()

    cuda._lazy_init = wait


def spare_compiler():
    """Have torch.compile pass over the functions of this file."""
    import torch._C

    frames = getattr(torch._C._dynamo, "eval_frame", None)
    STEPS.set_eval_frame = getattr(frames, "set_eval_frame", None)
    for function in [*vars(Steps).values(), *globals().values()]:
        if hasattr(frames, "skip_code") and hasattr(function, "__code__"):
            frames.skip_code(function.__code__)


def uncompiled(method):
    """Have torch.compile pass over what a method calls, too."""

    def wrapped(self, *arguments):
        if self.set_eval_frame is None:
            return method(self, *arguments)
        before = self.set_eval_frame(None)
        try:
            return method(self, *arguments)
        finally:
            self.set_eval_frame(before)

    return wrapped


def wrap_step(module, name):
    """Have each return of a function end a step. name: of it, with dots where it is a method."""
    *owners, last = name.split(".")
    owner = functools.reduce(getattr, owners, module)
    function = getattr(owner, last)
    STEPS.lead = STEP

    @functools.wraps(function)
    def wrapped(*arguments, **keywords):
        found = function(*arguments, **keywords)
        STEPS.end_step()
        return found

    setattr(owner, last, wrapped)


class Steps:
    """The steps of this process.

    lead: what the optimizer is known by whose steps end a training step: the one of them that steps
    least often. leader: that optimizer.
    stamps: when the turn began, and when each of its steps ended. goal: steps until `reached`.
    timed: how many timed steps follow the untimed ones that are taken; 0: these are timed.
    after_mark: the goal that is put back after a marked step on a GPU, whose end is waited for.
    workers: processes that this one has started by multiprocessing, at most.
    marks: what happened in a step besides training, by its number; marking: of what that is noted.
    usual: seconds of a step in the last turn. used: devices, listed when the turn begins, so that
    its end is not delayed.
    batches: sees what the first steps take; taken: what it saw; unscaled: whether they compute in
    float16 without a GradScaler. watch: sees in what they compute,
    if that is asked for. ends: end what sees them. script: what it has of the cures, if that is
    asked for. besides: what costs time, too.
    recorder: records the first steps, until a turn comes that it is not to.
    depth, entered: of blocks without gradients, and when the outermost began.
    """

    def __init__(self):
        self.lead = self.leader = self.socket = self.after_mark = self.set_eval_frame = None
        self.stamps, self.goal, self.timed = [], 0, 0
        self.marks, self.marking = {}, ()
        self.first, self.began = {}, 0.0  # steps by optimizer before one leads, and since when
        self.made = None  # optimizers that there were then, whether or not they had taken steps
        self.others, self.since, self.seen = {}, 0, set()  # those of others since the last step
        self.buffer, self.replayed, self.steps, self.workers = b"", False, 1, 0
        self.used, self.watch, self.ends, self.script = [], None, [], None
        self.recorder = None
        self.batches = self.taken = None
        self.unscaled = False
        self.besides = None
        self.usual, self.depth, self.entered, self.thread = 0.0, 0, 0.0, get_ident()

    def after_step(self, optimizer, args, kwargs):
        """The end of an optimizer's step, unless that is a part of another one's."""
        if steps_around() > 1:
            return
        name = weights_of(optimizer)
        if name != self.lead:
            self.other(name, optimizer)
            return
        self.leader = optimizer
        self.end_step()

    def end_step(self):
        self.stamps.append(perf_counter())
        if self.batches is not None:
            self.note_batch(self.lead)
        if len(self.stamps) > self.goal:
            self.reached()

    @uncompiled
    def note_batch(self, name):
        self.batches.step_ends(name)

    @uncompiled
    def other(self, name, optimizer):
        """A step of an optimizer that does not lead, or not yet."""
        if self.batches is not None:
            self.note_batch(name)
        if self.socket is None:
            self.connect()
        if self.lead is None:
            self.choose(name, optimizer)
            return
        if self.since != len(self.stamps):
            self.since, self.others = len(self.stamps), {}
        self.seen.add(id(optimizer))
        self.others[name] = self.others.get(name, 0) + 1
        if self.others[name] > SELDOM:  # the one that led is gone, or is no step's end
            self.lead = name
            self.mark("another optimizer")

    def choose(self, name, optimizer):
        """Count steps by optimizer, and let the rarest lead; of equals, the one that came last."""
        self.first[name] = self.first.pop(name, 0) + 1
        counts = [*self.first.values()]
        enough = FIRST if len(counts) == 1 or min(counts) > 1 else SELDOM
        if sum(counts) >= FEW and not group():  # ranks choose alike
            if self.made is None:
                self.made = optimizers()
            waits = len(self.made | self.first.keys()) - len(counts)
            if perf_counter() - self.began > PATIENCE or len(counts) + waits == 1:
                enough = FEW
            elif waits:
                enough = SELDOM
        if os.environ.get(ONE):
            enough = 1
        if sum(counts) >= enough or self.capturing():
            fit = min(count for count in counts if SELDOM * count >= sum(counts))
            self.lead = [each for each, count in self.first.items() if count == fit][-1]
            self.first, self.steps = {}, fit
            self.begin(self.goal, self.timed)

    def end_watch(self):
        """End what sees the first steps, when the first turn ends: it is known then what a step is.

        Networks of some optimizers come after the first step.
        """
        while self.ends:
            self.ends.pop()()
        if self.recorder is not None:
            self.recorder.go_on()
        if self.batches is not None:
            self.taken, self.unscaled = self.batches.taken(self.lead), self.batches.unscaled
        self.batches = None

    @uncompiled
    def reached(self):
        """The end of a turn, of the steps before the timed ones, or of a marked step on a GPU."""
        if self.capturing():
            self.stamps.pop()
            return
        if self.socket is None:
            self.connect()
            return
        if self.ends:
            self.end_watch()
        queued = perf_counter()
        settle(self.used)
        self.stamps[-1] = perf_counter()
        if self.after_mark is not None:
            self.goal, self.after_mark = self.after_mark, None
            if len(self.stamps) <= self.goal:
                return
        self.steps += len(self.stamps) - 1
        self.usual = (self.stamps[-1] - self.stamps[0]) / (len(self.stamps) - 1)
        if self.timed:
            self.begin(0, self.timed)
            return
        ends = zip(self.stamps[:-1], self.stamps[1:])  # noqa: B905
        self.send(
            {
                "seconds": [end - begin for begin, end in ends],
                "marks": self.marks,
                "steps": self.steps,
                "optimizers": len({id(self.leader), *self.seen}),
                "workers": self.count_workers(),
                "waits": bool(self.used) and self.stamps[-1] - queued < LONG * self.usual,
                "besides": self.besides,
                "taken": self.taken,
                "memory": peak(self.used),
                "unscaled": self.unscaled,
            }
        )
        self.taken = None
        self.wait()

    def count_workers(self):
        import multiprocessing

        self.workers = max(self.workers, len(multiprocessing.active_children()))
        return self.workers

    def wait(self):
        """Wait for the next turn; the process ends with `ninefold bench`."""
        while b"\n" not in self.buffer:
            block = self.socket.recv(1 << 16)
            if not block:
                os._exit(1)
            self.buffer += block
        line, _, self.buffer = self.buffer.partition(b"\n")
        order = json.loads(line)
        self.marking, self.used = order["marking"], [*devices()]
        if self.recorder is not None and not order["records"]:
            self.recorder.end()
            self.recorder = None
        settle(self.used)
        self.begin(order["lead"], order["steps"])

    def begin(self, untimed, timed):
        """Begin so many steps that are not timed, and then so many that are."""
        self.goal, self.timed = (untimed, timed) if untimed else (timed, 0)
        self.marks, self.after_mark = {}, None
        self.others, self.since, self.seen = {}, 0, set()
        self.stamps = [perf_counter()]

    def connect(self):
        """Say who this process is."""
        import socket

        os.register_at_fork(after_in_child=self.forget)
        torch = sys.modules.get("torch")
        mark_what_is_no_step()
        hello = self.hello(torch)
        used = [*devices()]
        settle(used)
        if used and group():  # NCCL's watchdog counts a pause as a collective's time
            sleep(WATCHED)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ[SOCKET])
        self.send(hello)
        self.began = perf_counter()
        self.wait()

    def hello(self, torch):
        ranks, origin = group(), os.environ.get(ORIGIN)
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        return {
            "rank": ranks.get_rank() if ranks else 0,
            "world": ranks.get_world_size() if ranks else 1,
            "torch": getattr(torch, "__version__", None),
            "cuda": bool(torch and torch.cuda.is_initialized()),
            "modules": [
                f for f in files if isinstance(f, str) and f.startswith(f"{origin}{os.sep}")
            ],
            "precision": self.watch and self.watch.said(),
            "strategy": self.batches and self.batches.said(),
            "script": self.script,
        }

    def send(self, message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def forget(self):
        """In a process that was forked from this one: it has no turns unless it takes steps."""
        if self.socket is not None:
            self.socket.close()
        lead, set_eval_frame = self.lead if self.lead == STEP else None, self.set_eval_frame
        watch, ends, script, recorder = self.watch, self.ends, self.script, self.recorder
        besides, batches = self.besides, self.batches
        self.__init__()
        self.lead, self.set_eval_frame = lead, set_eval_frame
        self.watch, self.batches = watch, batches
        self.ends, self.script, self.besides, self.recorder = ends, script, besides, recorder

    def capturing(self):
        """Whether this step only records a CUDA graph; its replays end steps from then on."""
        torch = sys.modules.get("torch")
        if not (torch and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            return False
        if not self.replayed:
            self.replayed, replay = True, torch.cuda.CUDAGraph.replay

            def replayed(graph):
                replay(graph)
                self.end_step()

            torch.cuda.CUDAGraph.replay = replayed
        return True

    def mark(self, what, begins=True):
        """Note what the step under way contains. begins: whether that begins now.

        On a GPU the steps before it end when the device has done them, and so does this one.
        """
        number = len(self.stamps) - 1
        if number < 0 or number in self.marks or what not in self.marking:
            return
        self.marks[number] = what
        if self.used and begins:
            settle(self.used)
            self.stamps[-1] = perf_counter()
            self.goal, self.after_mark = len(self.stamps), self.goal

    def enter(self):
        """A block without gradients begins."""
        if get_ident() == self.thread:
            self.depth += 1
            if self.depth == 1:
                self.entered = perf_counter()

    def leave(self):
        """It ends. In an optimizer's step it is a part of it (SOAP, Shampoo).

        On a GPU it is not marked: when its work began there is not known.
        """
        if get_ident() == self.thread:
            self.depth = max(self.depth - 1, 0)
            long = perf_counter() - self.entered > LONG * self.usual > 0
            if long and not self.depth and not self.used and not steps_around():
                self.mark("a block without gradients")


STEPS = Steps()


def group():
    """torch.distributed, if this process is one of several ranks."""
    torch = sys.modules.get("torch")
    found = torch.distributed if torch and torch.distributed.is_available() else None
    return found if found and found.is_initialized() else None


def weights_of(optimizer):
    """What an optimizer is known by, also if it is made anew: its first weight, how many it has.

    Of one that steps group by group (ZeRO), each group is known by its own.
    """
    first, count = optimizer, 0
    for group in optimizer.param_groups:
        trained = group["params"]
        if trained and not count:
            first = trained[0]
        count += len(trained)
    return id(first), count


def optimizers():
    """What all optimizers are known by, also those that have not taken a step."""
    import gc

    kind = getattr(sys.modules.get(OPTIMIZER), "Optimizer", ())
    try:
        return {weights_of(each) for each in gc.get_objects() if issubclass(type(each), kind)}
    except Exception:  # of a kind that is not known here
        return set()


def steps_around():
    """How many steps of optimizers are under way: two where one is a part of another (SAM)."""
    frame, steps = sys._getframe(1), 0
    while frame is not None:  # each has one function of torch around it
        if frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == OPTIMIZER:
            steps += 1
        frame = frame.f_back
    return steps


def devices():
    """The CUDA devices that this process uses."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        for number in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(number):
                yield number


def settle(used):
    """Wait until these devices have done what is queued."""
    for number in used:
        sys.modules["torch"].cuda.synchronize(number)


def peak(used):
    """Bytes that this process had at most: on a GPU those of tensors, else those that are resident.

    getrusage would return those of its parent, if they are more.
    """
    if used:
        return max(sys.modules["torch"].cuda.max_memory_allocated(number) for number in used)
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return 1024 * int(lines["VmHWM"].split()[0])


def mark_what_is_no_step():
    """Have evaluations, new passes over a loader and saves mark the step in which they happen."""
    torch = sys.modules.get("torch")
    if torch is None:
        return

    def marked(owner, name, what, marks=lambda *arguments: True):
        function = getattr(owner, name)

        @functools.wraps(function)
        def call(*arguments, **keywords):
            if marks(*arguments, *keywords.values()):
                STEPS.mark(what)
            return function(*arguments, **keywords)

        setattr(owner, name, call)

    def around(owner):
        enter, leave = owner.__enter__, owner.__exit__

        @functools.wraps(enter)
        def begin(self):
            STEPS.enter()
            return enter(self)

        @functools.wraps(leave)
        def end(self, *arguments):
            STEPS.leave()
            return leave(self, *arguments)

        owner.__enter__, owner.__exit__ = begin, end

    kind = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
    scaled = kind.step

    @functools.wraps(scaled)
    def step_of_scaler(scaler, optimizer, *arguments, **keywords):
        stamps, count = STEPS.stamps, len(STEPS.stamps)
        found = scaled(scaler, optimizer, *arguments, **keywords)
        leads = scaler.is_enabled() and weights_of(optimizer) == STEPS.lead
        if leads and STEPS.stamps is stamps and len(stamps) == count:
            STEPS.mark("a step that a GradScaler skipped", begins=False)
        return found

    kind.step = step_of_scaler
    around(torch.no_grad)
    around(torch.inference_mode)
    marked(torch.nn.Module, "train", "an evaluation", lambda module, mode=True: not mode)
    marked(torch, "save", "torch.save")
    if "torch.utils.data" in sys.modules:
        marked(torch.utils.data.DataLoader, "__iter__", "a new pass over a loader")
