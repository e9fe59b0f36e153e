"""A run of objects is a run like any other, and of a stranger's run no object is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import ninefold
from ninefold.api import OPTIONS
from ninefold.api.objects import gather
from ninefold.checkpoint.store import read
from ninefold.dataset.digits import Digits
from ninefold.dataset.preparation import ImagePreparation
from ninefold.errors import CheckpointError
from ninefold.model.convnet import ConvNet
from ninefold.result import AS_FLOAT32
from tests.conftest import ROOT, Shell, only_run, result
from tests.faults.refusals import LINE, refused

LOSS = nn.functional.cross_entropy
SHORT = ["max_steps=3", "scheduler=none", "logger=quiet", "launch.inline=true"]


def written(folder: Path, *given: Any, **named: Any) -> list[str]:
    """The words of a command that trains with these objects."""
    words = {"test": None, "metric": None, "forward": None, "optimizer": "adamw", "ask": ()}
    found = gather(*given, **{**words, **named}).write(folder)
    chosen = [f"{group}={option}" for group, option in found.items()]
    return ["--config-dir", str(folder / OPTIONS), *chosen]


def convnet() -> nn.Module:
    return ConvNet(channels=1, classes=10, width=32)


@pytest.mark.slow
def test_objects_train_to_the_same_weights_as_the_options_that_they_are(shell):
    """The digits prepared, convnet and cross entropy, bit by bit."""
    data = Digits(classes=10, shape=(1, 8, 8))
    prepare = ImagePreparation(1, mean=[0.3053], std=[0.3760])
    pairs = {}
    for split in ("train", "test"):
        examples = data.load(split)
        inputs, targets = (torch.from_numpy(a) for a in (examples.inputs, examples.targets))
        pairs[split] = prepare(inputs, targets, None)
    words = written(shell.folder, convnet, pairs["train"], LOSS, test=pairs["test"])
    for name, command in (("objects", words), ("options", ["model=convnet", "dataset=digits"])):
        layout = "model.memory_format=contiguous_format"
        shell.train(*command, *SHORT, layout, f"hydra.run.dir={name}", code=0)
    one, other = (
        read(shell.folder / name / "checkpoints" / "last.pt")["model"]
        for name in ("objects", "options")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def touching(path: Path, made: nn.Module) -> nn.Module:
    path.touch()
    return made


class Touching(nn.Linear):
    """A network whose pickle makes a file wherever it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(4, 3)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return touching, (self.path, nn.Linear(4, 3))


@pytest.mark.slow
def test_objects_of_a_run_are_read_with_trust_and_not_without(shell):
    canary = shell.folder / "canary"
    pair = torch.randn(16, 4), torch.randint(0, 3, (16,))
    words = written(shell.folder, Touching(canary), pair, LOSS, test=pair)
    shell.train(*words, *SHORT, "batch_size=8", "hydra.run.dir=run", code=0)
    inline = "launch.inline=true"
    shell.evaluate("ckpt=run", inline, "hydra.run.dir=eval", "trust=true", code=0)
    assert canary.exists()
    canary.unlink()
    for command, field in (
        ([str(ROOT / "evaluate.py"), "ckpt=run", "hydra.run.dir=two", inline], "ckpt="),
        ([str(ROOT / "train.py"), "resume=run", "max_steps=4", inline], "resume="),
    ):
        refused(shell.run(*command), 3, field, hint="=ninefold.api")
    with pytest.raises(CheckpointError, match=r"=ninefold\.api"):
        ninefold.load(shell.folder / "run")
    assert not canary.exists()
    assert type(ninefold.load(shell.folder / "run", trust=True)) is nn.Linear


ROWS = torch.rand(16, 6)


def reconstruction(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[0]).pow(2).sum()


