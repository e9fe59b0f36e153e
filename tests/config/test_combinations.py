"""What cannot be combined is refused before a process starts, in one line that says what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks import ours
from ninefold.config.combinations import REFUSED, REFUSED_COMMANDS, WORDS, by_key, problems
from ninefold.config.options import find
from ninefold.errors import ConfigError
from tests.conftest import Shell
from tests.faults.runs import one_after_another

IMAGES, VOLUMES = {"shape": [3, 8, 8]}, {"shape": [1, 8, 8, 8]}
NONE = {"max_processes": 1}
DP = {"max_processes": 1, "devices": None}
DDP = {"max_processes": None, "devices": None}
FSDP = {**DDP, "reshard_after_forward": True}
TENSOR = {**DDP, "colwise": ["a"], "rowwise": None}
ADAMW, SGD = (
    {"_target_": f"torch.optim.{name}", "fused": True, "foreach": None} for name in ("AdamW", "SGD")
)

# Jobs with one combination that is refused, and the key that the line names.
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("model.input_channels", {"dataset": IMAGES, "model": {"input_channels": 1}}),
    ("dataset.mean", {"dataset": {**IMAGES, "mean": [0.1, 0.2], "std": [1]}}),
    ("dataset.std", {"dataset": {**IMAGES, "mean": [0.1], "std": [1, 2]}}),
    ("dataset.std", {"dataset": {"mean": [0.1], "std": None}}),
    ("dataset.mean", {"dataset": {"mean": None, "std": [0.1]}}),
    ("model.memory_format", {"dataset": IMAGES, "model": {"memory_format": "channels_last_3d"}}),
    ("model.memory_format", {"dataset": VOLUMES, "model": {"memory_format": "channels_last"}}),
    ("dataset.cache_dir", {"dataset": {"cache": "disk", "cache_dir": None}}),
    ("task.classes", {"dataset": {"classes": 10}, "task": {"classes": None}}),
    ("task.classes", {"dataset": IMAGES, "task": {"classes": None}}),
    ("task.ignore", {"dataset": {"ignore": 255}, "task": {"ignore": None}}),
    ("task.ignore", {"dataset": {"ignore": 11}, "task": {"ignore": 0}}),
    ("augment.mixup", {"task": {"classes": 3}, "augment": {"mixup": 0.2}}),
    ("augment.cutmix", {"task": {"classes": 3}, "augment": {"cutmix": 1}}),
    ("task.label_smoothing", {"task": {"label_smoothing": 0.1, "loss": {"_target_": "a.b"}}}),
    ("device", {"device": "cuda:1", "parallel": DDP}),
    ("parallel.devices", {"device": "cpu", "parallel": {**DDP, "devices": [0]}}),
    ("optimizer.fused", {"parallel": FSDP, "optimizer": SGD}),
    ("compile.mode", {"parallel": FSDP, "compile": {"mode": "reduce-overhead"}}),
    ("parallel.colwise", {"parallel": {**TENSOR, "colwise": None}, "optimizer": ADAMW}),
    ("optimizer.fused", {"parallel": TENSOR, "optimizer": ADAMW}),
    ("optimizer.foreach", {"parallel": TENSOR, "optimizer": {"foreach": True}}),
    ("amp.scaler", {"parallel": TENSOR, "amp": {"scaler": True}}),
    ("clip_grad_norm", {"parallel": TENSOR, "clip_grad_norm": 1.0}),
    ("clip_grad_value", {"parallel": TENSOR, "clip_grad_value": 1.0}),
    ("compile.mode", {"parallel": TENSOR, "compile": {"mode": "default"}}),
    ("compile.mode", {"compile": {"mode": "max-autotune"}, "accumulate": 4}),
    ("graph", {"graph": True, "compile": {"mode": "reduce-overhead"}}),
    ("graph", {"graph": True, "checkpoint_activations": ["features"]}),
    ("graph", {"graph": True, "parallel": DDP}),
    ("graph", {"graph": True, "parallel": {**DP, "devices": [0, 1]}}),
    ("graph", {"graph": True, "optimizer": {**ADAMW, "fused": False}}),
    ("graph", {"graph": True, "optimizer": {**ADAMW, "_target_": "torch.optim.NAdam"}}),
    ("init_partial", {"init": None, "init_partial": True}),
    ("init_without", {"init": None, "init_without": ["fc"]}),
    ("cudnn_benchmark", {"cudnn_benchmark": True, "deterministic": True}),
    ("scheduler.T_max", {"scheduler": {"T_max": 0}, "epochs": 3}),
    ("clip_grad_value", {"clip_grad_norm": 1, "clip_grad_value": 0.5}),
    ("ema_warmup", {"ema_warmup": True, "ema": None}),
]
TURNS = {"study.ask": ["time", "accuracy"]}
SWEEP, OURS = {"hydra.mode": "MULTIRUN"}, {"hydra/launcher": "basic"}
WRONG_COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("hydra.mode", {**SWEEP, "started_by": "srun"}),
    ("study.ask", {**TURNS, "hydra/launcher": "submitit_slurm"}),
    ("study.ask", {**TURNS, **OURS, "launch.inline": True}),
]


@pytest.mark.parametrize(("field", "job"), WRONG, ids=str)
def test_a_combination_that_cannot_be_honored_is_one_line_of_three_parts(
    field: str, job: dict[str, Any]
) -> None:
    (failure,) = problems(job)
    assert re.fullmatch(rf"error: {re.escape(field)}=.+: [^;]+(; [^;]+){{2,}}", str(failure))
    assert not set("{}") & set(str(failure))


@pytest.mark.parametrize(("field", "command"), WRONG_COMMANDS, ids=str)
def test_what_a_command_cannot_be_asked_for_is_one_line_of_three_parts(
    field: str, command: dict[str, Any]
) -> None:
    (failure,) = problems(command, REFUSED_COMMANDS)
    assert re.fullmatch(rf"error: {re.escape(field)}=.+: [^;]+(; [^;]+){{2,}}", str(failure))
    assert not set("{}") & set(str(failure))


@pytest.mark.parametrize("asked", [{}, {**TURNS, **OURS}, {"launch.inline": True}], ids=str)
def test_what_a_command_can_be_asked_for_is_allowed(asked: dict[str, Any]) -> None:
    assert problems(asked, REFUSED_COMMANDS) == []


def test_each_row_of_the_tables_has_an_example_here() -> None:
    for rows, examples in ((REFUSED, WRONG), (REFUSED_COMMANDS, WRONG_COMMANDS)):
        jobs = [by_key(job) for _, job in examples]
        assert [row for row in rows if not any(row.when(job) for job in jobs)] == []


def test_rows_name_keys_that_there_are() -> None:
    of_torch = {"optimizer.fused", "optimizer.foreach", "scheduler.T_max"}
    of_hydra = {"hydra.mode", "hydra/launcher", "started_by"}
    rows = [*REFUSED, *REFUSED_COMMANDS]
    words = {word for row in rows for word in re.findall(r"{([\w./]+)}", row.sentence)}
    named = {row.field for row in rows} | words - WORDS.keys()
    assert {name for name in named - of_torch - of_hydra if find(name) is None} == set()
    assert WORDS.keys() <= words


@pytest.mark.parametrize(
    "job",
    [
        {"dataset": VOLUMES, "model": {"input_channels": 3}},  # gray: repeated
        {"dataset": IMAGES, "model": {"input_channels": 3}},
        {"dataset": {"classes": None}, "task": {"classes": None}},  # counted
        {"dataset": {"ignore": 255}, "task": {"classes": 3}},  # one that knows no void
        {"dataset": {"ignore": 255}, "task": {"ignore": "${oc.select:dataset.ignore,255}"}},
        {"dataset": {"cache": "disk", "cache_dir": "here"}},
        {"device": "cuda:1", "parallel": NONE},
        {"device": "cpu", "parallel": DDP},
        {"parallel": {**DP, "devices": [0, 2]}},
        {"parallel": FSDP, "optimizer": ADAMW, "compile": {"mode": "default"}},
        {"parallel": FSDP, "optimizer": {**SGD, "fused": False}},
        {"parallel": FSDP, "optimizer": {"_target_": "mine.SGD", "fused": True}},
        {"parallel": DDP, "optimizer": SGD, "compile": {"mode": "reduce-overhead"}},
        {"parallel": TENSOR, "optimizer": {**ADAMW, "fused": False}, "clip_grad_norm": None},
        {"graph": True, "parallel": DP, "optimizer": SGD, "accumulate": 4},
        {"graph": False, "compile": {"mode": "max-autotune"}, "parallel": DDP},
        {"init": "run", "init_partial": True, "init_without": ["fc"]},
        {"init": None, "init_partial": False, "init_without": None},
        {"cudnn_benchmark": True, "deterministic": False},
        {"scheduler": {"T_max": 0}, "epochs": 0},
        {"clip_grad_norm": 1, "clip_grad_value": None},
        {"ema_warmup": True, "ema": 0.9},
        {"ema_warmup": False, "ema": None},
        {"optimizer": None, "parallel": {}},
    ],
    ids=str,
)
def test_what_can_be_honored_is_allowed(job: dict[str, Any]) -> None:
    assert problems(job) == []


def test_the_line_says_values_as_they_are_typed() -> None:
    (failure,) = problems({"parallel": {**DP, "devices": [0, 1]}, "graph": True})
    assert str(failure) == (
        "error: graph=true: parallel.devices=[0, 1] are several devices; a step on one GPU can be "
        "recorded; name one, or set graph=false"
    )


def test_all_combinations_are_told_at_once() -> None:
    found = problems({"parallel": TENSOR, "clip_grad_norm": 1.0, "compile": {"mode": "default"}})
    assert [failure.field for failure in found] == ["clip_grad_norm", "compile.mode"]


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (["parallel=ddp", "graph=true"], "graph"),
        (["parallel=dp", "parallel.devices=[0,1]", "graph=true"], "graph"),
        (["parallel=fsdp", "optimizer=sgd"], "optimizer.fused"),
        (["parallel=tensor"], "parallel.colwise"),
    ],
    ids=str,
)
def test_the_options_of_conf_have_the_keys_that_the_rows_ask_for(
    job: list[str], field: str
) -> None:
    with pytest.raises(ConfigError, match=f"error: {field}="):
        ours.job(*job)


def test_the_rest_of_what_a_graph_can_record_is_allowed() -> None:
    for job in (["parallel=dp"], ["optimizer=sgd", "amp=scaler", "accumulate=4"]):
        assert ours.job("graph=true", *job).resolved["graph"] is True


def test_one_line_says_so_before_a_folder_is_made(shell: Shell) -> None:
    fused, copies = one_after_another(
        shell,
        ["train.py", "parallel=fsdp", "optimizer=sgd"],
        ["train.py", "parallel=fsdp", "parallel.processes=4", "parallel.replicas=3"],
    )
    assert (fused.returncode, fused.stderr) == (
        2,
        "error: optimizer.fused=true: fused SGD has no rule for sharded parameters; Adam and AdamW "
        "have one; set optimizer.fused=false\n",
    )
    assert copies.returncode == 2
    assert copies.stderr.startswith("error: parallel.replicas=3: does not divide 4 processes;")
    assert not (shell.folder / "outputs").exists()


def test_a_stored_run_that_cannot_be_recorded_is_not_resumed_with_a_graph(shell: Shell) -> None:
    job = ["parallel=ddp", "parallel.processes=1", "logger=quiet", "hydra.run.dir=run"]
    done = shell.train(*job, "max_steps=1", "threads=1")
    assert done.returncode == 0, done.stderr
    done = shell.train("resume=run", "graph=true", "max_steps=2")
    assert done.returncode == 2
    assert done.stderr.startswith("error: graph=true: this strategy can have several processes")
