"""Training scripts of twelve shapes, as people write them, each in two variants.

    python benchmarks/shapes.py SHAPE            # the script as it is: A
    python benchmarks/shapes.py SHAPE --changed  # with one change, on the same batches: B
    torchrun --nproc-per-node 2 benchmarks/shapes.py ddp

They train until they are ended, on one thread a process, and know of no clock and no bench. Every
so many steps they print `step N loss L`; an evaluation prints its accuracy at its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import chain, count, repeat
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

CLASSES = 10


def mlp(layers: int, width: int = 768) -> nn.Sequential:
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES))


def rows(number: int) -> TensorDataset:
    inputs = torch.randn(number, 64)
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    return chain.from_iterable(repeat(loader))


def adam(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), lr=1e-4)


def log(number: int, loss: Tensor, every: int = 10) -> None:
    if number % every == 0:
        print(f"step {number} loss {loss.item():.4f}", flush=True)


def fit(model: nn.Module, loader: DataLoader[Any]) -> None:
    """The loop of the scripts that differ in what they train or read, and not in how."""
    optimizer = adam(model)
    for number, (inputs, labels) in enumerate(forever(loader), 1):
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log(number, loss)


def plain(changed: bool) -> None:
    """A network on rows in memory. The change: one more layer."""
    fit(mlp(6 + changed), DataLoader(rows(500_000), batch_size=64, shuffle=True))


class Photos(Dataset[Any]):
    """Made-up photos that are blurred and reduced, some milliseconds each."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        draw = torch.Generator().manual_seed(index)
        photo = torch.rand(3, self.side, self.side, generator=draw)
        blurred = functional.avg_pool2d(photo, 9, stride=4)
        return functional.adaptive_avg_pool2d(blurred, 32), index % CLASSES


def convolutions(width: int = 16) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(32 * width, CLASSES)),
    )


def workers_2(changed: bool) -> None:
    """Items that are computed. The change: by two workers, and not by the training process."""
    fit(convolutions(), DataLoader(Photos(448), batch_size=8, num_workers=2 * changed))


def workers_4(changed: bool) -> None:
    """Items that four workers compute. The change: photos of more pixels."""
    fit(convolutions(), DataLoader(Photos(480 if changed else 448), batch_size=8, num_workers=4))


class Sentences(Dataset[Any]):
    """Made-up sentences of most unlike lengths."""

    def __init__(self, number: int) -> None:
        self.lengths = torch.empty(number).log_normal_(3.3, 0.6).clamp(4, 200).int().tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        return torch.arange(index, index + self.lengths[index]) % 500


