"""A change is kept, discarded or run again by the scores of paired seeds."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

from ninefold.bench.command import INJECT, Command
from ninefold.bench.precisions import in_precisions
from ninefold.bench.score import (
    DISCARD,
    KEEP,
    MORE,
    Judgement,
    Rule,
    judge,
    score_of,
    seeds_of,
)
from ninefold.bench.series import level_of_next, opened
from ninefold.bench.whole import run_whole
from ninefold.errors import ConfigError
from ninefold.types import SEEDS
from tests.conftest import Shell

LESS = Rule(re.compile("loss: (.*)"), "less", 0.01)
ALWAYS = f"{sys.executable} -c 'print(\"loss: 1\")'"
SCORES = "import random, sys\nrandom.seed(sys.argv[0] + sys.argv[1])\nprint('loss:', {})\n"
SCORED = ("-m", "ninefold", "bench", "--score=loss: ([0-9.]+)", "--better=less", "--margin=0.01")


AS_GOOD = replace(LESS, as_good=True)


def verdicts(gain: float, rule: Rule = LESS, count: int = 200) -> list[str]:
    """What judges of scores say whose mean gain is this, with a noise of 0.01."""
    draw, found = np.random.default_rng(1), []
    for _ in range(count):
        pairs = [(draw.normal(1, 0.01), draw.normal(1 - gain, 0.01)) for _ in range(SEEDS[-1])]
        said = (judge(pairs[:seeds], rule).verdict for seeds in SEEDS)
        found.append(next((verdict for verdict in said if verdict != MORE), MORE))
    return found


def test_what_is_equal_is_seldom_kept_and_what_gains_twice_the_margin_seldom_discarded() -> None:
    assert verdicts(0.0).count(KEEP) <= 10
    assert verdicts(0.02).count(DISCARD) <= 10
    assert verdicts(0.0).count(DISCARD) >= 100
    assert verdicts(0.02).count(KEEP) >= 150


def test_a_change_that_is_to_be_as_good_is_kept_unless_it_loses_the_margin() -> None:
    assert verdicts(0.0, AS_GOOD).count(KEEP) >= 100
    assert verdicts(-0.01, AS_GOOD).count(KEEP) <= 10
    assert verdicts(-0.01, AS_GOOD).count(DISCARD) <= 10
    assert verdicts(-0.03, AS_GOOD).count(DISCARD) >= 150


@pytest.mark.parametrize(("rule", "verdict"), [(LESS, DISCARD), (AS_GOOD, KEEP)])
def test_scores_that_are_equal_with_each_seed_decide_unless_they_may_be_rounded(
    rule: Rule, verdict: str
) -> None:
    found = judge([(of, of) for of in (1.0, 1.1, 1.2)], rule)
    assert found.verdict == verdict
    assert "B's score is equal to A's " in str(found)
    assert judge([(of, of) for of in (1.0, 1.1, 1.0)], rule).verdict == MORE


@pytest.mark.parametrize(("rule", "verdict"), [(LESS, DISCARD), (AS_GOOD, KEEP)])
def test_scores_that_are_less_than_the_margin_apart_are_as_good(rule: Rule, verdict: str) -> None:
    found = judge([(1.0, 1.0 + off) for off in (0.001, -0.001, 0.0005, -0.0004)], rule)
    assert found.verdict == verdict
    assert "as good: less than 0.01 apart" in str(found)
    worse = judge([(1.0, 1.002 + off) for off in (0.0001, -0.0001, 0.00005, -0.00004)], rule)
    assert worse.verdict == verdict
    assert "worse: less than 0.01 apart" in str(worse)


@pytest.mark.parametrize(
    ("better", "more", "code", "word"),
    [
        ("0.02", (), 0, "keep: B's score"),
        ("-0.02", (), 8, "discard: B's score"),
        ("-0.005", ("--as-good",), 0, "keep: B's score"),
    ],
)
def test_scores_that_commands_print_decide(
    shell: Shell, better: str, more: Sequence[str], code: int, word: str
) -> None:
    (shell.folder / "a.py").write_text(SCORES.format("1 + random.gauss(0, 0.001)"))
    (shell.folder / "b.py").write_text(SCORES.format(f"1 - {better} + random.gauss(0, 0.001)"))
    commands = [f"{sys.executable} {name}.py {{seed}}" for name in "ab"]
    done = shell.run(*SCORED, *more, *commands, code=code)
    assert word in done.stdout


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        (("echo loss: nan {seed}", "echo {seed}"), "its score is "),
        (("echo loss: 1e308 {seed}",) * 2, "its score is 1e308; "),
        (("echo loss: 1",) * 2, "no Python of it loaded the hook: its seeds cannot be set; "),
    ],
)
def test_a_score_that_is_none_is_an_error(
    shell: Shell, commands: tuple[str, str], words: str
) -> None:
    done = shell.run(*SCORED, "--score=loss: ([0-9.nae]+)", *commands, code=2)
    assert words in done.stderr


def test_a_part_of_a_pipe_that_fails_fails_the_run_and_one_that_wrote_on_does_not(shell) -> None:
    writes_on = "yes | sh -c 'read a; echo loss: {seed}'"
    fails = "sh -c 'echo loss: {seed}; exit 3' | cat"
    done = shell.run(*SCORED, writes_on, fails, code=2)
    assert done.stderr.startswith(f"error: command={fails}: it ended with code 3; ")


def test_a_script_that_no_seed_moves_is_told_so_and_started_no_more(shell: Shell) -> None:
    done = shell.run(*SCORED, ALWAYS, ALWAYS, code=9)
    assert done.stdout.startswith("more runs: ")
    assert "A has the same score with each seed: no seed that is set from outside" in done.stdout
    assert f"{SEEDS[1]} seeds in" in done.stdout


DRAWS = """
import json, random, sys
SEED
out = sys.argv[1]
json.dump({"val": {"loss": [random.random(), random.Random(7).random()]}}, open(out, "w"))
print("drew", random.random())
"""


@pytest.mark.parametrize("seeds", ["random.seed(42)", "random.seed(a=42)", "pass"])
def test_each_round_has_another_seed_and_it_is_the_same_for_both(shell: Shell, seeds: str) -> None:
    (shell.folder / "draw.py").write_text(DRAWS.replace("SEED", seeds))
    command = Command(f"{sys.executable} draw.py {{out}}/m.json", "A", folder=shell.folder)
    found = []
    for name in "AB":
        for seed in range(3):
            this = replace(command, name=name)
            run_whole(this, seed, shell.folder, seeds_of(this, seed))
            log = this.log(shell.folder, seed)
            found.append([score_of(log, this, f"{{out}}/m.json:val.loss.{n}") for n in (0, 1)])
    drawn, fixed = zip(*found, strict=True)
    assert drawn[:3] == drawn[3:]
    assert len({*drawn}) == 3
    assert len({*fixed}) == 1  # a generator of its own stays as it is
    if seeds != "pass":
        assert drawn[0] == random.Random(42).random()  # the first round is as it was written


NEW = """
import numpy as np
import torch

