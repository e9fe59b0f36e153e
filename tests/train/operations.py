"""What a CUDA graph is to a GPU, made of the operators that run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero"}  # the host would wait


class Operations:
    """Records the operators of a computation; replays them on the memory they were recorded with.

    As with a CUDA graph, a recorded computation has no effect until it is replayed, what the host
    does meanwhile is not repeated, numbers that it passes stay what they were, and an operator that
    reads a value cannot be recorded.

    recorded, replayed: how often.
    """

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def record(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        self.recorded += 1
        generator = torch.get_rng_state()
        with Recording() as recording:
            loss = compute()
        recording.undo()
        torch.set_rng_state(generator)

        def replay() -> None:
            self.replayed += 1
            recording.replay()

        return loss, replay


class Recording(TorchDispatchMode):
    """The operators that were called, with their arguments and results, all of them kept alive."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # by address: bytes, and a copy

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.overloadpacket.__name__ in READS:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        names = [each.name for each in function._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for argument in function._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._keep(given.get(argument.name))
        result = function(*args, **kwargs)
        self._calls.append((function, args, kwargs, result))
        return result

    def _keep(self, written: Any) -> None:
        for tensor in tree_leaves(written):
            if isinstance(tensor, Tensor) and address(tensor) not in self._before:
                content = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._before[address(tensor)] = (content, content.clone())

    def undo(self) -> None:
        """Give all memory that was written to its content before the first write."""
        for content, before in self._before.values():
            content.copy_(before)

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, recorded in self._calls:
            now = function(*args, **kwargs)
            for old, new in zip(tree_leaves(recorded), tree_leaves(now), strict=True):
                # Else it is a view of an argument, or the argument itself.
                if isinstance(old, Tensor) and address(old) != address(new):
                    old.copy_(new)


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
