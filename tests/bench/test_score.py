"""A change is kept, discarded or run again by the scores of paired seeds."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from ninefold.bench.score import DISCARD, KEEP, MORE, Rule, judge
from ninefold.types import SEEDS
from tests.conftest import Shell

LESS = Rule(re.compile("loss: (.*)"), "less", 0.01)
SCORES = "import random, sys\nrandom.seed(sys.argv[0] + sys.argv[1])\nprint('loss:', {})\n"


def verdicts(gain: float, count: int = 200) -> list[str]:
    """What judges of scores say whose mean gain is this, with a noise of 0.01."""
    draw, found = np.random.default_rng(1), []
    for _ in range(count):
        pairs = [(draw.normal(1, 0.01), draw.normal(1 - gain, 0.01)) for _ in range(SEEDS[-1])]
        said = (judge(pairs[:seeds], LESS).verdict for seeds in SEEDS)
        found.append(next((verdict for verdict in said if verdict != MORE), MORE))
    return found


def test_what_is_equal_is_seldom_kept_and_what_gains_twice_the_margin_seldom_discarded() -> None:
    assert verdicts(0.0).count(KEEP) <= 10
    assert verdicts(0.02).count(DISCARD) <= 10
    assert verdicts(0.0).count(DISCARD) >= 100
    assert verdicts(0.02).count(KEEP) >= 150


@pytest.mark.parametrize(
    ("better", "code", "word"), [("0.02", 0, "keep: B's score"), ("-0.02", 8, "discard: B's score")]
)
def test_scores_that_commands_print_decide(shell: Shell, better: str, code: int, word: str) -> None:
    (shell.folder / "a.py").write_text(SCORES.format("1 + random.gauss(0, 0.001)"))
    (shell.folder / "b.py").write_text(SCORES.format(f"1 - {better} + random.gauss(0, 0.001)"))
    commands = [f"{sys.executable} {name}.py {{seed}}" for name in "ab"]
    options = ("--score=loss: ([0-9.]+)", "--better=less", "--margin=0.01")
    done = shell.run("-m", "ninefold", "bench", *options, *commands, code=code)
    assert word in done.stdout


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        (("echo loss: 1", "echo loss: 1"), "it has no {seed}; runs of one seed show nothing"),
        (("echo loss: nan {seed}", "echo {seed}"), "its score is "),
        (("echo loss: 1e308 {seed}",) * 2, "its score is 1e308; "),
    ],
)
def test_a_score_that_is_none_is_an_error(
    shell: Shell, commands: tuple[str, str], words: str
) -> None:
    options = ("--score=loss: ([0-9.nae]+)", "--better=less", "--margin=0.01")
    done = shell.run("-m", "ninefold", "bench", *options, *commands, code=2)
    assert words in done.stderr
