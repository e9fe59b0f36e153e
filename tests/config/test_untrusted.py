"""A stored configuration is compared with the job that a checkpoint holds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ninefold.config.overlay import tree_of
from ninefold.config.untrusted import edited, for_evaluation, foreign_arguments
from ninefold.errors import CheckpointError

JOB = """
seed: 0
epochs: 2
optimizer: {_target_: torch.optim.SGD, lr: 0.1, fused: true}
dataset: {root: /data, classes: 10, shape: [1, 8, 8]}
parallel: {processes: 1}
logger: {jsonl: {_target_: x}}
choices: {parallel: none}
"""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("lr: 0.1", "lr: 0.2", ["optimizer.lr=0.2 (was 0.1)"]),
        ("shape: [1, 8, 8]", "shape: [1, 8, 9]", ["dataset.shape=[1, 8, 9] (was [1, 8, 8])"]),
        ("seed: 0", "ema: 0.9", ["ema=0.9 (was absent)", "seed=absent (was 0)"]),
        ("epochs: 2", "epochs: 3", []),
        ("processes: 1", "processes: 4", []),
        ("fused: true", "fused: false", []),
        ("/data", "/moved", []),
        ("{jsonl: {_target_: x}}", "{}", []),
        ("parallel: none", "parallel: ddp", []),
        ("seed: 0", "seed: 0\nresume: auto", []),
    ],
)
def test_of_an_edited_job_the_keys_that_may_not_change_are_named_with_both_values(
    before: str, after: str, told: list[str]
) -> None:
    assert sorted(edited(JOB, JOB.replace(before, after))) == told


@pytest.mark.parametrize("saved", [None, 5, "- a list", "{"])
def test_a_checkpoint_without_a_job_is_resumed(saved: object) -> None:
    assert edited(saved, JOB) == []


STRANGE = (
    "parallel: {_target_: mine.Own, processes: 1, max_processes: 1}\namp: {_target_: mine.Low}\n"
)


def test_a_group_that_the_command_chooses_may_have_a_target_of_ones_own_in_the_checkpoint() -> None:
    chosen = {"parallel": {"_target_": "x.Y"}, "amp": {"_target_": "x.Z"}}
    assert set(for_evaluation(STRANGE, Path("x.pt"), chosen)) == {"choices"}
    for group in chosen:
        others = {name: node for name, node in chosen.items() if name != group}
        with pytest.raises(CheckpointError, match="names the target mine"):
            for_evaluation(STRANGE, Path("x.pt"), others)


def test_a_trusted_configuration_has_its_targets_and_the_environment_built_and_nothing_else() -> (
    None
):
    text = STRANGE.replace("mine.Own,", "mine.Own, path: '${oc.env:HOME}/x',")
    taken = for_evaluation(text, Path("x.pt"), {}, trusted=True)
    assert taken["parallel"]["_target_"] == "mine.Own"
    for smuggled, said in (
        ("path: '${oc.create:{_target_:os.system}}'", "it refers to something in parallel.path"),
        ("_target_: '${choices.evil}'", "at parallel._target_"),
        ("handlers: {x: {(): os.system}}", "names the target os.system"),
        ("x: {class: logging.FileHandler}", "names the target logging.FileHandler"),
    ):
        text = f"parallel: {{processes: 1, max_processes: 1, {smuggled}}}"
        with pytest.raises(CheckpointError, match=re.escape(said)) as refused:
            for_evaluation(text, Path("x.pt"), {}, trusted=True)
        assert "add trust=true" not in str(refused.value)


MLFLOW = {
    "_target_": "ninefold.extensions.trackers.mlflow.logger",
    "experiment": "mine",
    "uri": None,
}
WANDB = {"_target_": "ninefold.extensions.trackers.wandb.logger", "project": "mine", "entity": None}
FOLDER = {"_target_": "ninefold.dataset.folder.Folder", "cache": "disk"}
TIMM = {"_target_": "ninefold.extensions.timm.network", "name": "resnet18"}
CONVNET = {"_target_": "ninefold.model.convnet.ConvNet", "width": 8}


def foreign(place: str, node: Mapping[str, Any], named: Mapping[str, Any] | None = None) -> Any:
    """What is foreign in a stored configuration with `node` at `place`."""
    tree: dict[str, Any] = {"dataset": {}, **tree_of({place: node})}
    return [key for key, _ in foreign_arguments(tree, named or {})]


@pytest.mark.parametrize(
    ("place", "node", "key"),
    [
        ("logger.mlflow", {**MLFLOW, "uri": "http://127.0.0.1:9"}, "uri"),
        ("logger.mlflow", {**MLFLOW, "uri": {"project": "x"}}, "uri.project"),
        ("logger.mlflow", {**MLFLOW, "_args_": ["http://127.0.0.1:9"]}, "_args_"),
        ("logger.wandb", {**WANDB, "entity": "theirs"}, "entity"),
        ("logger.wandb", {**WANDB, "mode": "online"}, "mode"),
        ("dataset", {**FOLDER, "cache_dir": "~/.cache/ninefold/../x"}, "cache_dir"),
        ("model.net", {**TIMM, "checkpoint_path": "x.pth"}, "checkpoint_path"),
    ],
)
def test_a_stored_argument_that_leads_elsewhere_is_foreign(
    place: str, node: Mapping[str, Any], key: str
) -> None:
    assert f"{place}.{key}" in foreign(place, node)


@pytest.mark.parametrize(
    ("place", "node"),
    [
        ("logger.mlflow", {**MLFLOW, "uri": "${oc.env:MLFLOW_TRACKING_URI,null}"}),
        ("logger.wandb", {**WANDB, "group": "g", "mode": "offline"}),
        ("dataset", {**FOLDER, "cache_dir": os.path.expanduser("~/.cache/ninefold")}),
        ("dataset", {**FOLDER, "cache": None, "cache_dir": "/moved"}),
        ("model.net", {**TIMM, "drop_path_rate": 0.05}),
        ("optimizer", {"_target_": "torch.optim.AdamW", "betas": [0.9, 0.95]}),
        ("scheduler", {"_target_": "torch.optim.lr_scheduler.ConstantLR", "last_epoch": 1}),
        ("task.loss", {"_target_": "torch.nn.CrossEntropyLoss", "reduction": "none"}),
    ],
)
def test_what_leads_nowhere_else_needs_no_word(place: str, node: Mapping[str, Any]) -> None:
    assert foreign(place, node) == []


@pytest.mark.parametrize(
    ("place", "node"),
    [
        ("logger.mlflow", {**MLFLOW, "uri": "http://127.0.0.1:9"}),
        ("model.net", {**CONVNET, "plain": True}),
    ],
)
def test_what_the_command_has_itself_needs_no_word(place: str, node: Mapping[str, Any]) -> None:
    assert foreign(place, node) != []
    assert foreign(place, node, tree_of({place: node})) == []


def test_a_class_that_only_the_command_names_gets_the_arguments_of_the_run() -> None:
    assert foreign("model.net", {"_target_": "mine.Net", "depth": 3}) == []
