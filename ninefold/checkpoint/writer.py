"""Checkpoints written beside the training, which waits for a copy and not for the disk."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninefold.checkpoint.store import Checkpoints

SMALL = 1 << 16  # bytes of a tensor that needs no memory of a kind of its own
# What the writing thread leaves to the steps. Beside steps that keep both of two cores busy a write
# of 684 MB takes 3.4 s (with 0: 2.1), they run at 0.75 of their speed (0.44), and lose 0.9 s (1.1).
NICE = 5


class Saver:
    """Copies what is to be saved, and writes the copy in a thread while the training goes on.

    One at a time: the next save waits for the write before it. What goes wrong with a write is kept
    until somebody waits for it; `failed` tells, at next to no cost, that there is such a thing.

    The thread neither logs nor prints nor computes with torch's threads, so whatever moment a
    loader process is forked at, no lock that it needs is held by a thread that it does not have.
    """

    def __init__(self, checkpoints: Checkpoints, device: torch.device) -> None:
        self.checkpoints = checkpoints
        self._staging = Staging(device)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        return self._error is not None

    def reserve(self, content: Mapping[str, Any]) -> None:
        """Take the memory that saving the like of `content` needs, before there is any hurry."""
        self._staging.copy(content)

    def save(self, content: Mapping[str, Any], best: bool) -> None:
        """Begin to write a copy of `content`; see `Checkpoints.save`.

        Waits for the write before it, and raises what went wrong with that.
        """
        self.wait()
        staged = self._staging.copy(content)
        # Not a daemon: the interpreter does not go down while it is inside torch.
        self._thread = threading.Thread(target=self._write, args=(staged, best), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when what was saved is on disk, or raise why it is not (once)."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, content: Mapping[str, Any], best: bool) -> None:
        if sys.platform == "linux":  # where this is the thread's own and not the process's
            os.nice(NICE)
        try:
            self.checkpoints.save(content, best)
        except BaseException as error:
            self._error = error


class Staging:
    """Memory on the host that one copy after another is taken to: it is its first use that costs.

    Beside a GPU it is pinned (in sizes that torch rounds up to powers of two), and the copies are
    queued behind the work that they are of and awaited together.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[Tensor] = []

    def copy(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """`content` with its tensors copied to here; the copy before it is overwritten."""
        taken = 0

        def take(tensor: Tensor) -> Tensor:
            nonlocal taken
            if taken == len(self._buffers):
                self._buffers.append(_room(tensor))
            elif not _fits(tensor, self._buffers[taken]):
                self._buffers[taken] = _room(tensor)
            buffer = self._buffers[taken]
            taken += 1
            return buffer.copy_(tensor, non_blocking=True)

        staged: dict[str, Any] = copied(content, take)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return staged


def _room(like: Tensor) -> Tensor:
    """Memory on the host for a copy of `like`, laid out as it is."""
    if like.is_cuda:
        return torch.empty_like(like, device="cpu", pin_memory=True)
    if like.nbytes < SMALL:
        return torch.empty_like(like)
    # Shared with the loader processes that are forked: of private memory they would hold on to a
    # second copy, and each page would be made anew at the next save.
    memory = torch.frombuffer(mmap.mmap(-1, like.nbytes), dtype=torch.uint8)
    return memory.view(like.dtype).as_strided(like.shape, _strides(like))


def _fits(tensor: Tensor, buffer: Tensor) -> bool:
    return (
        buffer.dtype == tensor.dtype
        and buffer.shape == tensor.shape
        and buffer.stride() == _strides(tensor)
        and (buffer.is_pinned() or not tensor.is_cuda)
    )


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Those of a copy of `tensor`: its own, if it fills its memory."""
    return torch.empty_like(tensor, device="meta").stride()


def copied(tree: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """`tree` in containers of its own, with what `copy` makes of its tensors, in a fixed order."""
    if isinstance(tree, Tensor):
        return copy(tree.detach())
    if isinstance(tree, Mapping):
        return {key: copied(value, copy) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [copied(value, copy) for value in tree]
    return tree
