"""What every project can rely on, whatever it trains: nine cells, a kill and its resume.

A project is a row of PROJECTS: a task with its data set and network. One that compiles its network
and those whose data set and task come from outside the package are rows like the others.
"""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import load_weights, weights
from ninefold.logger.jsonl import JSONLines
from ninefold.model.convnet import ConvNet
from tests.conftest import ROOT, Shell, metrics, result
from tests.dataset import scenes
from tests.faults.runs import one_after_another
from tests.kit import same

pytestmark = pytest.mark.slow

PARALLEL, AMP = ("none", "dp", "ddp"), ("fp32", "autocast", "scaler")
STEPS, KILLED_AT = 13, 8
# Of a training loss, from parallel=none's. bfloat16 keeps 8 bits, and processes that sum in another
# order differ by that after a few updates.
TOLERANCE = {"fp32": 2e-5, "autocast": 3e-2, "scaler": 3e-2}
EXAMPLES = ROOT / "examples"
PROJECTS = {
    "classification": [
        "model.net.width=8", "batch_size=16", "dataset.limit=96", "dataset.flip=true",
        "dataset.crop=1", "scheduler.patience=0", "+scheduler.threshold=0.99", "ema=0.9",
    ],
    "regression": ["task=regression", "dataset=diabetes", "model=mlp", "batch_size=64"],
    "multilabel": [
        f"--config-dir={EXAMPLES}/multilabel/conf", "task=multilabel", "dataset=shapes",
        "dataset.train_count=192", "dataset.test_count=50", "model.net.width=8", "batch_size=32",
    ],
    "segmentation": [
        "task=segmentation", "dataset=masks", f"dataset.classes={scenes.CLASSES}",
        f"dataset.ignore={scenes.VOID}", "dataset.shape=[3,24,32]", "dataset.crop=2", "model=unet",
        "model.net.width=4", "model.net.depth=2", "batch_size=8",
        # AdamW divides by the size of a gradient: rounding errors of small ones become steps.
        "optimizer=sgd", "optimizer.lr=0.01",
    ],
    "language": [
        f"--config-dir={EXAMPLES}/language/conf", "task=language", "dataset=text", "model=gpt",
        "dataset.context=16", "model.net.width=16", "dataset.limit=256", "batch_size=32",
    ],
    "compiled": ["compile=true", "model.net.width=8", "batch_size=16", "dataset.limit=96"],
    # Items of a class of the user's that draw their own transforms, which processes read ahead.
    "items": [
        "dataset=mapped", "dataset.train={_target_: tests.dataset.mine.Digits, count: 96}",
        "dataset.test={_target_: tests.dataset.mine.Digits, count: 40, seed: 1, moves: false}",
        "dataset.shape=[1,8,8]", "loader.workers=2", "model.net.width=8", "batch_size=16",
    ],
    # Several inputs, targets and outputs, in tuples and dicts.
    "structured": [
        "--config-dir=own", "model=pair", "dataset=mapped", "task=own_loss",
        "dataset.train={_target_: tests.dataset.mine.Item, kind: pair}",
        "dataset.test={_target_: tests.dataset.mine.Item, kind: pair, count: 20}",
        "task.loss={_target_: tests.dataset.kinds.of_pair, _partial_: true}", "batch_size=8",
        "optimizer=sgd", "optimizer.lr=0.02",
    ],
}  # fmt: skip
PAIR = "net: {_target_: tests.dataset.kinds.Pair}\n"
Cells = Mapping[tuple[str, str], Path]


class Killing(JSONLines):
    """metrics.jsonl, and where KILL is set SIGKILL for the process that logs, amid a run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        super().log(step, values)
        if step == KILLED_AT and "KILL" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)


KILLING = f"logger.jsonl._target_={__name__}.Killing"


@pytest.fixture(scope="module", params=PROJECTS)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nine cells, a ddp run that was killed and resumed, and an evaluation."""
    shell = Shell(tmp_path_factory.mktemp(request.param), seconds=900)  # a compiler takes long
    words = [
        *PROJECTS[request.param], "epochs=9", f"max_steps={STEPS}", "log_every=1", "threads=2",
        "clock.warmup=0", "logger=quiet", "launch.cpu_processes=2", "checkpoint.every=2",
    ]  # fmt: skip
    if request.param == "segmentation":
        words.append(f"dataset.root={scenes.write(shell.folder / 'scenes')}")
    options = shell.folder / "own" / "model"
    options.mkdir(parents=True)
    (options / "pair.yaml").write_text(PAIR)
    env = {"PYTHONPATH": f"{ROOT}:{EXAMPLES}/language:{EXAMPLES}/multilabel"}
    sweep = ["study.ask=[score]", "hydra.sweep.dir=sweep", "parallel.processes=auto"]
    alone = ["parallel=ddp", "hydra.run.dir=killed", KILLING]
    (killed,) = one_after_another(shell, ["train.py", *words, *alone], env={**env, "KILL": "1"})
    assert killed.returncode == 5, killed
    cells = [f"parallel={','.join(PARALLEL)}", f"amp={','.join(AMP)}"]
    one_after_another(
        shell,
        ["train.py", "resume=killed", KILLING, "trust=true"],
        ["train.py", "-m", *words, *sweep, *cells],
        ["evaluate.py", "ckpt=killed", "hydra.run.dir=evaluation", "trust=true"],
        env=env,
        code=0,
    )
    return shell.folder


