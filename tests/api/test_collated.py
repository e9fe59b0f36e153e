"""A DataLoader's own collate_fn: each process calls it with the items of its part of a batch."""

from __future__ import annotations

import gc
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hydra.utils import instantiate
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from ninefold.api import OPTIONS
from ninefold.api.objects import gather
from ninefold.dataset.collated import Collated
from ninefold.dataset.loader import HostSource
from ninefold.engine.amp import Amp
from ninefold.engine.batches import Batches
from ninefold.engine.parallel import RankContext
from ninefold.errors import ConfigError, DataError
from ninefold.task import Objective
from ninefold.tree import leaves
from tests.dataset.mine import Counted

CPU = torch.device("cpu")
ALONE = RankContext(0, 1, CPU)
SIZE = 8


class Texts(Dataset[tuple[Tensor, int]]):
    """Sequences of 3 to 11 words with one of three classes."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        words = torch.Generator().manual_seed(number)
        count = int(torch.randint(3, 12, (1,), generator=words))
        return torch.randint(1, 50, (count,), generator=words), number % 3


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 16, padding_idx=0), nn.Linear(16, 50)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.embedding(words))
        return scores


class Classes(Words):
    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words).mean(dim=1)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.EmbeddingBag(50, 16), nn.Linear(16, 3)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.embedding(words, offsets))
        return scores


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.linear = nn.GRU(1, 8), nn.Linear(8, 3)

    def forward(self, packed: Any) -> Tensor:
        scores: Tensor = self.linear(self.gru(packed)[1][-1])
        return scores


class Encoding(UserDict[str, Tensor]):
    """A mapping that is no dict and moves itself, as the batches of Hugging Face's collators."""

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Graphs:
    """A batch that is no container, as PyTorch Geometric's."""

    def __init__(self, x: Tensor, of: Tensor, y: Tensor) -> None:
        self.x, self.of, self.y = x, of, y

    def to(self, device: torch.device, non_blocking: bool = False) -> Graphs:
        return Graphs(self.x.to(device), self.of.to(device), self.y.to(device))


def apart(items: list[Any]) -> tuple[list[Tensor], Tensor]:
    words, classes = zip(*items, strict=True)
    return list(words), torch.tensor(classes)


def padded(items: list[Any]) -> tuple[Tensor, Tensor]:
    words, classes = apart(items)
    return pad_sequence(words, batch_first=True), classes


def apart_rows(items: list[Any]) -> tuple[Tensor, Tensor]:
    """As `padded`, to another length."""
    words, classes = padded(items)
    return F.pad(words, (0, 5)), classes


