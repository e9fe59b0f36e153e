"""The accelerators that this process computes on, and events at which they have done a step."""

import sys
from contextlib import suppress
from time import perf_counter


class Devices:
    """Those that this process has used so far; false where it computes on CPUs alone.

    module: of torch, such as torch.cuda, which ROCm has too, or torch.xpu. numbers: of the devices.
    """

    def __init__(self):
        torch = sys.modules.get("torch")
        self.module = module = in_use(torch)
        self.numbers = []
        if module is not None:
            each = range(module.device_count())
            self.numbers = [number for number in each if module.memory_reserved(number)]
            # Since torch 2.6 an event takes 1 µs of the host and not 4.
            quick = getattr(torch, "accelerator", None)
            self._event = torch.Event if quick else module.Event
            self._stream = (quick or module).current_stream

    def __bool__(self):
        return bool(self.numbers)

    @property
    def uuids(self):
        """What a driver knows them by, as far as torch tells."""
        found = map(self.module.get_device_properties, self.numbers) if self.numbers else ()
        return [str(each.uuid) for each in found if hasattr(each, "uuid")]

    def settle(self):
        """Wait until they have done what is queued."""
        for number in self.numbers:
            self.module.synchronize(number)

    def now(self):
        """When each of them has done what is queued in its current stream, or the host's time.

        A stream on which a step goes on after its end does so after each: of a whole turn of steps
        the time is the same.
        """
        moments = []
        for number in self.numbers:
            moments.append(self._event(enable_timing=True))
            moments[-1].record(self._stream(number))
        return moments or perf_counter()

    def between(self, moments):
        """Seconds from each moment of `now` to the next, on the device that takes longest in all.

        They have to be settled.
        """
        pairs = [*zip(moments[:-1], moments[1:])]  # noqa: B905, RUF007
        if not self:
            return [after - before for before, after in pairs]
        return max(
            (
                [before[at].elapsed_time(after[at]) / 1000 for before, after in pairs]
                for at in range(len(self.numbers))
            ),
            key=sum,
        )

    def peak(self):
        """Bytes of tensors that the fullest of them had at most; without one those of the process.

        All since `forget_peak`. getrusage would return those of its parent, if they are more.
        """
        if self:
            return max(map(self.module.max_memory_allocated, self.numbers))
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        return 1024 * int(lines["VmHWM"].split()[0])

    def forget_peak(self):
        """Have the peak of memory be that of what comes, and give back what is not used now."""
        if self:
            self.module.empty_cache()
        for number in self.numbers:
            self.module.reset_peak_memory_stats(number)
        with suppress(OSError), open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")


def in_use(torch):
    """torch's module of the accelerator that this process has begun to use; None without one.

    To ask CUDA whether there is a GPU may begin to use it, which breaks processes that are forked.
    """
    if torch is None:
        return None
    if torch.cuda.is_initialized():
        return torch.cuda
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    kind = accelerator.current_accelerator() if accelerator else None
    module = torch.get_device_module(kind) if kind is not None else None
    begun = getattr(module, "is_initialized", lambda: False)
    return module if begun() else None


def capturing():
    """Whether the current stream of CUDA records a graph, and computes nothing."""
    torch = sys.modules.get("torch")
    if not (torch and torch.cuda.is_initialized()):
        return False
    return torch.cuda.is_current_stream_capturing()


def unfinished(found):
    """Who still computes what a step has returned: "jax", or "torch_xla", which cannot be asked."""
    jax = sys.modules.get("jax")
    arrays = jax.tree_util.tree_leaves(found) if jax else ()
    if not all(each.is_ready() for each in arrays if hasattr(each, "is_ready")):
        return "jax"
    return "torch_xla" if "torch_xla" in sys.modules else None
