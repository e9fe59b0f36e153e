"""A stored configuration is compared with the job that a checkpoint holds."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ninefold.config.untrusted import edited, for_evaluation, unknown
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
def test_of_an_edited_job_keys_that_may_not_change_are_named_with_both_values(before, after, told):
    assert sorted(edited(JOB, JOB.replace(before, after))) == told


@pytest.mark.parametrize("saved", [None, 5, "- a list", "{"])
def test_a_checkpoint_without_a_job_is_resumed(saved):
    assert edited(saved, JOB) == []


def tree_of(place: str, node: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with `node` at a dotted place."""
    for part in reversed(place.split(".")):
        node = {part: node}
    return dict(node)


STRANGE = (
    "parallel: {_target_: mine.Own, processes: 1, max_processes: 1}\namp: {_target_: mine.Low}\n"
)


def test_a_group_that_the_command_chooses_may_have_a_target_of_ones_own_in_the_checkpoint():
    chosen = {"parallel": {"_target_": "x.Y"}, "amp": {"_target_": "x.Z"}}
    assert set(for_evaluation(STRANGE, Path("x.pt"), chosen)) == {"choices"}
    for group in chosen:
        others = {name: node for name, node in chosen.items() if name != group}
        line = rf"which is not in conf/.*, or name it, as in {group}=NAME$"
        with pytest.raises(CheckpointError, match=line):
            for_evaluation(STRANGE, Path("x.pt"), others)


def test_a_trusted_configuration_has_its_targets_and_the_environment_built_and_nothing_else():
    text = STRANGE.replace("mine.Own,", "mine.Own, path: '${oc.env:HOME}/x',")
    taken = for_evaluation(text, Path("x.pt"), {}, trusted=True)
    assert taken["parallel"]["_target_"] == "mine.Own"
    for smuggled, said in (
        ("path: '${oc.create:{_target_:os.system}}'", "it refers to something in parallel.path"),
        ("_target_: '${choices.evil}'", "it refers to something in parallel._target_"),
    ):
        text = f"parallel: {{processes: 1, max_processes: 1, {smuggled}}}"
        with pytest.raises(CheckpointError, match=re.escape(said)) as refused:
            for_evaluation(text, Path("x.pt"), {}, trusted=True)
        assert "add trust=true" not in str(refused.value)


def test_an_evaluation_asks_nothing_of_groups_that_it_does_not_build_and_keeps_none_of_their_text():
    text = "optimizer: {_target_: mine.Own}\nseed: 3\ninit: /etc/passwd\nepochs: 2"
    taken = for_evaluation(text, Path("x.pt"), {})
    assert taken["others"] == {"seed": 3, "epochs": 2}


MLFLOW = {
    "_target_": "ninefold.extensions.trackers.mlflow.logger",
    "experiment": "ninefold",
    "uri": None,
}
WANDB = {"_target_": "ninefold.extensions.trackers.wandb.logger", "entity": None}
FOLDER = {"_target_": "ninefold.dataset.folder.Folder", "root": "/data"}
TIMM = {"_target_": "ninefold.extensions.timm.network", "name": "resnet18"}
HF = "ninefold.extensions.hf.HF"
CONVNET = {"_target_": "ninefold.model.convnet.ConvNet", "width": 8}
ADAMW = {"_target_": "torch.optim.AdamW", "lr": 0.1}


def found(place: str, node: Mapping[str, Any], named: Mapping[str, Any] | None = None) -> list[str]:
    """The places that need trust=true in a stored configuration with `node` at `place`."""
    return [key for key, _ in unknown(tree_of(place, node), named)]


EVIL = {"_target_": "os.mkdir", "path": "x"}


