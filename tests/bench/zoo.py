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
    make: Callable[[Any], optim.Optimizer],
    loader: DataLoader[Any],
    after: Callable[[int], object] = lambda number: None,
    every: int = 1,
    steps: int = sys.maxsize,
    model: nn.Module | None = None,
) -> None:
    torch.manual_seed(0)
    model = model or network()
    optimizer = make(model.parameters())
    for number, (inputs, targets) in enumerate(batches(loader), 1):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        if number % every == 0:
            optimizer.step()
            optimizer.zero_grad()
            after(number)
        if number == 50:
            print(f"\nloss {loss.item().hex()}", flush=True)
        if number == steps:
            break


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(examples(), batch_size=32, **options)


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return torch.randn(64), torch.randn(64)


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.01)


def gan() -> None:
    critic, maker = network(), network()
    of_critic, of_maker = sgd(critic.parameters()), optim.AdamW(maker.parameters())
    while True:
        for _ in range(5):
            critic(torch.randn(32, 64)).mean().backward()
            of_critic.step()
        maker(torch.randn(32, 64)).mean().backward()
        of_maker.step()


def scaler() -> None:
    model = network()
    optimizer = sgd(model.parameters())
    scale = torch.amp.GradScaler("cpu", 16.0, backoff_factor=0.9999)
    number = 0
    while True:
        number += 1
        loss = model(torch.randn(32, 64)).mean() * (float("inf") if number % 7 == 0 else 1.0)
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()


def lbfgs() -> None:
    model, inputs = network(), torch.randn(256, 64)
    optimizer = optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        return loss

    while True:
        optimizer.step(closure)  # type: ignore[arg-type]


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
    train(sgd, loader(), model=model)


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

    train(sgd, loader(), after, model=model)


def without_gradients(every: int, mode: Callable[[], Any]) -> None:
    """An evaluation without .eval()."""
    model = network()

    def after(number: int) -> None:
        if number % every == 0:
            with mode():
                for _ in range(40 if every > 1 else 1):
                    model(torch.randn(512 if every > 1 else 16, 64))

    train(sgd, loader(), after, model=model)


def forking() -> None:
    if os.fork() == 0:
        while True:
            pass
    train(sgd, loader(), lambda n: subprocess.run(["true"], check=True) if n % 50 == 0 else None)


def orphan() -> None:
    subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & sleep 1001"])
    train(sgd, loader())


def no_optimizer() -> None:
    model = network()
    for _ in range(20):
        model(torch.randn(32, 64)).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad


def own_step() -> None:
    import zoo_step

    while True:
        zoo_step.step()


KINDS: dict[str, Callable[[], None]] = {
    "plain": lambda: train(sgd, loader()),
    "accumulation": lambda: train(sgd, loader(), every=2),
    "adamw": lambda: train(optim.AdamW, loader()),
    "fused": lambda: train(lambda p: optim.AdamW(p, fused=True), loader()),
    "foreach": lambda: train(lambda p: optim.SGD(p, lr=0.01, foreach=True), loader()),
    "gan": gan,
    "scaler": scaler,
    "lbfgs": lbfgs,
    "workers": lambda: train(sgd, DataLoader(Slow(), batch_size=16, num_workers=2)),
    "persistent": lambda: train(
        sgd, DataLoader(Slow(), batch_size=16, num_workers=2, persistent_workers=True)
    ),
    "compiled-model": lambda: compiled("model"),
    "compiled-optimizer": lambda: compiled("optimizer"),
    "compiled-step": lambda: compiled("step"),
    "ranks": ranks,
    "evaluating": evaluating,
    "no-grad": lambda: without_gradients(15, torch.no_grad),
    "inference": lambda: without_gradients(15, torch.inference_mode),
    "averaging": lambda: without_gradients(1, torch.no_grad),
    "forking": forking,
    "orphan": orphan,
    "printing": lambda: train(sgd, loader(), lambda n: print("x" * 2000)),
    "twenty": lambda: train(sgd, loader(), steps=20),
    "restarting": lambda: train(sgd, DataLoader(examples(), batch_size=1024), steps=150),
    "no-optimizer": no_optimizer,
    "own-step": own_step,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
