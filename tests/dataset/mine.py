"""Map-style datasets as users write them, right and wrong; named by dataset=mapped in the tests."""

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset


class Digits(Dataset[Any]):
    """Images 8x8 of noise that grows with the class; the transforms draw from three generators."""

    def __init__(self, count: int = 96, seed: int = 0, moves: bool = True) -> None:
        draw = np.random.default_rng(seed)
        self.labels = draw.integers(0, 10, count)
        self.images = draw.normal(self.labels[:, None, None, None], 3, (count, 1, 8, 8))
        self.moves = moves

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        image = torch.from_numpy(self.images[number].astype(np.float32) / 10)
        if self.moves:
            image = image.flip(1) if torch.rand(()) < 0.5 else image
            image = image * random.uniform(0.8, 1.2) + np.random.normal(0, 0.1)
        return image, int(self.labels[number])


class RandomTargets(Digits):
    """Images that stay, with targets that move."""

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return np.float32(self.images[number]), random.random()


class Slow(Digits):
    """Digits, at some milliseconds an item."""

    def __getitem__(self, number: int) -> tuple[Any, int]:
        time.sleep(0.005)
        return super().__getitem__(number)


class Owned(Dataset[Any]):
    """Items that tell which process has read them, and which one has read the first of all."""

    def __init__(self) -> None:
        self.first: int | None = None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        self.first = self.first or os.getpid()
        return np.zeros((1, 1, 1), np.uint8), np.array([os.getpid(), self.first], np.float64)


class Odd(BaseException):
    """No Exception, as those of some libraries that stop a program."""


class Unsaid(Exception):
    """Fails to say what is wrong."""

    def __str__(self) -> str:
        raise AttributeError("no such message")


class Failing(Dataset[Any]):
    """Item 20 ends what reads it, or keeps it for ever, or is all that is there."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> tuple[Any, int]:
        if number == 20:
            getattr(self, self.how)()
        return np.full((1, 8, 8), number, np.uint8), number % 10

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def realtime(self) -> None:
        os.kill(os.getpid(), signal.SIGRTMIN + 5)

    def crash(self) -> None:
        ctypes.string_at(0)

    def leave(self) -> None:
        os._exit(0)

    def hang(self) -> None:
        time.sleep(600)

    def raise_(self) -> None:
        raise KeyError("cat")

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    def generator(self) -> None:
        raise GeneratorExit("of mine")

    def odd(self) -> None:
        raise Odd("of a library")

    def unsaid(self) -> None:
        raise Unsaid

    def child(self) -> None:
        if not os.fork():
            time.sleep(600)

    def write(self) -> None:
        """Write into the pipe of its worker, as what closes a descriptor of another's does."""
        frame: Any = sys._getframe()
        while "data_queue" not in frame.f_locals:
            frame = frame.f_back
        frame.f_locals["data_queue"]._writer.send_bytes(b"what")


class Item(Dataset[Any]):
    """`count` items of one kind, of which number `odd` is another."""

    def __init__(self, kind: str, odd: int | None = None, odd_kind: str = "", count: int = 48):
        self.kind, self.odd, self.odd_kind, self.count = kind, odd, odd_kind, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return made(self.odd_kind if number == self.odd else self.kind, number)


def in_itself() -> Any:
    found: dict[str, Any] = {"a": np.zeros(2)}
    found["b"] = found
    return found


class Graph:
    """An object that no tensor holds."""


