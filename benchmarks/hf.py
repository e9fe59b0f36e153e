"""An epoch of batches of a Hugging Face dataset, against its own torch format and a DataLoader."""

from __future__ import annotations

import io
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks.inputs import BATCH, CONTEXT, DATA, Slowed, examples, images_per_second
from benchmarks.measure import OURS, Bench, Row, Turns, at_least, ratio
from ninefold.dataset import Examples
from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import ImagePreparation
from ninefold.engine.batches import Batches
from ninefold.extensions.hf import HF
from ninefold.train.kernels import keep_freed

COUNT = 1024
EPOCHS = 20  # of ours in a turn that reads the cache: one takes some milliseconds
SLOWED = 0.1  # seconds added to each of our batches by the handicap


def written(folder: Path) -> None:
    """COUNT images of CIFAR-10, or random ones, as PNG in parquet files."""
    import datasets

    datasets.disable_progress_bars()
    found = examples(COUNT)
    rows = torch.arange(COUNT).numpy()
    files = []
    for pixels in found.inputs[rows]:
        file = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")
        files.append({"bytes": file.getvalue(), "path": None})
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)}
    )
    columns = {"image": files, "label": found.targets[rows].tolist()}
    table = datasets.Dataset.from_dict(columns, features=features)
    for split in ("train", "test"):
        table.to_parquet(folder / f"{split}.parquet")


def cached(dataset: HF) -> Examples:
    """The training split as a run with dataset.cache=disk reads it."""
    from ninefold.dataset.cache import make, reader

    dataset = replace(dataset, cache="disk", cache_dir=f"{dataset.root}/cache")
    node = {"_target_": "ninefold.extensions.hf.HF", **asdict(dataset)}
    found: Examples = reader(dataset, make(dataset, node, 1))("train")
    return found


def contestants(
    load: Callable[[HF], Examples], epochs: int
) -> Callable[[bool], AbstractContextManager[Turns]]:
    """Contestants of the training split that `load` gives; ours takes `epochs` epochs a turn."""

    @contextmanager
    def against_their_format(handicap: bool) -> Iterator[Turns]:
        import datasets

        keep_freed()
        with tempfile.TemporaryDirectory() as name:
            datasets.config.HF_DATASETS_CACHE = Path(name, "cache")
            written(Path(name))
            found = load(HF(name, shape=(3, 32, 32)))
            if handicap:
                found = Examples(Slowed(found.inputs, SLOWED), found.targets)  # type: ignore[arg-type]
            batches = Batches(HostSource(found), BATCH, 0, ImagePreparation(3), CONTEXT)
            table = datasets.load_dataset(
                "parquet", data_files=str(Path(name, "train.parquet")), split="train"
            )
            loader: DataLoader[Any] = DataLoader(table.with_format("torch"), BATCH, shuffle=True)
            numbers, count = itertools.count(), 1 if handicap else epochs

            def own() -> float:
                several = (batches.epoch(number) for number in itertools.islice(numbers, count))
                return images_per_second(count * COUNT, itertools.chain.from_iterable(several))

            def theirs() -> float:
                normalized = ((each["image"].float().div_(255), each["label"]) for each in loader)
                return images_per_second(COUNT, normalized)

            yield {OURS: own, "torch format": theirs}

    return against_their_format


CONDITIONS = (
    f"A turn takes {COUNT:,} images of 32x32 ({DATA}, as PNG in a parquet file) once, shuffled, in "
    f"batches of {BATCH} to float32 from 0 to 1, on all CPU threads. The rival is the library's "
    'with_format("torch") in a DataLoader without workers. Figures are images a second. '
)
HANDICAP = f"The handicap: {SLOWED * 1000:g} ms more for each of our batches, once a turn."
RIVAL = 'with_format("torch") + DataLoader'

BENCHES = [
    Bench(
        "hf",
        CONDITIONS + "Ours decodes each image, as dataset=hf does. " + HANDICAP,
        contestants(lambda dataset: dataset.load("train"), 1),
        [Row("epoch of dataset=hf, decoded", RIVAL, ratio(OURS, "torch format"), at_least(1))],
    ),
    Bench(
        "hf-cached",
        CONDITIONS + f"Ours reads a cache (dataset.cache=disk), {EPOCHS} times a turn. " + HANDICAP,
        contestants(cached, EPOCHS),
        [Row("epoch of dataset=hf, cached", RIVAL, ratio(OURS, "torch format"), at_least(20))],
    ),
]
