"""Batches that no tree of tensors holds, as a `collate_fn` may make them. Imports no torch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import cloudpickle

from ninefold.errors import ConfigError
from ninefold.tree import each

Collate = Callable[[list[Any]], Any]


class Collated:
    """A batch that `collate_fn` made of some items, in the place of a tensor with a row per item.

    Its value is whatever `collate_fn` returned. That may have no dimension of items, so a slice
    calls `collate_fn` again, with the sliced items. Items are not sent between processes: a batch
    that a worker process has read cannot be sliced.
    """

    dtype = "collated"

    def __init__(self, items: list[Any], collate: Collate, value: Any) -> None:
        """value: what `collate` has returned of `items`."""
        self._items, self._collate, self._count = items, collate, len(items)
        self._value = value
        self._packed: Any = None
        self._device: Any = "cpu"

    @property
    def value(self) -> Any:
        """What `collate_fn` has returned, on the device of the batch."""
        if self._packed is not None:
            self._value, self._packed = pickle.loads(self._packed.numpy()), None
        return self._value

    @property
    def device(self) -> Any:
        """The torch.device that it was moved to."""
        from torch import device

        return device(self._device)

    @property
    def shape(self) -> tuple[int, ...]:
        """[n]: nothing else is known of it."""
        return (self._count,)

    @property
    def nbytes(self) -> int:
        """Bytes that a worker process hands over; 0 if it cannot."""
        try:
            return len(self._pickled())
        except Exception:  # the class is the caller's, and need not be pickled without a worker
            return 0

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"a collated batch of {self._count}"

    def __getitem__(self, some: slice) -> Collated:
        items = self._items[some]
        return Collated(items, self._collate, self._collate(items[:]))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_items": [], "_collate": None}

    def share_memory_(self) -> Collated:
        """Pack the value into shared memory, where another process finds it."""
        from torch import frombuffer, uint8

        packed = frombuffer(bytearray(self._pickled()), dtype=uint8)
        self._packed, self._value = packed.share_memory_(), None
        return self

    def pin_memory(self) -> Collated:
        """Return it with its tensors in page-locked memory."""
        return self._with(lambda leaf: leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf)

    def to(self, device: Any, non_blocking: bool = False) -> Collated:
        """Return it with what has a method `to` on the device."""
        from torch import Tensor

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return leaf.to(device, non_blocking=non_blocking)
            return leaf.to(device) if hasattr(leaf, "to") else leaf

        found = self._with(moved)
        found._device = device
        return found

    def in_dtype(self, dtype: Any) -> Collated:
        """Return it with floats in its tensors and packed sequences in a dtype."""
        from torch import Tensor
        from torch.nn.utils.rnn import PackedSequence

        def cast(leaf: Any) -> Any:
            floats = leaf.data if isinstance(leaf, PackedSequence) else leaf
            known = isinstance(floats, Tensor) and floats.is_floating_point()
            return leaf.to(dtype) if known else leaf

        return self._with(cast)

    def chunk(self, count: int) -> Sequence[Collated]:
        """Return it as the only part. Raises ConfigError if there are to be several."""
        if count == 1:
            return (self,)
        wrong = f"a batch with text, or of a collate_fn, cannot be cut into {count} parts"
        allowed = "each process collates its own examples"
        do = "leave out parallel=dp and accumulate, or the text and the collate_fn"
        raise ConfigError("dataset", self.dtype, wrong, allowed, do)

    def _pickled(self) -> bytes:
        from torch import Tensor

        def alone(leaf: Any) -> Any:
            """A view without the rest of its memory, which would be pickled with each."""
            view = isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes() > leaf.nbytes
            return leaf.clone() if view else leaf

        # Classes of a notebook go by value.
        found: bytes = cloudpickle.dumps(_changed(alone, self.value), protocol=5)
        return found

    def _with(self, change: Callable[[Any], Any]) -> Collated:
        found = copy.copy(self)
        found._value, found._packed = _changed(change, self.value), None
        return found


def _changed(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `change` of its leaves, of which one is whatever has a method `to`: of a packed
    sequence, which is a tuple, a part stays on the CPU. Fields of dataclasses are looked through.
    """

    def changed(leaf: Any) -> Any:
        if not is_dataclass(leaf) or isinstance(leaf, type) or hasattr(leaf, "to"):
            return change(leaf)
        found = copy.copy(leaf)  # which may be frozen, or be made in its own way
        for at in fields(leaf):
            object.__setattr__(found, at.name, _changed(change, getattr(leaf, at.name)))
        return found

    return each(changed, value, is_leaf=lambda inner: hasattr(inner, "to"))
