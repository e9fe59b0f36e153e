"""A stored configuration is compared with the job that a checkpoint holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ninefold.config.untrusted import edited, for_evaluation
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