@pytest.mark.parametrize(
    ("place", "node", "key"),
    [
        ("logger.mlflow", {**MLFLOW, "uri": "http://127.0.0.1:9"}, "uri"),
        ("logger.mlflow", {**MLFLOW, "uri": {"project": "x"}}, "uri.project"),
        ("logger.mlflow", {**MLFLOW, "_args_": ["http://127.0.0.1:9"]}, "_args_.0"),
        ("logger.mlflow", {**MLFLOW, "experiment": "theirs"}, "experiment"),
        ("logger.wandb", {**WANDB, "entity": "theirs"}, "entity"),
        ("dataset", {**FOLDER, "cache_dir": "~/.cache/ninefold/../x"}, "cache_dir"),
        ("dataset", {**FOLDER, "root": "${oc.create:1}"}, "root"),
        ("dataset", {**FOLDER, "root": ["/data"]}, "root.0"),
        ("dataset", {**FOLDER, "class_names": ["mine"]}, "class_names.0"),
        ("dataset", {"_target_": HF, "name": "theirs"}, "name"),
        ("dataset", {**FOLDER, "cache": "${oc.env:HOME}"}, "cache"),
        ("model.net", {**TIMM, "name": "vit"}, "name"),
        ("model.net", {"_target_": HF}, "_target_"),
        ("model.net", {" \uff3ftarget\uff3f\u200b": "os.system"}, " \uff3ftarget\uff3f\u200b"),
        ("model.net", {**CONVNET, "()": "os.system"}, "()"),
        ("optimizer", {**ADAMW, "groups": [{"match": "*.bias"}]}, "groups.0.match"),
        ("optimizer", {**ADAMW, "lr": b"1"}, "lr"),
        ("task.loss", {"_target_": "torch.nn.CrossEntropyLoss"}, "_target_"),
    ],
)
def test_text_that_is_not_in_conf_is_told_by_its_place(place, node, key):
    assert found(place, node) == [f"{place}.{key}"]


@pytest.mark.parametrize(
    "place", ["model", "model.net", "model.net.width", "dataset", "task.loss", "logger.x"]
)
@pytest.mark.parametrize("node", [EVIL, [EVIL], [[EVIL]], {"a": [{"b": EVIL}]}])
def test_a_target_is_told_at_any_depth(place, node):
    *parents, last = place.split(".")
    tree = tree_of(".".join(parents), {last: node}) if parents else {last: node}
    assert "os.mkdir" in dict(unknown(tree)).values()


@pytest.mark.parametrize(
    ("place", "node"),
    [
        ("logger.mlflow", {**MLFLOW, "uri": "${oc.env:MLFLOW_TRACKING_URI,null}"}),
        ("dataset", {**FOLDER, "cache_dir": os.path.expanduser("~/.cache/ninefold")}),
        ("dataset", {**FOLDER, "root": "${oc.env:DATA}/photos", "class_names": ["airplane"]}),
        ("dataset", {**FOLDER, "shape": {"a": [3, 8, 8], "b": [5]}, "cache": "disk"}),
        ("amp", {"_target_": "ninefold.engine.amp.Amp", "dtype": "float16"}),
        ("model.net", {**CONVNET, "plain": True, "rates": [0.1, None]}),
        ("optimizer", {**ADAMW, "lr": 0.3, "betas": [0.9, 0.95]}),
    ],
)
def test_options_of_conf_numbers_and_listed_choices_need_no_word(place, node):
    assert found(place, node) == []


@pytest.mark.parametrize(
    ("place", "node"),
    [
        ("logger.mlflow", {**MLFLOW, "uri": "http://127.0.0.1:9"}),
        ("model.net", {"_target_": "mine.Net", "depth": "deep"}),
    ],
)
def test_what_the_command_has_itself_needs_no_word(place, node):
    assert found(place, node) != []
    assert found(place, node, tree_of(place, node)) == []


def test_a_class_that_only_the_command_names_gets_the_numbers_of_the_run():
    named = tree_of("model.net", {"_target_": "mine.Net"})
    assert found("model.net", {"_target_": "mine.Net", "depth": 3}, named) == []
