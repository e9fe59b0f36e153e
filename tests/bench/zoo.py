"""Training scripts of many kinds, as people write them: `python zoo.py KIND`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
WIDTH = 192


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 64))


def examples(count: int = 4096) -> TensorDataset:
    inputs = torch.randn(count, 64, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.flip(1))


def batches(loader: DataLoader[Any]) -> Iterator[Any]:
    return chain.from_iterable(repeat(loader))


def train(
    loader: DataLoader[Any],
    after: Callable[[int], object] = lambda number: None,
    steps: int = sys.maxsize,
    model: nn.Module | None = None,
) -> None:
    torch.manual_seed(0)
    model = model or network()
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    for number, (inputs, targets) in enumerate(batches(loader), 1):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(number)
        if number == 50:
            print(f"\nloss {loss.item().hex()}", flush=True)
        if number == steps:
            break


def loader() -> DataLoader[Any]:
    return DataLoader(examples(), batch_size=32)


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return torch.randn(64), torch.randn(64)


def compiled(what: str) -> None:
    model = network()
    optimizer = optim.AdamW(model.parameters())
    forward: Any = torch.compile(model, backend="aot_eager") if what == "model" else model

    def step() -> None:
        loss = forward(torch.randn(32, 64)).mean()
        loss.backward()
        if what == "optimizer":
            update()
        else:
            optimizer.step()
        optimizer.zero_grad()

    update = torch.compile(optimizer.step, backend="aot_eager")
    whole: Any = torch.compile(step, backend="aot_eager") if what == "step" else step
    while True:
        whole()


def ranks() -> None:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(network())
    train(loader(), model=model)


def evaluating() -> None:
    model, path = network(), Path(os.environ.get("TMPDIR", "/tmp"), f"zoo-{os.getpid()}.pt")

    def after(number: int) -> None:
        if number % 15 == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(40):
                    model(torch.randn(512, 64))
            model.train()
            torch.save(model.state_dict(), path)

    train(loader(), after, model=model)


def forking() -> None:
    if os.fork() == 0:
        while True:
            pass
    train(loader(), lambda n: subprocess.run(["true"], check=True) if n % 50 == 0 else None)


def orphan() -> None:
    subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & sleep 1001"])
    train(loader())


KINDS: dict[str, Callable[[], None]] = {
    "plain": lambda: train(loader()),
    "workers": lambda: train(DataLoader(Slow(), batch_size=16, num_workers=2)),
    "compiled-model": lambda: compiled("model"),
    "compiled-optimizer": lambda: compiled("optimizer"),
    "compiled-step": lambda: compiled("step"),
    "ranks": ranks,
    "evaluating": evaluating,
    "forking": forking,
    "orphan": orphan,
    "printing": lambda: train(loader(), lambda n: print("x" * 2000)),
    "restarting": lambda: train(DataLoader(examples(), batch_size=1024), steps=150),
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
