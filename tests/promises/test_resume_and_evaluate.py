"""A checkpoint gives its figure again, however it is measured and whoever saved it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from ninefold.checkpoint.store import read
from ninefold.errors import ConfigError
from ninefold.train.evaluate import follow_training
from tests.conftest import Shell, result
from tests.dataset.kit import photos
from tests.faults.runs import one_after_another

SMALL = ["model.net.width=8", "batch_size=16", "dataset.limit=176", "threads=2", "logger=quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs of 11 steps, with a moving average."""
    shell = Shell(tmp_path_factory.mktemp("runs"))
    shell.train(*SMALL, "epochs=3", "ema=0.9", "hydra.run.dir=run", code=0)
    return shell.folder / "run"


def evaluation(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())


def test_evaluation_gives_the_figure_of_training_on_any_strategy_and_batch_size(run, shell):
    trained, best = result(run), run / "checkpoints" / "best.pt"
    ways = {
        "one": [f"ckpt={run}"],
        "two": [f"ckpt={run}", "parallel=ddp", "parallel.processes=2", "batch_size=77"],
        "dp": [f"ckpt={run}", "parallel=dp"],
        "best": [f"ckpt={best}", "weights=average"],
        "raw": [f"ckpt={run}", "weights=raw"],
    }
    for name, words in ways.items():
        done = shell.evaluate(*words, f"hydra.run.dir={name}", code=0)
        found = evaluation(shell.folder / name)
        assert f"accuracy {found['score']:.4f}" in done.stdout
        assert found["count"] == trained["test_count"] == 360
        assert set(found["per_class"]) == {str(label) for label in range(10)}
        assert found["weights"] == ("raw" if name == "raw" else "average")
        assert any("moving average" in note for note in found["notes"]) == (name != "raw")
        assert sum(map(sum, found["confusion"])) == 360
    one, two, dp, of_best, raw = (evaluation(shell.folder / name) for name in ways)
    assert one["score"] == two["score"] == dp["score"] == trained["score"]
    assert of_best["score"] == trained["best_score"]
    assert raw["loss"] != one["loss"]


def test_a_dataset_that_is_named_is_prepared_as_that_of_the_training_or_refused(run, shell):
    named = [f"ckpt={run}", "dataset=digits"]
    same, other, meant = one_after_another(
        shell,
        ["evaluate.py", *named],
        ["evaluate.py", f"ckpt={run}", "dataset=synthetic"],
        ["evaluate.py", *named, "dataset.mean=[0.5]"],
    )
    assert same.returncode == meant.returncode == 0, meant.stderr
    assert f"accuracy {result(run)['score']:.4f}" in same.stdout
    assert f"accuracy {result(run)['score']:.4f}" not in meant.stdout
    assert other.returncode == 2
    assert other.stderr == (
        "error: dataset.shape=[3, 32, 32]: the weights were trained with another value; it was "
        "[1, 8, 8]; add dataset.shape=[1,8,8] dataset.mean=[0.3053] dataset.std=[0.376]\n"
    )


def test_classes_that_nothing_says_are_those_of_the_training():
    trained = "dataset: {classes: 10, shape: [3, 8, 8]}"
    folder = OmegaConf.create({"classes": None, "shape": [3, 8, 8]})
    follow_training(folder, trained, ())
    assert folder.classes == 10
    counted = OmegaConf.create({"classes": 3, "shape": [3, 8, 8]})
    with pytest.raises(ConfigError, match=r"dataset.classes=3: .*; it was 10; add dataset.class"):
        follow_training(counted, trained, ())
    follow_training(counted, trained, ("dataset.classes",))
    follow_training(counted, "dataset: {classes: null, shape: [3, 8, 8]}", ())
    assert counted.classes is None  # integers to predict


@pytest.mark.parametrize(
    ("key", "then", "now"),
    [
        ("shape", [3, 8, 8], [1, 8, 8]), ("mean", [0.5], None), ("spacing", [1, 1, 1], [2, 1, 1]),
        ("window", [0, 255], None), ("exif", True, False), ("ignore", 11, 255),
    ],
)  # fmt: skip
def test_examples_are_made_as_those_of_the_training_unless_the_command_says_otherwise(
    key: str, then: object, now: object
) -> None:
    trained = OmegaConf.to_yaml(OmegaConf.create({"dataset": {key: then}}))
    follow_training(OmegaConf.create({key: then}), trained, ())
    follow_training(OmegaConf.create({key: now}), trained, (f"dataset.{key}",))
    with pytest.raises(ConfigError, match=f"dataset.{key}=.*; it was .*; add dataset.{key}="):
        follow_training(OmegaConf.create({key: now}), trained, ())


def test_weights_are_given_the_classes_that_they_were_trained_on(shell):
    photos(shell.folder / "set")
    job = ["dataset=folder", "dataset.root=set", "dataset.shape=[3,8,8]", "threads=1"]
    shell.train(*job, "model=mlp", "batch_size=8", "max_steps=2", "hydra.run.dir=run", code=0)
    for split in ("train", "test"):
        (shell.folder / "set" / split / "cat").rename(shell.folder / "set" / split / "fox")
    evaluated, resumed, meant = one_after_another(
        shell,
        ["evaluate.py", "ckpt=run", "parallel=ddp", "parallel.processes=2"],
        ["train.py", "resume=run", "max_steps=3"],
        ["evaluate.py", "ckpt=run", *job, "dataset.classes=2"],
    )
    differ = "checkpoint and dataset classes differ; only in checkpoint: cat; only in dataset: fox;"
    for done in (evaluated, resumed):
        assert done.returncode == 3
        assert differ in done.stderr
    assert meant.returncode == 0, meant.stderr
    content = torch.load(shell.folder / "run" / "checkpoints" / "last.pt", weights_only=True)
    assert content.pop("names") == ["cat", "dog"]
    torch.save(content, shell.folder / "old.pt")
    shell.evaluate("ckpt=old.pt", code=0)


def test_the_number_of_classes_of_a_foreign_file_is_a_number() -> None:
    text = "dataset: {classes: {_target_: os.abort}, shape: [3, 8, 8]}"
    folder = OmegaConf.create({"classes": None, "shape": [3, 8, 8]})
    with pytest.raises(ConfigError, match=r"dataset.classes=null: the weights were trained with"):
        follow_training(folder, text, ())
    assert folder.classes is None


def test_a_foreign_state_dict_is_evaluated_whatever_its_prefixes(run, shell):
    model = read(run / "checkpoints" / "last.pt")["average"]
    torch.save(
        {f"module._orig_mod.{key}": v for key, v in model.items()}, shell.folder / "foreign.pt"
    )
    part = {key: value for key, value in model.items() if key != "classifier.bias"}
    torch.save(part, shell.folder / "part.pt")
    words = ["model=convnet", "dataset=digits", SMALL[0]]
    done, strict, partial, none = one_after_another(
        shell,
        ["evaluate.py", "ckpt=foreign.pt", *words],
        ["evaluate.py", "ckpt=part.pt", *words],
        ["evaluate.py", "ckpt=part.pt", *words, "load.partial=true"],
        ["evaluate.py", "ckpt=foreign.pt", *words, "weights=average"],
    )
    assert done.returncode == 0, done.stderr
    assert f"accuracy {result(run)['score']:.4f}" in done.stdout
    assert strict.returncode == 3
    assert "1 missing (classifier.bias)" in strict.stderr
    assert partial.returncode == 0, partial.stderr
    assert "1 missing (classifier.bias)" in partial.stdout
    assert none.returncode == 3
    assert none.stderr.startswith("error: weights=average: this checkpoint has none; ")
