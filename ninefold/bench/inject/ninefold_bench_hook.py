"""Tells `ninefold bench` where the training steps of this process end, and waits there for a turn.

It runs in the Python of the compared command, so it is for Python 3.9 and later, imports nothing
but the standard library, and uses the torch that the command has imported.

Messages are lines of JSON. At the first step's end this process says who it is (`Steps.hello`).
Then it waits for {"lead": n, "steps": n, "records": whether, "marking": [what is left out]}, takes
`lead` steps that are not timed and `steps` that are, and answers {"seconds": [of each timed step],
"marks": {number: what it contained}, ...}. On a GPU each step ends at an event in its stream, and
the host waits once, behind the last one: a queue that is drained at both ends would be short in
between, and a step that waits for its host slower than in a long run.
"""

import functools
import inspect
import itertools
import json
import os
import sys
from time import perf_counter, sleep

import ninefold_bench_changes
from ninefold_bench_calls import Calls, pass_over, uncompiled
from ninefold_bench_devices import Devices, capturing, unfinished
from ninefold_bench_ranks import Waits

SOCKET, STEP = "NINEFOLD_BENCH", "NINEFOLD_BENCH_STEP"
RECORD = "NINEFOLD_BENCH_RECORD"  # a file: what is recorded of the first steps
ONE = "NINEFOLD_BENCH_ONE_OPTIMIZER"  # that there is no other one was seen in a process before
ORIGIN = "NINEFOLD_BENCH_ORIGIN"  # a folder: the files of modules below it are told
ENVIRONMENT = {**os.environ}  # as it is now: the script may clear its own
CUDA, OPTIMIZER, MODULE = "torch.cuda", "torch.optim.optimizer", "torch.nn.modules.module"
FIRST, SELDOM = 16, 64  # steps by which one optimizer is chosen to lead; if another is seldom
PASSES = 300  # backward passes before a step: more than gradients are accumulated over
FEW, PATIENCE = 4, 20.0  # steps that suffice if there is one optimizer, or after so many seconds
WATCHED = 0.2  # seconds: NCCL's watchdog looks every 0.1
# Of `Steps`, what was set before the first step: a forked process goes on with it.
KEPT = "watch", "batches", "ends", "script", "recorder"
SOON = 0.5  # of a step: a GPU that has done what is queued sooner waits for its host


def loaded(module):
    """Change a module that was loaded as far as this command asks for."""
    calls = Calls(module.Module) if module.__name__ == MODULE else None
    ninefold_bench_changes.change(module, calls, STEPS)
    if ENVIRONMENT.get(RECORD):
        import ninefold_bench_record

        ninefold_bench_record.loaded(module, calls)
        STEPS.recorder = ninefold_bench_record.RECORDER
    step, _, function = ENVIRONMENT.get(STEP, "").partition(":")
    if module.__name__ == CUDA:
        wait_for_gpu(module)
    if module.__name__ == OPTIMIZER:
        note("torch")
        own = (vars(Steps), vars(Devices), vars(Waits), globals())
        functions = (each for names in own for each in names.values())
        pass_over(*(each for each in functions if hasattr(each, "__code__")))
        if not step:
            count_passes(sys.modules["torch.autograd"])
            module.register_optimizer_step_post_hook(STEPS.after_step)
    if module.__name__ == step:
        wrap_step(module, function)
    if calls:
        import ninefold_bench_batches

        STEPS.batches = ninefold_bench_batches.Batches(calls)
        STEPS.ends += [calls.end, STEPS.batches.end]


def note(name):
    """Put an empty file beside the socket; returns the folder."""
    folder = os.path.dirname(ENVIRONMENT[SOCKET])
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


def count_passes(autograd):
    """Note, for who waits for the first step, that many passes came where no optimizer is."""
    backward, passes, process = autograd.backward, itertools.count(1), os.getpid()

    @functools.wraps(backward)
    def counted(*arguments, **keywords):
        many = STEPS.socket is None and next(passes) == PASSES
        if many and os.getpid() == process and not optimizers():  # a loader's worker has none
            note("passes")
        return backward(*arguments, **keywords)

    pass_over(counted)
    autograd.backward = counted