class Tagger(nn.Module):
    """A transformer that tags the words of sentences."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.head(self.encoder(self.embedding(words)))
        return found


def padded(changed: bool) -> None:
    """Sentences, padded to the longest of their batch. The change: four layers, and not three."""
    pad = nn.utils.rnn.pad_sequence
    loader = DataLoader(
        Sentences(500_000), 8, shuffle=True, collate_fn=lambda batch: pad(batch, batch_first=True)
    )
    model = Tagger(3 + changed)
    optimizer = adam(model)
    for number, words in enumerate(forever(loader), 1):
        loss = functional.cross_entropy(model(words).flatten(0, 1), words.flatten() % CLASSES)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log(number, loss)


def heavy(changed: bool) -> None:
    """A loss over eight noisy copies of the batch in every tenth step. The change: over twelve."""
    model = mlp(3)
    optimizer = adam(model)
    loader = DataLoader(rows(500_000), batch_size=64, shuffle=True)
    for number, (inputs, labels) in enumerate(forever(loader), 1):
        loss = functional.cross_entropy(model(inputs), labels)
        if number % 10 == 0:
            for _ in range(12 if changed else 8):
                noisy = inputs + 0.1 * torch.randn_like(inputs)
                loss = loss + functional.cross_entropy(model(noisy), labels) / 8
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log(number, loss)


def gan(changed: bool) -> None:
    """A critic that steps twice for each step of a generator. The change: a deeper generator."""
    critic, generator = mlp(2, 512), nn.Sequential(mlp(3 + changed, 768), nn.Linear(CLASSES, 64))
    of_critic, of_generator = adam(critic), adam(generator)
    loader = DataLoader(rows(500_000), batch_size=64, shuffle=True)
    for number, (real, _) in enumerate(forever(loader), 1):
        for _ in range(2):
            fake = generator(torch.randn(64, 64)).detach()
            loss = (functional.softplus(critic(fake)) + functional.softplus(-critic(real))).mean()
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
        loss = functional.softplus(-critic(generator(torch.randn(64, 64)))).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
        log(number, loss)


def accumulation(changed: bool) -> None:
    """Four batches to a step, and the two that remain at the end of an epoch of 50.

    The change: one more layer.
    """
    model = mlp(3 + changed, 512)
    optimizer = adam(model)
    loader = DataLoader(rows(50 * 32), batch_size=32, shuffle=True)
    steps = 0
    for _ in count():
        for number, (inputs, labels) in enumerate(loader, 1):
            loss = functional.cross_entropy(model(inputs), labels)
            (loss / 4).backward()
            if number % 4 == 0 or number == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        log(steps, loss, every=13)


def evaluation(changed: bool) -> None:
    """An evaluation after every 20 steps. The change: one more layer."""
    model = mlp(5 + changed)
    optimizer = adam(model)
    loader = DataLoader(rows(500_000), batch_size=64, shuffle=True)
    inputs_of_test, labels_of_test = rows(2000).tensors
    for number, (inputs, labels) in enumerate(forever(loader), 1):
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log(number, loss)
        if number % 20 == 0:
            model.eval()
            with torch.no_grad():
                right = (model(inputs_of_test).argmax(1) == labels_of_test).float().mean()
            model.train()
            print(f"accuracy {right.item():.4f}", flush=True)


def teacher(changed: bool) -> None:
    """A student that learns from a teacher. The change: a deeper teacher."""
    student, master = mlp(3, 768), mlp(9 + 3 * changed)
    optimizer = adam(student)
    loader = DataLoader(rows(500_000), batch_size=64, shuffle=True)
    for number, (inputs, _) in enumerate(forever(loader), 1):
        master.eval()
        with torch.no_grad():
            wanted = master(inputs).softmax(1)
        loss = functional.cross_entropy(student(inputs), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log(number, loss)


def ddp(changed: bool) -> None:
    """Two processes that average their gradients. The change: one more layer."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(mlp(3 + changed, 768))
    optimizer = adam(model)
    torch.manual_seed(rank)
    for number, (inputs, labels) in enumerate(forever(DataLoader(rows(500_000), 64)), 1):
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            log(number, loss)


def compiled(changed: bool) -> None:
    """Layers between which much is computed element by element. The change: torch.compile."""
    width = 256
    parts = (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
    layers = [nn.Sequential(*parts) for _ in range(6)]
    model: Any = nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, CLASSES))
    if changed:
        model = torch.compile(model)
    fit(model, DataLoader(rows(500_000), batch_size=512, shuffle=True))


def scaler(changed: bool) -> None:
    """Autocast to bfloat16. The change: a GradScaler."""
    model = mlp(6)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    scale = torch.amp.GradScaler("cpu", enabled=changed)
    loader = DataLoader(rows(500_000), batch_size=128, shuffle=True)
    for number, (inputs, labels) in enumerate(forever(loader), 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(model(inputs), labels)
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        log(number, loss)


SHAPES: dict[str, Callable[[bool], None]] = {
    "plain": plain,
    "workers-2": workers_2,
    "workers-4": workers_4,
    "padded": padded,
    "heavy": heavy,
    "gan": gan,
    "accumulation": accumulation,
    "evaluation": evaluation,
    "teacher": teacher,
    "ddp": ddp,
    "compiled": compiled,
    "scaler": scaler,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--changed", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    SHAPES[given.shape](given.changed)