def lone_reconstruction(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    assert batch.shape[1:] == ROWS.shape[1:]
    return (model(batch) - batch).pow(2).sum()


def first_loss(shell: Shell, *given: Any, **named: Any) -> float:
    """The loss of the first step, of all examples."""
    words = written(shell.folder, *given, **named)
    whole = ["batch_size=16", "max_steps=1", "log_every=1", "checkpoint.every=0"]
    shell.train(*words, *SHORT[1:], *whole, "hydra.run.dir=run", code=0)
    lines = (shell.folder / "run" / "metrics.jsonl").read_text().splitlines()
    return float(next(loss for line in lines if (loss := json.loads(line).get("loss"))))


def hits(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.argmax(dim=1) == target


@pytest.mark.parametrize("forward", [None, lambda model, batch: LOSS(model(batch[0]), batch[1])])
def test_a_pair_of_arrays_is_read_by_workers_where_batches_are_items(forward, shell):
    """So is a test set of items beside it; the metric is of booleans."""
    pair = ROWS.numpy(), torch.arange(16).numpy() % 6
    loader = DataLoader(TensorDataset(*map(torch.as_tensor, pair)), batch_size=8, num_workers=1)
    test = Subset(TensorDataset(*map(torch.as_tensor, pair)), range(10))
    given = {"metric": hits} if forward is None else {"forward": forward}
    loss = None if forward else LOSS
    words = written(shell.folder, nn.Linear(6, 6), loader, loss, test=test, **given, ask=["score"])
    shell.train(*words, *SHORT[1:], "batch_size=8", "loader.workers=1", "max_steps=2", code=0)
    found = result(only_run(shell.folder))
    assert (found["loader_workers"], found["steps"], found["test_count"]) == (1, 2, 10)
    assert found["score_name"] == ("loss" if forward else "hits")


@pytest.mark.parametrize(
    ("dataset", "forward"),
    [
        (TensorDataset(ROWS), reconstruction),
        (ROWS, lone_reconstruction),
    ],
    ids=["a tuple of one", "a lone tensor"],
)
def test_forward_gets_the_batch_that_a_loop_of_ones_own_gets(dataset, forward, shell):
    torch.manual_seed(0)
    network = nn.Linear(6, 6)
    loss = first_loss(shell, network, dataset, None, forward=forward)
    assert loss == pytest.approx(reconstruction(network, (ROWS,)).item(), rel=1e-5)


class Numbers(Dataset[tuple[float, int]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> tuple[float, int]:
        return float(number), number % 3


def by_number(model: nn.Module, batch: Any) -> torch.Tensor:
    value, label = batch
    assert value.shape == label.shape == (len(value),)
    return nn.functional.cross_entropy(model(value[:, None]), label)


def test_numbers_in_a_tuple_are_several_values_for_forward(shell):
    assert first_loss(shell, nn.Linear(1, 3), Numbers(), None, forward=by_number) > 0


class Doubles(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(number), dtype=torch.float64), number % 3


def test_float64_items_of_a_dataset_are_said_to_become_float32(shell):
    assert first_loss(shell, nn.Linear(4, 3), Doubles(), LOSS) > 0
    (file,) = shell.folder.rglob("result.json")
    assert AS_FLOAT32 in json.loads(file.read_text())["notes"]


def test_an_input_alone_is_its_own_target(shell):
    torch.manual_seed(0)
    network = nn.Linear(6, 6)
    loss = first_loss(shell, network, ROWS, nn.functional.mse_loss)
    assert loss == pytest.approx(nn.functional.mse_loss(network(ROWS), ROWS).item(), rel=1e-5)


def decayed_by_shape(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    trained = [each for each in parameters if each.requires_grad]
    assert trained == parameters
    groups = [
        {"params": [each for each in trained if each.ndim > 1], "weight_decay": 0.1},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3)


def half_frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    network[0].requires_grad_(False)
    return network


def test_an_optimizers_function_gets_the_trained_parameters(shell):
    loss = nn.functional.mse_loss
    assert first_loss(shell, half_frozen, ROWS, loss, optimizer=decayed_by_shape) > 0
    saved = read(shell.folder / "run" / "checkpoints" / "last.pt")["optimizer"]["param_groups"]
    assert [group["param_names"] for group in saved] == [["1.weight"], ["1.bias"]]


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows.to(torch.complex64) @ self.weight).abs()


def test_complex_parameters_train_with_an_optimizer_that_is_not_fused(shell):
    assert first_loss(shell, Complex, ROWS, nn.functional.mse_loss) > 0
    found = json.loads((shell.folder / "run" / "result.json").read_text())
    assert any(note.startswith("optimizer.fused is false here") for note in found["notes"])


def penalized(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(output.sum(), output, create_graph=True)
    return nn.functional.mse_loss(output, target) + gradient.pow(2).mean()


def test_a_loss_that_takes_gradients_is_evaluated_in_a_run_and_by_evaluate(shell):
    pair = (ROWS, ROWS)
    assert first_loss(shell, nn.Linear(6, 6), pair, penalized, test=pair) > 0
    found = json.loads((shell.folder / "run" / "result.json").read_text())
    evaluate = ["ckpt=run", "trust=true", "launch.inline=true", "hydra.run.dir=eval"]
    shell.evaluate(*evaluate, code=0)
    again = json.loads((shell.folder / "eval" / "evaluation.json").read_text())
    assert again["loss"] == pytest.approx(found["test_loss"], rel=1e-6)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.layer, self.pooler = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(self.frozen(rows))
        return found


def test_parameters_without_gradients_are_told_before_ddp_takes_a_step(shell):
    words = written(shell.folder, Pooled, (ROWS, ROWS), nn.functional.mse_loss)
    ddp = ["parallel=ddp", "launch.cpu_processes=2", "batch_size=8", *SHORT[:3], "freeze=[frozen]"]
    done = shell.train(*words, *ddp, "hydra.run.dir=run")
    told = "parallel.find_unused_parameters=false: a step gives 2 trained parameters no gradient"
    refused(
        done, 2, told, hint="they are pooler.weight, pooler.bias; set it to true, or freeze them"
    )
    assert not (shell.folder / "run" / "metrics.jsonl").exists()
    found = ["parallel.find_unused_parameters=true", "hydra.run.dir=other"]
    shell.train(*words, *ddp, *found, code=0)


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> Any:
        return np.zeros((6, 6, 3), np.uint8), 1


def test_images_of_bytes_without_a_transform_are_one_line_that_says_what_to_add(shell):
    words = written(shell.folder, nn.Conv2d(3, 3, 1), Pictures(), LOSS)
    done = shell.train(*words, *SHORT, "batch_size=8", "hydra.run.dir=run")
    (line,) = done.stderr.splitlines()
    assert "return floats from the dataset: add the transform" in line
    assert LINE.fullmatch(line)


class Mappings(Numbers):
    def __getitem__(self, number: int) -> Any:
        return {"x": torch.full((6,), float(number)), "y": number % 3}


def test_items_that_are_mappings_train_by_their_keys_and_an_error_names_what_to_pass(shell):
    words = written(shell.folder, nn.Linear(6, 3), Mappings(), LOSS)
    run = [*words, *SHORT, "batch_size=8"]
    hint = "pass overrides=['dataset.keys=[INPUT,TARGET]'] (names, or places from 0), or forward"
    done = shell.train(*run, "hydra.run.dir=one")
    refused(done, 4, "dataset.train=Mappings: item 0 is a mapping", hint=hint)
    shell.train(*run, "dataset.keys=[x,y]", "hydra.run.dir=two", code=0)