def wrap_step(module, name):
    """Have each return of a function end a step. name: of it, with dots where it is a method."""
    *owners, last = name.split(".")
    try:
        owner = functools.reduce(getattr, owners, module)
        function, held = getattr(owner, last), inspect.getattr_static(owner, last)
    except AttributeError:
        raise SystemExit(f"ninefold bench --step: {module.__name__} has no {name}") from None
    STEPS.lead = STEP
    kind = type(held) if isinstance(held, (staticmethod, classmethod)) else None
    function = held.__func__ if kind else function

    @functools.wraps(function)
    def wrapped(*arguments, **keywords):
        found = function(*arguments, **keywords)
        if STEPS.socket is None:
            STEPS.returned = found
        uncompiled(STEPS.end_step)
        return found

    setattr(owner, last, kind(wrapped) if kind else wrapped)


class Steps:
    """The steps of this process.

    lead: what the optimizer is known by whose steps end a training step: the one of them that steps
    least often. leader: that optimizer.
    stamps: when the turn began, and when each of its steps ended, as of `Devices.now`. goal: its
    steps; untimed: those of them that are not timed.
    workers: processes that this one has started by multiprocessing, at most.
    marks: what happened in a step besides training, by its number; marking: of what that is noted.
    used: devices, listed when the turn begins, so that its end is not delayed. returned: what the
    function of the first step has.
    batches: sees what the first steps take; taken: what it saw; unscaled: whether they compute in
    float16 without a GradScaler. watch: sees in what they compute,
    if that is asked for. ends: end what sees them. script: what it has of the changes, if that is
    asked for.
    recorder: records the first steps, until a turn comes that it is not to. starts: whether none
    has come.
    averaging: sees how long this rank waits for others, until a turn comes that has a lead.
    """

    def __init__(self):
        self.lead = self.leader = self.socket = None
        self.stamps, self.goal, self.untimed = [], 0, 0
        self.marks, self.marking = {}, ()
        self.first, self.began = {}, 0.0  # steps by optimizer before one leads, and since when
        self.made = None  # optimizers that there were then, whether or not they had taken steps
        self.others, self.since, self.seen = {}, 0, set()  # those of others since the last step
        self.buffer, self.replayed, self.steps, self.workers = b"", False, 1, 0
        self.used, self.watch, self.ends, self.script = None, None, [], None
        self.recorder, self.starts = None, True
        self.batches = self.taken = self.returned = None
        self.unscaled = False
        self.averaging = Waits(self)

    def after_step(self, optimizer, args, kwargs):
        """The end of an optimizer's step, unless that is a part of another one's."""
        if steps_around() > 1:
            return
        name = weights_of(optimizer)
        if name != self.lead:
            uncompiled(self.other, name, optimizer)
            return
        self.leader = optimizer
        uncompiled(self.end_step)

    def end_step(self):
        if self.records():
            return
        self.stamps.append(self.now())
        if self.batches is not None:
            self.batches.step_ends(self.lead)
        if len(self.stamps) > self.goal:
            self.reached()

    def now(self):
        return self.used.now() if self.used else perf_counter()

    def other(self, name, optimizer):
        """A step of an optimizer that does not lead, or not yet."""
        if self.batches is not None:
            self.batches.step_ends(name)
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
        if ENVIRONMENT.get(ONE):
            enough = 1
        if self.records() or sum(counts) >= enough:
            fit = min(count for count in counts if SELDOM * count >= sum(counts))
            self.lead = [each for each, count in self.first.items() if count == fit][-1]
            self.first, self.steps = {}, fit
            self.begin(self.untimed, self.goal - self.untimed)

    def end_watch(self):
        """End what sees the first steps, when the first turn ends: it is known then what a step is.

        Networks of some optimizers come after the first step.
        """
        while self.ends:
            self.ends.pop()()
        if self.batches is not None:
            self.taken, self.unscaled = self.batches.taken(self.lead), self.batches.unscaled
        self.batches = None

    def reached(self):
        """The end of a turn."""
        if self.socket is None:
            self.connect()
            return
        if self.ends:
            self.end_watch()
        queued = perf_counter()
        self.used.settle()
        waited = perf_counter() - queued
        seconds = self.used.between(self.stamps)
        self.steps += len(seconds)
        self.send(
            {
                "seconds": seconds[self.untimed :],
                "marks": {number - self.untimed: what for number, what in self.marks.items()},
                "steps": self.steps,
                "optimizers": len({id(self.leader), *self.seen}),
                "workers": self.count_workers(),
                "waits": bool(self.used) and waited < SOON * sum(seconds) / len(seconds),
                "taken": self.taken,
                "memory": self.used.peak(),
                "unscaled": self.unscaled,
                "waited": self.averaging.taken(self.used, len(seconds)),
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
        self.marking, self.used = order["marking"], Devices()
        if self.starts and not order["records"]:
            self.starts = False
            if self.recorder is not None:
                self.recorder.end()
                self.recorder = None
            self.used.forget_peak()  # of loading, and of what records
        if order["lead"]:
            self.averaging.end()
        elif self.leader is not None and group():
            self.averaging.begin(self.leader)
        self.begin(order["lead"], order["steps"])

    def begin(self, untimed, timed):
        """Begin so many steps that are not timed, and then so many that are.

        While a graph is recorded no event may be: the turn begins with the end of its first replay.
        """
        self.untimed, self.goal, self.marks = untimed, untimed + timed, {}
        self.others, self.since, self.seen = {}, 0, set()
        self.stamps = [] if capturing() else [self.now()]

    def connect(self):
        """Say who this process is."""
        import socket

        os.register_at_fork(after_in_child=self.forget)
        torch = sys.modules.get("torch")
        mark_what_is_no_step()
        self.used = Devices()
        hello = self.hello(torch)
        self.used.settle()
        self.returned = None
        if self.used and group():  # NCCL's watchdog counts a pause as a collective's time
            sleep(WATCHED)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(None)  # the script's default is of its own connections
        self.socket.connect(ENVIRONMENT[SOCKET])
        self.send(hello)
        self.wait()  # until the other commands stand, too
        self.began = perf_counter()

    def hello(self, torch):
        ranks, origin = group(), ENVIRONMENT.get(ORIGIN)
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        found = {
            "rank": ranks.get_rank() if ranks else 0,
            "world": ranks.get_world_size() if ranks else 1,
            "torch": getattr(torch, "__version__", None),
            "prefix": sys.prefix,
            "cuda": bool(self.used),
            "gpus": self.used.uuids,
            "unfinished": unfinished(self.returned),
            "modules": [
                f for f in files if isinstance(f, str) and f.startswith(f"{origin}{os.sep}")
            ],
            "precision": self.watch and self.watch.said(),
            "averages": self.batches and self.batches.averages,
            "script": self.script,
        }
        if self.script is not None:
            self.script.update(found["precision"], cuda=found["cuda"], world=found["world"])
        return found

    def send(self, message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def forget(self):
        """In a process that was forked from this one: it has no turns unless it takes steps."""
        if self.socket is not None:
            self.socket.close()
        kept = {name: getattr(self, name) for name in KEPT}
        lead = self.lead if self.lead == STEP else None
        self.__init__()
        vars(self).update(kept, lead=lead)

    def records(self):
        """Whether this step only records a CUDA graph; its replays end steps from then on."""
        if not capturing():
            return False
        if not self.replayed:
            graph = sys.modules["torch"].cuda.CUDAGraph
            self.replayed, replay = True, graph.replay

            def replayed(graph):
                replay(graph)
                uncompiled(self.end_step)

            graph.replay = replayed
        return True

    def mark(self, what):
        """Note what the timed step under way contains."""
        number = len(self.stamps) - 1
        if number >= self.untimed and what in self.marking:
            self.marks.setdefault(number, what)


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

    kind = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
    scaled = kind.step

    @functools.wraps(scaled)
    def step_of_scaler(scaler, optimizer, *arguments, **keywords):
        stamps, count = STEPS.stamps, len(STEPS.stamps)
        found = scaled(scaler, optimizer, *arguments, **keywords)
        leads = scaler.is_enabled() and weights_of(optimizer) == STEPS.lead
        if leads and STEPS.stamps is stamps and len(stamps) == count:
            STEPS.mark("a step that a GradScaler skipped")
        return found

    kind.step = step_of_scaler
    marked(torch.nn.Module, "train", "an evaluation", lambda module, mode=True: not mode)
    marked(torch, "save", "torch.save")
    if "torch.utils.data" in sys.modules:
        marked(torch.utils.data.DataLoader, "__iter__", "a new pass over a loader")