@pytest.fixture(scope="module")
def cells(project: Path) -> Cells:
    runs = [path.parent for path in (project / "sweep").glob("*/result.json")]
    found = {(result(run)["parallel"], result(run)["amp"]): run for run in runs}
    assert len(runs) == len(found) == 9
    return found


def test_the_same_global_batches_give_the_same_losses_in_all_cells(cells):
    for (parallel, amp), run in cells.items():
        for key in ("loss", "test_loss"):
            reference, found = (metrics(folder, key) for folder in (cells["none", amp], run))
            assert found == pytest.approx(reference, rel=TOLERANCE[amp]), (parallel, amp, key)
        assert len(metrics(run, "loss")) == STEPS
        assert metrics(run, "test_loss")
    assert len({tuple(metrics(run, "lr")) for run in cells.values()}) == 1


def test_checkpoints_of_all_cells_have_the_plain_networks_keys(cells):
    saved = {cell: read(run / "checkpoints" / "last.pt") for cell, run in cells.items()}
    (keys,) = {tuple(content["model"]) for content in saved.values()}
    assert len({tuple(content["optimizer"]["state"]) for content in saved.values()}) == 1
    assert saved["none", "fp32"]["optimizer"]["state"]
    if result(cells["none", "fp32"])["dataset"] == "digits":
        assert load_weights(ConvNet(1, 10, 8), weights(saved["ddp", "scaler"])).complete
        assert keys == tuple(ConvNet(1, 10, 8).state_dict())
    for amp in AMP:  # on a CPU dp is the run without parallelism
        assert same(saved["dp", amp]["model"], saved["none", amp]["model"])


def test_every_cell_says_what_was_in_force(cells):
    for (parallel, amp), run in cells.items():
        found = result(run)
        assert (found["status"], found["steps"]) == ("ok", STEPS)
        assert found["processes"] == (2 if parallel == "ddp" else 1)
        assert found["dtype"] == ("float32" if amp == "fp32" else "bfloat16")
        assert found["grad_scaler"] is (amp == "scaler")
        assert found["max_processes"] == (None if parallel == "ddp" else 1)
        assert found["backend"] == ("gloo" if parallel == "ddp" else None)
        assert found["no_op"] is (parallel == "dp")
        assert any("no-op" in note for note in found["notes"]) == (parallel == "dp")
        shared = "2 processes share the 2 CPU threads that one process would have."
        assert (shared in found["notes"]) == (parallel == "ddp")
        own_val = found["dataset"] == "masks"  # its folder has one
        assert (found["selection"] == "val") == (found["val_count"] is not None) == own_val
        advised = any("dataset.val=0.1 keeps a validation split" in note for note in found["notes"])
        assert advised == (not own_val)
        assert len(found["peak_memory_bytes"]) == len(found["devices"]) == found["processes"]
        assert found["threads"] == 2  # of all processes together
        assert (found["compile_seconds"] is not None) == ("compiled" in str(run))


def test_a_run_that_was_killed_and_resumed_is_bitwise_one_that_never_stopped(project, cells):
    killed, whole = project / "killed", cells["ddp", "fp32"]
    for key in ("loss", "lr", "test_loss", "test_score"):
        assert metrics(killed, key) == metrics(whole, key), key
    ours, theirs = (read(run / "checkpoints" / "last.pt") for run in (killed, whole))
    for key in ours.keys() - {"config", "train_seconds", "evaluate_seconds", "epoch_seconds"}:
        assert same(ours[key], theirs[key]), key


def test_an_evaluation_of_one_process_finds_the_figures_of_a_run_of_two(project):
    found = json.loads((project / "evaluation" / "evaluation.json").read_text())
    trained = result(project / "killed")
    for key in ("score_name", "score_unit", "score_better", "figures"):
        assert found[key] == trained[key], key
    for key in ("score", "scores"):
        assert found[key] == pytest.approx(trained[key], rel=1e-6), key
    assert found["count"] == trained["test_count"]
    best = min if trained["score_better"] == "less" else max
    selecting = metrics(project / "killed", f"{trained['selection']}_score")
    assert trained["best_score"] == best(selecting)