def bagged(items: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    words, classes = apart(items)
    starts = torch.tensor([0, *map(len, words[:-1])]).cumsum(0)
    return torch.cat(words), starts, classes


def packed(items: list[Any]) -> tuple[Any, Tensor]:
    words, classes = apart(items)
    return pack_sequence([each.float()[:, None] for each in words], enforce_sorted=False), classes


def encoded(items: list[Any]) -> Encoding:
    words, classes = padded(items)
    return Encoding(words=words, classes=classes)


def joined(items: list[Any]) -> Graphs:
    words, classes = apart(items)
    return Graphs(
        torch.cat(words),
        torch.arange(len(words)).repeat_interleave(torch.tensor([*map(len, words)])),
        classes,
    )


def masked(items: list[Any]) -> tuple[Tensor, Tensor]:
    """As for masked language models: what is masked is drawn in the collate_fn."""
    words, classes = padded(items)
    return words * (torch.rand(words.shape) < 0.8), classes


def graph_loss(model: nn.Module, batch: Graphs) -> Tensor:
    nodes = model(batch.x)[:, :3].float()
    return F.cross_entropy(torch.zeros(len(batch.y), 3).index_add(0, batch.of, nodes), batch.y)


Forward = Callable[[nn.Module, Any], Tensor]
# What a model is, what makes a batch, and the loss of one.
KINDS: dict[str, tuple[type[nn.Module], Callable[[list[Any]], Any], Forward]] = {
    "padding": (Classes, padded, lambda model, b: F.cross_entropy(model(b[0]), b[1])),
    "offsets": (Bag, bagged, lambda model, b: F.cross_entropy(model(b[0], b[1]), b[2])),
    "packed sequences": (Recurrent, packed, lambda model, b: F.cross_entropy(model(b[0]), b[1])),
    "lists": (Words, apart, lambda m, b: torch.stack([m(words).square().mean() for words in b[0]])),
    "mapping": (Classes, encoded, lambda m, b: F.cross_entropy(m(b["words"]), b["classes"])),
    "graphs": (Words, joined, graph_loss),
}


def parts(folder: Path, model: Any, loader: Any, loss: Any, **given: Any) -> list[Any]:
    """Model, dataset and task as a run builds them."""
    named = {"test": None, "metric": None, "forward": None, "optimizer": "adamw", "ask": ()} | given
    chosen = gather(model, loader, loss, **named).write(folder)
    nodes = [
        yaml.safe_load((folder / OPTIONS / group / f"{chosen[group]}.yaml").read_text())
        for group in ("model", "dataset", "task")
    ]
    return [instantiate(node) for node in (nodes[0]["net"], nodes[1], nodes[2])]


def batches(dataset: Any, workers: int = 0, context: RankContext = ALONE) -> Batches:
    options = dict.fromkeys(("channels", "size", "mean", "std", "flip", "crop"))
    prepare = dataset.preparation(**options, memory_format=torch.contiguous_format)
    return Batches(HostSource(dataset.load("train"), workers), SIZE, 0, prepare, context)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_each_batch_is_that_of_what_collate_fn_returns_of_its_items(
    kind: str, tmp_path: Path
) -> None:
    model, collate, forward = KINDS[kind]
    torch.manual_seed(0)
    plain, items = model(), Texts()
    loader = DataLoader(items, batch_size=SIZE, collate_fn=collate)
    network, dataset, task = parts(tmp_path, plain, loader, None, forward=forward)
    dataset.prepare()
    objective, of_data = Objective(network, task), batches(dataset)
    for rows, batch in zip(of_data.rows(0), of_data.epoch(0), strict=True):
        wanted = forward(plain, collate([items[number] for number in rows.tolist()])).mean()
        assert objective(*batch).item() == pytest.approx(wanted.item(), rel=1e-6)
        loss, sums = objective(*batch, measure=True)
        assert loss.item() == pytest.approx(SIZE * wanted.item(), rel=1e-6)
        assert sums.tolist()[1] == SIZE


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_that_gets_such_a_batch_computes_in_bfloat16(
    kind: str, weights: str, tmp_path: Path
) -> None:
    model, collate, forward = KINDS[kind]
    torch.manual_seed(0)
    loader = DataLoader(Texts(), batch_size=SIZE, collate_fn=collate)
    network, dataset, task = parts(tmp_path, model(), loader, None, forward=forward)
    (batch, *_), wanted = batches(dataset).epoch(0), Objective(network, task)
    expected = wanted(*batch).item()
    amp, seen = Amp("bfloat16", weights=weights), set[torch.dtype]()
    amp.cast(network)
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda module, given, output: seen.add(output.dtype))
    found = Objective(amp.wrap(network), task)(*batch)
    assert seen == {torch.bfloat16}
    assert found.item() == pytest.approx(expected, rel=0.05)


def test_a_pair_of_tensors_needs_no_forward(tmp_path: Path) -> None:
    loader = DataLoader(Texts(), batch_size=SIZE, collate_fn=padded)
    plain = Classes()
    network, dataset, task = parts(tmp_path, plain, loader, F.cross_entropy)
    dataset.prepare()
    for rows, batch in zip(batches(dataset).rows(0), batches(dataset).epoch(0), strict=True):
        words, classes = padded([Texts()[number] for number in rows.tolist()])
        assert torch.equal(batch[0], words)
        wanted = F.cross_entropy(plain(words), classes)
        assert Objective(network, task)(*batch).item() == pytest.approx(wanted.item(), rel=1e-6)


@dataclass
class Scenes:
    """As `collate_fn` may return."""

    images: Tensor
    boxes: list[Tensor]
    names: tuple[str, ...]


