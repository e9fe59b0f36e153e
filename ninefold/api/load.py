"""`ninefold.load`: the trained network of a run, for programs that use it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ninefold.api.parts import WithForward
from ninefold.checkpoint import manifest
from ninefold.config.configuration import noting_secrets
from ninefold.dataset import as_dataset
from ninefold.dataset.items import generators
from ninefold.engine.batches import Preparation
from ninefold.errors import ConfigError
from ninefold.train import build
from ninefold.train.evaluate import of_checkpoint
from ninefold.tree import Tree, each, rows


def load(run: str | Path, which: str = "last", trust: bool = False) -> nn.Module:
    """Return the trained network of a run, in evaluation mode, on the CPU.

    Its attribute `prepare_inputs` is a function from a batch of inputs, as the dataset has them, to
    what it takes: tensors or arrays [n, ...] on the CPU, of the dataset's dtype, resized and
    normalized as in an evaluation. The data need not be there. Of a run with `ema` the weights are
    the average. To compute on a GPU, move both the network and what `prepare_inputs` returns.

    run: its folder, or a checkpoint in it.
    which: last or best, of the checkpoints in a folder.
    trust: whether to use text in the run's configuration that conf/ does not have, such as the
        names of your own classes; only of a run that you made.

    Raises ConfigError or CheckpointError, ResourceError where memory is short, NumericsError for a
    weight that is not finite: one line.
    """
    if which not in ("last", "best"):
        raise ConfigError("which", which, "there is none", "last and best are allowed", "name one")
    path = manifest.required("run", run, which)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with noting_secrets(), generators(0), torch.random.fork_rng(gpus):
        found = of_checkpoint(path, trust)
        dataset = as_dataset(build.make(found.job.dataset, "dataset"))
        prepare = build.preparation(found.job, dataset, augment=False, layout="contiguous_format")
    network = found.model.model if isinstance(found.model, WithForward) else found.model
    network.prepare_inputs = partial(prepared, prepare)  # type: ignore[assignment]
    return network.eval()


def prepared(prepare: Preparation, inputs: Tree) -> Tree:
    """What a network takes of a batch of inputs, whatever their targets are."""

    def as_read(leaf: Any) -> Any:
        # A copy, as torch takes no negative strides, and warns of what cannot be written to.
        tensor = torch.as_tensor(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf
        return tensor.float() if tensor.dtype == torch.float64 else tensor

    tensors = each(as_read, inputs)
    return prepare(tensors, torch.zeros(rows(tensors)), None)[0]