class Shapeless(torch.Tensor):
    """A tensor that does not say its shape, as nested ones."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("it has none")


def made(kind: str, number: int) -> Any:
    """An item of a kind: an image [3, 6, 4] and the class `number` % 5, or what its name says."""
    random = np.random.default_rng(number)
    values, label = random.integers(0, 256, (3, 6, 4), dtype=np.uint8), number % 5
    last, decimals = values.transpose(1, 2, 0), values / 255
    row = torch.from_numpy(random.normal(size=6)).float()
    tokens, numbers = torch.from_numpy(random.integers(0, 11, 8)), random.integers(0, 5, 2)
    image, sign = random.integers(0, 256, (3, 8, 8), dtype=np.uint8), int(row.sum() > 0)
    kinds: dict[str, Callable[[], Any]] = {
        "image": lambda: (values, label),
        "tensor": lambda: (torch.from_numpy(values), np.uint8(label)),
        "floats": lambda: (decimals, label),
        "mapping": lambda: {"image": values, "label": label, "name": "x"},
        "mask": lambda: (values, (values[0] % 5).astype(np.int64)),
        "void mask": lambda: (values, np.repeat([[0, 1, 2, 255]], 6, axis=0)[:, ::-1].copy()),
        "black and white": lambda: (values, (values[0] > 127) * np.uint8(255)),
        "points": lambda: (decimals, np.full((2, 2), number, np.float64)),
        "multi-hot": lambda: (row, np.eye(5)[label]),
        "labels": lambda: (row, torch.tensor([label % 2, 1, 0])),
        "masks of labels": lambda: (values, values > 127),
        "next tokens": lambda: (tokens, tokens),
        "table": lambda: (row, row.sum()),
        "features": lambda: ({"x_cont": row, "x_cat": numbers}, row[:3]),
        "other order": lambda: ({"x_cat": numbers, "x_cont": row}, row[:3]),
        "pair": lambda: ((row, row * 2), {"sum": row.sum(), "class": sign}),
        "words": lambda: {"ids": tokens, "mask": tokens > 3, "label": sign, "name": "x"},
        "next": lambda: ((tokens[:-1], tokens[1:]), tokens[1:]),
        "alone": lambda: row.sigmoid(),
        "image and row": lambda: ({"image": image, "row": row}, sign),
        "three in a row": lambda: (row, row * 2, row.sum()),
        "labeled": lambda: (row.sigmoid(), sign),
        # of no use
        "hwc": lambda: (last, label),
        "pil": lambda: (Image.fromarray(last), label),
        "pil mask": lambda: (values, Image.fromarray(values[0])),
        "text": lambda: (values, "cat"),
        "list": lambda: ({"input_ids": tokens.tolist()}, label),
        "graph": lambda: Graph(),
        "decimal": lambda: (values, Decimal(1)),
        "shapeless": lambda: (torch.ones(3).as_subclass(Shapeless), label),
        "none": lambda: (values, None),
        "empty": lambda: (values, np.zeros(0)),
        "in itself": lambda: (in_itself(), row),
        "other shape": lambda: (values[:, :3], label),
        "no target": lambda: (values,),
        "large class": lambda: (values, 12),
        "large mask": lambda: (values, np.full((6, 4), 12)),
        "no label": lambda: {"image": values},
        "exit": lambda: sys.exit(3),
        "raises": lambda: {}["cat"],
        "less": lambda: ({"x_cont": row}, row[:3]),
    }
    return kinds[kind]()


class Raising:
    """Cannot be built."""

    def __init__(self, path: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)


class Endless(Item):
    """Says that it has more items than any order of them has room for."""

    def __len__(self) -> int:
        return 2**62


class Iterable(IterableDataset[Any]):
    """Has no length and no items by number."""

    def __iter__(self) -> Any:
        return iter(())


class Counted(Iterable):
    """Knows how many items it has, and has none by number either."""

    def __len__(self) -> int:
        return 4


class Numbers:
    """Is no dataset of examples: its length is 0."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, number: int) -> Any:
        raise IndexError(number)


class Named:
    """Items of classes that have names, as torchvision's ImageFolder."""

    def __init__(self, classes: list[str]) -> None:
        self.classes = classes

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> Any:
        return torch.ones(3), number % len(self.classes)


class Rare:
    """Images with void at an edge, of which one in fifty shows something."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        mask = torch.zeros(8, 8, dtype=torch.uint8)
        mask[0] = 255
        mask[4, 4] = number % 50 == 30
        return torch.zeros(3, 8, 8, dtype=torch.uint8), mask
