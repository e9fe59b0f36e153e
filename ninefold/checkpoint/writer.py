"""The async checkpoint writer: training waits for a copy of its state, not for the disk."""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ninefold.checkpoint.store import Checkpoints
from ninefold.engine.state import copied
from ninefold.progress import say


class Writer(ABC):
    """What a run saves its checkpoints with; what goes wrong in a save is told by the next `wait`.

    spread: whether every process calls `save`, with its own parts of the tensors that the strategy
    spreads; else rank 0 does, with whole ones.
    """

    spread: ClassVar[bool] = False

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether there is an error that the next `wait` raises."""
        return self._error is not None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written at this moment."""
        return False

    def reserve(self, content: Mapping[str, Any]) -> None:
        """Allocate the memory for copies of contents like this one, if it makes any."""
        return

    @abstractmethod
    def save(self, content: Mapping[str, Any], best: bool) -> None:
        """Save `content`, see `Checkpoints.save`; first `wait` for the save before."""

    def wait(self) -> None:
        """Wait until the latest save is on disk; raises its error, once, if it failed."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class AsyncWriter(Writer):
    """Copies a checkpoint's content and writes the copy in a thread while training continues.

    Only one write at a time: the next `save` waits for the previous one.

    The thread neither logs nor prints nor computes with torch's threads. So a process that a
    dataset forks never waits for a lock that this thread held at that moment.
    """

    def __init__(self, checkpoints: Checkpoints, device: torch.device) -> None:
        super().__init__(checkpoints)
        self._staging = Staging(device)
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def reserve(self, content: Mapping[str, Any]) -> None:
        self._staging.copy(content)

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        self.wait()
        staged = self._staging.copy(content)
        # Not a daemon: the interpreter must not shut down while the thread is inside torch.
        self._thread = threading.Thread(target=self._write, args=(staged, best), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        super().wait()

    def _write(self, content: Mapping[str, Any], best: bool) -> None:
        # While training keeps both of two cores busy, a write of 684 MB takes 3.4 s (2.1 s with
        # niceness 0); the steps run at 0.75 of their speed (0.44 with 0) meanwhile and lose 0.9 s
        # in all (1.1 s with 0).
        if sys.platform == "linux":  # elsewhere niceness is of the process
            os.nice(5)
        try:
            self.checkpoints.save(content, best)
        except BaseException as error:
            self._error = error


class Staging:
    """Host memory for a checkpoint's copy, used again for each, as the first use of memory is slow.

    It is one block, of which each tensor's copy has a part, and each part is a storage of its own:
    so a checkpoint is saved in the bytes of any other copy. For a GPU the block is page-locked, in
    one piece; the copies are queued in the stream, behind the work that produces their values, and
    awaited together.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._block: Pages | None = None
        self._shapes: list[Shape] = []
        self._parts: list[Tensor] = []

    def copy(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """`content` with its tensors copied here; it overwrites the previous copy."""
        shapes: list[Shape] = []
        gpus: set[torch.device] = set()

        def measure(tensor: Tensor) -> Tensor:
            shapes.append(Shape.of(tensor))
            gpus.update([tensor.device] if tensor.is_cuda else [])
            return tensor

        copied(content, measure)
        if shapes != self._shapes:
            self._arrange(shapes)
        parts = iter(self._parts)
        staged: dict[str, Any] = copied(
            content, lambda tensor: next(parts).copy_(tensor, non_blocking=True)
        )
        for gpu in gpus:  # a network may have parts on several
            torch.cuda.synchronize(gpu)
        return staged

    def _arrange(self, shapes: list[Shape]) -> None:
        """Give each tensor its part, of the block that there is if it is large enough."""
        places, size = arranged([shape.nbytes for shape in shapes])
        if self._block is None or size > self._block.size:
            self._parts, self._block = [], None  # freed before as much is taken again
            self._block = Pages(size, self._device)
        self._shapes = shapes
        self._parts = [
            self._block.part(place, shape) for place, shape in zip(places, shapes, strict=True)
        ]


@dataclass(frozen=True)
class Shape:
    """What a copy of a tensor has in common with it: all but its values and its device."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Shape:
        """Its own strides if it is dense, else those of empty_like."""
        strides = torch.empty_like(tensor, device="meta").stride()
        return cls(tensor.dtype, tuple(tensor.shape), strides)

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize


def arranged(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where parts of these `sizes` begin in a block, each aligned, and the size of the block."""
    aligned = 64  # bytes: a cache line, and any dtype
    places, end = [], 0
    for size in sizes:
        start = -(-end // aligned) * aligned
        places.append(start)
        end = start + size
    return places, end


class Pages:
    """`size` bytes of memory that is not malloc's: whole pages, page-locked for a GPU."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        # Shared, as a forked process would have each page of private memory copied when it changes.
        self._memory = mmap.mmap(-1, max(size, 1))
        if device.type == "cuda":
            address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
            if code := lock(address, len(self._memory), device):
                why = torch.cuda.CudaError(code)
                say(f"note: the GPU cannot lock memory here ({why}); saving takes longer")
            else:
                weakref.finalize(self, unlock, address).atexit = False

    def part(self, place: int, shape: Shape) -> Tensor:
        """A tensor of this shape, in a storage of exactly its bytes that begins at `place`."""
        if not shape.nbytes:
            return torch.empty_strided(shape.sizes, shape.strides, dtype=shape.dtype)
        count = shape.nbytes
        part = torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=place)
        return part.view(shape.dtype).as_strided(shape.sizes, shape.strides)


def lock(address: int, size: int, device: torch.device) -> int:
    """Lock the pages of this memory, so that copies from a GPU need not wait.

    Returns CUDA's error code, 0 if there is none. Sandboxes such as gVisor refuse to lock memory,
    and so does a limit on it.
    """
    portable = 1  # cudaHostRegisterPortable: page-locked for every GPU of the process
    code = int(torch.cuda.cudart().cudaHostRegister(address, size, portable))
    if code:
        with suppress(RuntimeError):  # CUDA keeps an error until it is asked: by any next kernel
            torch.ones(1, device=device)
    return code


def unlock(address: int) -> None:
    """Unlock what `lock` has locked; an error is no reason to fail, as nobody uses it any more."""
    torch.cuda.cudart().cudaHostUnregister(address)