class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.random.default_rng().random(), np.random.rand()

options = {"num_workers": 2, "worker_init_fn": lambda _: np.random.seed()}
for noise, other in torch.utils.data.DataLoader(Noise(), batch_size=2, **options):
    print("noise", *noise.tolist(), *other.tolist())
"""


def test_calls_without_a_seed_draw_other_numbers_each_and_the_same_in_both(shell: Shell) -> None:
    (shell.folder / "new.py").write_text(NEW)
    found = []
    for name in "AB":
        command = Command(f"{sys.executable} new.py", name, folder=shell.folder)
        run_whole(command, 1, shell.folder, seeds_of(command, 1))
        found.append(re.findall(r"0\.\d+", command.log(shell.folder, 1).read_text()))
    assert found[0] == found[1]
    assert len({*found[0]}) == 8, found[0]


@pytest.mark.parametrize(
    ("seed", "moved"),
    [(7, 10), (np.int64(7), 10), ("seven", "seven"), ((7, 8), (7, 8))],
)
def test_the_number_of_the_round_is_added_to_seeds_that_are_whole_numbers(
    monkeypatch: pytest.MonkeyPatch, seed: object, moved: object
) -> None:
    monkeypatch.setenv("NINEFOLD_BENCH_SEED", "3")
    by = run_path(str(INJECT / "ninefold_bench_seeds.py"))["by"]
    assert by(seed) == moved
    several = np.array([7, 8])
    assert by(several) is several


def test_the_judgements_of_a_series_spend_less_the_longer_nothing_is_kept() -> None:
    levels = [level_of_next([False] * n) for n in range(50)]
    assert levels == sorted(levels, reverse=True)
    assert sum(levels) < 0.05
    assert level_of_next([True]) > levels[0]


def judgement(verdict: str) -> Judgement:
    return Judgement(verdict, 3, 0.1, None, None, "", None, "AB")


def test_a_series_is_a_file_to_which_one_bench_at_a_time_adds_its_judgement(tmp_path: Path) -> None:
    file = tmp_path / "series.jsonl"
    for verdict in (KEEP, DISCARD, KEEP):
        with opened(file) as series:
            assert series is not None
            said = series.add(judgement(verdict), [Command("a"), Command("b")])
            with pytest.raises(ConfigError, match="another bench adds"), opened(file):
                pass
    assert said == "This series: 2 of 3 kept, of which 0.1 at most are noise in the mean."
    file.write_text(file.read_text().rstrip())  # as an editor may leave it
    with opened(file) as series:
        assert series is not None
        assert series.level == level_of_next([True, False, True])
        series.add(judgement(DISCARD), [Command("a"), Command("b")])
    with opened(file) as series:
        assert series is not None
        assert series.kept == [True, False, True, False]
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic link"), opened(tmp_path / "link"):
        pass
    for other in ("[1]", "my notes", "my notes\n{"):
        file.write_text(other)
        with pytest.raises(ConfigError, match="a line of it is no judgement"), opened(file):
            pass
        assert file.read_text() == other


@pytest.mark.slow
def test_precisions_of_a_script_with_a_fixed_seed_are_judged_by_its_score(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(TRAINS)
    options = ("--precisions=fp32,bf16", "--margin=0.1")
    done = shell.run(*SCORED, *options, f"{sys.executable} train.py")
    assert done.stdout.startswith("keep: bf16's score is ")  # as good is what is asked of it


FOLDS = """
import torch