def test_tensors_in_fields_of_a_dataclass_are_moved_and_cast_as_others_are() -> None:
    value = Scenes(torch.ones(2), [torch.ones(1)], ("a", "b"))
    found = Collated([0, 1], lambda items: value, value).in_dtype(torch.bfloat16)
    moved = found.to("meta").value
    assert (moved.images.dtype, moved.boxes[0].device.type) == (torch.bfloat16, "meta")
    assert moved.names == value.names
    assert value.images.dtype == torch.float32


def test_batches_are_the_same_with_worker_processes_what_collate_fn_draws_included(
    tmp_path: Path,
) -> None:
    loader = DataLoader(Texts(), batch_size=SIZE, collate_fn=masked)
    found = []
    for workers in (0, 2):
        _, dataset, _ = parts(tmp_path / str(workers), Classes, loader, F.cross_entropy)
        if workers:
            dataset.start_workers(workers, ("train", "test"), 60)
        found.append([*batches(dataset, workers).epoch(1)])
    assert len(found[0]) == len(Texts()) // SIZE
    for one, other in zip(*found, strict=True):
        assert all(map(torch.equal, one, other))
    again, first = (next(iter(batches(dataset).epoch(epoch)))[0] for epoch in (1, 0))
    assert torch.equal(again, found[0][0][0])
    assert (again == 0).float().mean() != (first == 0).float().mean()
    del dataset
    gc.collect()  # and with it its workers end
    assert not active_children()


class Named(Texts):
    def __getitem__(self, number: int) -> Any:
        words, label = super().__getitem__(number)
        return {"words": words[:3], "pair": (label, float(label)), "name": f"text {number}"}


class Scaled(Named):
    """Without strings: a tree of tensors, which parallel=dp and accumulate can cut."""

    def __getitem__(self, number: int) -> Any:
        words, pair, _ = super().__getitem__(number).values()
        return {"words": words, "pair": pair}


@pytest.mark.parametrize("items", [Named(), Scaled()])
def test_forward_gets_what_a_dataloader_without_collate_fn_gives(
    items: Any, tmp_path: Path
) -> None:
    _, dataset, _ = parts(tmp_path, Classes, items, None, forward=KINDS["mapping"][2])
    dataset.prepare()
    found = batches(dataset)
    rows, (inputs, _) = found.rows(0)[0], next(found.epoch(0))
    (given,) = (inputs.value,) if isinstance(inputs, Collated) else inputs
    wanted = default_collate([items[number] for number in rows.tolist()])
    assert given.keys() == wanted.keys()
    assert given["pair"][1].dtype == torch.float32
    for one, other in zip(leaves(given), leaves(wanted), strict=True):
        assert torch.equal(one, other.to(one.dtype)) if isinstance(one, Tensor) else one == other
    assert isinstance(inputs, Collated) is ("name" in wanted)


def test_each_process_collates_its_own_part_of_a_batch(tmp_path: Path) -> None:
    loader = DataLoader(Texts(), batch_size=SIZE, collate_fn=bagged)
    _, dataset, _ = parts(tmp_path, Bag, loader, None, forward=KINDS["offsets"][2])
    whole = batches(dataset).rows(0)
    for rank in (0, 1):
        its = batches(dataset, context=RankContext(rank, 2, CPU))
        for rows, batch in zip(whole[:, rank::2], its.epoch(0), strict=True):
            wanted = bagged([Texts()[number] for number in rows.tolist()])
            assert all(map(torch.equal, batch[0].value, wanted))


