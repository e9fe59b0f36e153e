"""A learning rate is found for a job, without a run."""

import json
import math
import signal
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import ours
from ninefold.errors import ConfigError, NumericsError
from ninefold.extensions.finders.__main__ import main
from ninefold.extensions.finders.rates import (
    DivergenceDetector,
    losses_at,
    read,
    require_finite_first,
)
from tests.conftest import Shell, wait_until

SMALL = ("dataset.limit=256", "batch_size=32", "threads=2", "hydra.run.dir=found")


def rates_of(shell: Shell, *overrides: str) -> dict[str, Any]:
    done = shell.run("-m", "ninefold", "finders", "what=lr", *SMALL, *overrides, code=0)
    found: dict[str, Any] = json.loads((shell.folder / "found" / "lr.json").read_text())
    line = f"optimizer.lr={found['suggestion']:.2g}"
    last = done.stdout.splitlines()[-1]
    assert last.startswith("train with it: python -m ninefold train dataset.limit")
    assert done.stdout.splitlines()[-1].endswith(line)
    return found


def test_a_learning_rate_is_found_and_no_run_is_left(shell):
    found = rates_of(shell, "low=1e-5", "high=100", "steps=40")
    assert found["rates"][0] == pytest.approx(1e-5)
    assert len(found["rates"]) == len(found["losses"]) <= 40
    assert 1e-5 <= found["suggestion"] < found["diverges"] <= 100
    with Image.open(shell.folder / "found" / "lr.png") as picture:
        assert picture.size[0] > 300
    left = {path.name for path in (shell.folder / "found").iterdir()}
    assert not left & {"result.json", "checkpoints", "metrics.jsonl", "tensorboard"}


def test_without_matplotlib_a_search_of_a_rate_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["what=lr"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: what=lr: matplotlib is not installed; the extra finders has it; pip install "
    )


def test_a_signal_ends_the_search_and_no_process_is_left(shell):
    rates = ("what=lr", "low=1e-9", "high=2e-9", "steps=999999", *SMALL)
    process = shell.start("-m", "ninefold", "finders", *rates)
    wait_until((shell.folder / "found" / "run.log").exists, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    stopped = "error: signal=SIGINT: the search was stopped; nothing of it is kept; start it again"
    assert (process.returncode, stderr) == (130, f"{stopped}\n")
    assert not shell.survivors()


@pytest.mark.slow
def test_a_scheduler_that_sets_the_rate_itself_does_not_change_what_is_found(shell):
    one_cycle = ("scheduler=cosine", "scheduler.per=step", "scheduler.warmup=5", "~scheduler.T_max")
    one_cycle += ("scheduler._target_=torch.optim.lr_scheduler.OneCycleLR",)
    one_cycle += ("+scheduler.max_lr=0.1", "+scheduler.total_steps=80")
    plain = rates_of(shell, "steps=10")
    (shell.folder / "found").rename(shell.folder / "plain")
    assert rates_of(shell, "steps=10", *one_cycle)["losses"] == plain["losses"]


def test_the_rate_is_where_the_loss_falls_fastest_or_a_tenth_of_where_it_diverges():
    rates = [10 ** (-4 + n / 20) for n in range(100)]
    losses = [2.0 if r < 1e-2 else 2.0 - min(1.5, 30 * (r - 1e-2)) for r in rates]
    calm = read(rates, losses)
    assert calm.diverges is None
    assert calm.suggestion == calm.steepest > 1e-2
    early = read(rates, [*losses[:45], 50.0])
    assert early.diverges == rates[45]
    assert early.suggestion == pytest.approx(min(early.steepest, rates[45] / 10))
    assert read(rates, [2.0, 1.9, math.nan]).diverges == rates[2]


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_noise_in_the_first_losses_neither_is_a_divergence_nor_suggests_a_tiny_rate(noise):
    rates = [1e-7 * 1e7 ** (n / 99) for n in range(100)]
    for seed in range(50):
        draw = np.random.default_rng(seed)
        loss, losses = 2.3, []
        for rate in rates:
            loss -= (loss - 0.3) * min(0.15, 50 * rate)
            losses.append(loss * math.exp(noise * draw.standard_normal()))
        assert read(rates, losses).suggestion > 1e-4, seed
        lucky = read(rates, [0.1, *losses[1:]])  # one easy first batch
        assert lucky.diverges is None, seed


def test_averages_have_no_bias_and_one_bad_step_is_no_divergence():
    assert read([0.1, 0.2, 0.3], [3.0, 3.0, 3.0]).smoothed == pytest.approx([3.0] * 3)
    watch = DivergenceDetector(12)
    losses = (2.0, 2.0, 2.0, 2.0, 2.0, 25.0, 2.0)
    assert [watch.diverged(loss) for loss in losses] == [False] * 7
    assert watch.diverged(50.0)
    assert DivergenceDetector(100).diverged(math.inf)
    with pytest.raises(NumericsError, match="error: what=lr: the loss of the first step is nan; "):
        require_finite_first([math.nan])


def test_parameters_with_a_rate_of_their_own_keep_it_as_in_the_training_that_follows():
    job = ("dataset.limit=64", "clock.warmup=0", "optimizer.lr=1e-3")
    with ours.training(*job, "optimizer.groups=[{match: '*.bias', lr: 0.5}]") as run:
        losses_at(run, [1e-4, 2e-4])
        assert [group["lr"] for group in run.state.optimizer.param_groups] == [2e-4, 0.5]
    equal = "optimizer.groups=[{match: '*.bias', lr: 1e-3}, {match: '*', weight_decay: 0.1}]"
    with ours.training(*job, equal) as run:
        losses_at(run, [2e-4])
        assert [group["lr"] for group in run.state.optimizer.param_groups] == [1e-3, 2e-4]
    with (
        ours.training(*job, "optimizer.groups=[{match: '*', lr: 0.5}]") as run,
        pytest.raises(ConfigError, match=r"each group of optimizer\.groups has an lr of its own"),
    ):
        losses_at(run, [1e-4])


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([], "error: what=null: no such search; lr, batch_size are allowed; type "),
        (["what=speed"], "error: what=speed: no such search; "),
        (["what=lr", "steps=2"], "error: steps=2: not allowed; a whole number from 10 to 999999 "),
        (["what=lr", "steps=10000000000"], "error: steps=10000000000: not allowed; "),
        (["what=lr", "steps=²"], "error: steps=²: not allowed; "),
        (["what=lr", "low=2"], "error: low=2: high is 1; a lower learning rate "),
        (["what=lr", "low=1e-300"], "error: low=1e-300: float32, in which networks train, "),
        (["what=lr", "high=0"], "error: high=0: float32, in which networks train, "),
        (["what=lr", "resume=auto"], "error: resume=auto: a search begins with new weights "),
    ],
)
def test_what_cannot_be_searched_is_one_line(shell, capfd, given, line):
    assert main(given) == 2
    said = capfd.readouterr().err
    assert said.startswith(line), said
    assert said.count("\n") == 1
    assert not list(shell.folder.glob("outputs"))