def made():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model[0].register_forward_hook(lambda module, given, found: print(found.dtype))
    return model, torch.optim.SGD(model.parameters(), 0.1)

def train(model, optimizer):
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()

"""


def in_bf16(shell: Shell, text: str) -> str:
    """What a whole run of a script prints that is to compute in bf16."""
    (shell.folder / "script.py").write_text(text)
    command = Command(f"{sys.executable} script.py", "A", folder=shell.folder)
    [lower] = in_precisions(command, ["bf16"])
    run_whole(lower, 0, shell.folder, seeds_of(lower, 0))
    return lower.log(shell.folder, 0).read_text()


@pytest.mark.parametrize(
    "loop",
    ["for _ in range(3): train(*made())", "for pair in [made() for _ in range(3)]: train(*pair)"],
)
def test_each_network_of_a_whole_run_computes_in_the_precision_that_is_asked_for(
    shell: Shell, loop: str
) -> None:
    printed = in_bf16(shell, FOLDS + loop)
    assert re.findall(r"torch\.\w+", printed) == 6 * ["torch.bfloat16"], printed


COPIES = """
import copy
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.ones(1, 4)
model(x).sum().backward()
optimizer.step()
best = copy.deepcopy(model)
torch.save(best, "best.pt")
with torch.no_grad():
    [weight.zero_() for weight in model.parameters()]
print("score", float(best(x) - torch.load("best.pt", weights_only=False)(x)), float(best(x)))
"""


def test_a_copy_of_a_network_in_another_precision_has_weights_of_its_own(shell: Shell) -> None:
    printed = in_bf16(shell, COPIES)
    apart, of_best = map(float, re.findall(r"score (\S+) (\S+)", printed)[0])
    assert of_best != 0.0
    assert abs(apart) < 0.1 * abs(of_best)


def test_a_run_that_leaves_its_environment_for_another_is_refused(shell: Shell) -> None:
    (shell.folder / "env" / "bin").mkdir(parents=True)
    (shell.folder / "env" / "bin" / "python").symlink_to("/bin/true")
    command = f"cd . && {ALWAYS}"
    done = shell.run(*SCORED, "--env=env", command, command, code=2)
    assert f"its Python is that of {sys.prefix}; python alone is that of --env" in done.stderr


@pytest.mark.slow
def test_a_change_that_does_not_happen_is_refused_before_the_first_run(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(TRAINS)
    command = ("--strategies=none,ddp", "--keep=kept", f"{sys.executable} train.py")
    done = shell.run(*SCORED, *command, env={"CUDA_VISIBLE_DEVICES": ""}, code=2)
    assert "each of the 2 processes of ddp trains a copy of its own" in done.stderr
    assert [log.name for log in (shell.folder / "kept").glob("*/*.log")] == ["21.log"] * 2


def test_a_run_that_fails_takes_no_earlier_score_and_leaves_the_judgement_that_was_seen(
    shell: Shell,
) -> None:
    ends = "test {seed} -lt 3 && echo loss: 1"
    files = ("--series=s.jsonl", "--json=found.json")
    done = shell.run(*SCORED, *files, ALWAYS, ends, code=2)
    assert done.stdout.startswith("more runs: ")
    assert "it ended with code 1" in done.stderr
    assert "This series: 0 of 1 kept" in done.stdout
    assert len((shell.folder / "s.jsonl").read_text().splitlines()) == 1
    assert json.loads((shell.folder / "found.json").read_text())["exit"] == 2


TRAINS = """
import torch
torch.manual_seed(42)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
inputs = torch.randn(256, 8)
for _ in range(30):
    loss = (model(inputs) - inputs[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert loss.dtype == torch.float32
print("loss:", loss.item())
"""