class Frame:
    """A table that is no array but can be made one, as a DataFrame."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.ndim = values, values.ndim

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, *given: Any, **named: Any) -> Any:
        return self.values.numpy()


def test_what_cannot_be_used_is_refused_in_a_line(tmp_path: Path) -> None:
    def broken(items: list[Any]) -> Any:
        raise ValueError("ragged")

    def given(number: int, collate: Callable[[list[Any]], Any], **named: Any) -> Any:
        loader = DataLoader(Texts(), batch_size=SIZE, collate_fn=collate)
        loss = None if "forward" in named else F.cross_entropy
        return parts(tmp_path / str(number), Bag, loader, loss, **named)[1]

    with pytest.raises(ConfigError, match=r"of 7 items its collate_fn .*\[7\].*; pass forward="):
        given(0, bagged).prepare()
    with pytest.raises(DataError, match=r"dataset.train=Texts: its collate_fn raised .*ragged"):
        given(1, broken).prepare()
    dataset = given(2, bagged, forward=KINDS["offsets"][2])
    (batch, _), *_ = batches(dataset).epoch(0)
    text = parts(tmp_path / "text", Bag, Named(), None, forward=KINDS["offsets"][2])[1]
    (of_text, _), *_ = batches(text).epoch(0)
    for one in (batch, of_text):
        with pytest.raises(ConfigError, match=r"into 2 parts; .* parallel=dp and accumulate"):
            one.chunk(2)
    for one in (dataset, text):
        with pytest.raises(ConfigError, match=r"dataset.cache=disk: a batch with text, or of a"):
            replace(one, cache="disk").prepare()
    with pytest.raises(ConfigError, match=r"model.input_size=8: what a dataset object returns is"):
        dataset.preparation(size=8, memory_format=torch.contiguous_format)


PAIR = torch.arange(12).reshape(4, 3), torch.tensor([0, 1, 2, 0])
FRAMES = tuple(map(Frame, PAIR))


@pytest.mark.parametrize(
    ("test", "collate"),
    [
        (DataLoader(Texts(), batch_size=3, collate_fn=apart_rows), apart_rows),
        (DataLoader(TensorDataset(*PAIR)), default_collate),
        (Texts(), padded),
        (Texts, padded),
        (TensorDataset(*PAIR), padded),
        (PAIR, padded),
        (FRAMES, padded),
    ],
)
def test_a_test_set_is_collated_by_its_own_loader_and_else_as_the_training_set(
    test: Any, collate: Callable[[list[Any]], Any], tmp_path: Path
) -> None:
    loader = DataLoader(Texts(), batch_size=SIZE, collate_fn=padded)
    _, dataset, _ = parts(tmp_path, Classes, loader, F.cross_entropy, test=test)
    dataset.prepare()
    items = test.dataset if isinstance(test, DataLoader) else test() if test is Texts else test
    items = TensorDataset(*PAIR) if isinstance(items, tuple) else items
    rows = np.arange(3)
    (found,) = HostSource(dataset.load("test")).batches([rows], CPU)
    assert all(map(torch.equal, found, collate([items[number] for number in rows.tolist()])))


def test_what_a_function_draws_for_a_dataset_is_the_same_in_every_process(tmp_path: Path) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        drawn = lambda: TensorDataset(torch.rand(8, 3), torch.zeros(8))  # noqa: E731
        _, dataset, _ = parts(tmp_path / str(seed), Classes, drawn, F.cross_entropy)
        found.append(next(iter(dataset.load("train").arrays))[np.arange(8)])
    assert np.array_equal(*found)


def test_a_loss_that_was_given_in_evaluation_mode_stays_in_it(tmp_path: Path) -> None:
    loader = DataLoader(Texts(), batch_size=SIZE, collate_fn=padded)
    for training in (False, True):
        loss = nn.CrossEntropyLoss().train(training)
        network, _, task = parts(tmp_path / str(training), Classes, loader, loss)
        objective = Objective(network, task)
        for mode in (True, False):
            objective.train(mode)
            assert (network.training, task.criterion.training) == (mode, mode and training)


def test_without_a_test_set_the_dataset_is_made_once(tmp_path: Path) -> None:
    def made() -> Texts:
        with open(tmp_path / "made", "a") as file:
            file.write("x")
        return Texts()

    _, dataset, _ = parts(tmp_path / "given", Classes, made, F.cross_entropy)
    dataset.load("train")
    assert len(dataset.load("test")) == len(Texts())
    assert (tmp_path / "made").read_text() == "x"


@pytest.mark.parametrize("returned", [(torch.ones(8, 3), torch.zeros(8)), Counted()], ids=type)
def test_a_function_that_returns_no_items_by_number_is_refused(
    returned: Any, tmp_path: Path
) -> None:
    _, dataset, _ = parts(tmp_path, Classes, lambda: returned, F.cross_entropy)
    kind = type(returned).__name__
    with pytest.raises(DataError, match=f"it returns a {kind}; a dataset with __len__"):
        dataset.load("train")
