"""`ninefold bench --try` changes one thing of a script at a time, and says which line helps."""

import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from ninefold.bench.changes import (
    AS_IT_IS,
    PARTS,
    TOGETHER,
    of_machine,
    with_changes,
)
from ninefold.bench.command import INJECT, Command
from ninefold.bench.measurements import Options
from ninefold.bench.messages import Script
from ninefold.bench.summary import Summary
from ninefold.bench.trial import ChangesTrial

HAS = """
import json
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4))
loader = DataLoader(torch.randn(64, 3, 8, 8), batch_size=8)
other = nn.Sequential(nn.Conv2d(3, 4, 3))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model(next(iter(loader)))
with torch.no_grad():
    other(torch.zeros(2, 3, 8, 8))
other(torch.zeros(2, 3, 8, 8))
layout = torch.channels_last
print(json.dumps({
    "workers": loader.num_workers, "persistent": loader.persistent_workers,
    "threads": torch.get_num_threads(), "fused": bool(optimizer.defaults["fused"]),
    "lr": optimizer.defaults["lr"],
    "compiled": [each._compiled_call_impl is not None for each in (model, other)],
    "channels_last": [m[0].weight.is_contiguous(memory_format=layout) for m in (model, other)],
}))
"""
WITHOUT = {"workers": 0, "persistent": False, "fused": False, "lr": 1e-3,
           "compiled": [False, False], "channels_last": [False, False]}  # fmt: skip
LOADERS = """
import json, sys
import torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(4, 2))

DataLoader([torch.ones(2)], num_workers=3)
loader = DataLoader(Stream())
next(iter(loader))
print(json.dumps(sys.modules["ninefold_bench_changes"].SEEN), loader.num_workers)
"""
SLOW_ITEMS = """
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((32,), float(index % 7))


if __name__ == "__main__":
    model = torch.nn.Linear(32, 8)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for rows in DataLoader(Rows(), batch_size=8):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
"""
LOADER_LINE = 1 + SLOW_ITEMS[: SLOW_ITEMS.index("DataLoader(Rows()")].count("\n")


def script(**named: object) -> Script:
    plain = {
        "loader": "train.py:9", "optimizer": "train.py:10", "network": "train.py:12", "workers": 0,
        "threads": 2, "fused": False, "convolutions": True, "compiled": False, "cuda": False,
        "iterable": False, "computes": "float32", "world": 1,
    }  # fmt: skip
    return Script(**{**plain, **named})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("change", "has", "why"),
    [
        ("workers=2", {"workers": 2}, "already there"),
        ("workers=2", {"workers": 4}, None),
        ("workers=0", {"workers": 4}, None),
        ("workers=0", {}, "already there"),
        ("workers=2", {"workers": None}, "no DataLoader"),
        ("workers=2", {"iterable": True}, "each worker may read all of an IterableDataset"),
        ("threads=2", {}, "already there"),
        ("threads=1", {"cuda": True}, "the GPU computes"),
        ("bf16", {"computes": "bfloat16"}, "already there"),
        ("bf16", {"computes": "float16"}, "it computes in float16"),
        ("channels_last", {"convolutions": False}, "no convolution"),
        ("fused", {"fused": True}, "already there"),
        ("fused", {"fused": None}, "no optimizer of PyTorch that can be"),
        ("compile", {"compiled": True}, "already there"),
        ("workers=2", {}, None),
        ("threads=1", {}, None),
        ("bf16", {"cuda": True}, None),
        ("compile", {}, None),
    ],
)
def test_what_a_script_has_or_cannot_use_is_not_tried(change, has, why):
    (found,) = [each for each in of_machine(4) if each.name == change]
    assert found.unavailable(script(**has)) == why


def test_changes_are_tried_together_in_one_command():
    changes = {change.name: change for change in of_machine(4)}
    made = with_changes(Command("python train.py"), [changes["workers=4"], changes["bf16"]])
    assert made.name == "workers=4 + bf16"
    assert made.told == "workers=4,bf16"
    assert made.variables["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        (AS_IT_IS, {}),
        (
            "workers=2,channels_last",
            {"workers": 2, "persistent": True, "channels_last": [True, True]},
        ),
        ("threads=1,fused", {"threads": 1, "fused": True}),
        ("compile", {"compiled": [True, True]}),
    ],
)
def test_changes_change_all_networks_as_their_lines_would_and_nothing_else(shell, change, changes):
    assert json.loads(hooked(shell, HAS, change)) == {**WITHOUT, "threads": 2, **changes}


def hooked(shell, text: str, change: str, *arguments: str) -> str:
    """What a script prints in which the hook changes something."""
    (shell.folder / "train.py").write_text(text)
    hook = {"NINEFOLD_BENCH": str(shell.folder / "hook"), "NINEFOLD_BENCH_CHANGES": change}
    once = {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "2"}
    done = shell.run(
        "train.py", *arguments, env={**hook, **once, "PYTHONPATH": str(INJECT)}, code=0
    )
    return str(done.stdout)


def test_the_loader_that_a_script_reads_says_whether_workers_help(shell):
    seen, _, workers = hooked(shell, LOADERS, "workers=2").rpartition(" ")
    found = json.loads(seen)
    assert (found["loader"], found["workers"], found["iterable"]) == ("train.py:11", 0, True)
    assert int(workers) == 0  # each would read all


@pytest.mark.parametrize(
    ("said", "takes"),
    [
        ({"computes": "bfloat16", "called": True}, True),
        ({"computes": None, "called": True}, True),  # compiled: not known
        ({"computes": "float32", "called": True}, False),
        ({"computes": None, "called": False}, False),
    ],
)
def test_bf16_is_left_out_where_the_script_computes_in_float32_all_the_same(trial, said, takes):
    (bf16,) = [change for change in of_machine(2) if change.name == "bf16"]
    precision = {"framework": None, **said}
    each = SimpleNamespace(
        command=with_changes(Command("a"), [bf16]),
        hellos=[{"precision": precision}],
        name="bf16",
        close=lambda: None,
    )
    with trial.failing(each):
        trial.require_effect(each)
    left_out = ["bf16 was left out: it still computes in float32"] * (not takes)
    assert [note.partition(";")[0] for note in trial.helps().notes[:-1]] == left_out


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChangesTrial:
    """Of a script with a loader, on two cores, after its first step."""
    monkeypatch.setattr("ninefold.bench.trial.cores", lambda: 2)
    return chosen(tmp_path)


def chosen(keep: Path, **has: object) -> ChangesTrial:
    trial = ChangesTrial(Command("python train.py"), Options(minutes=4), keep)
    trial.script = script(**has)
    trial.choose()
    return trial


def summary_of(trial: ChangesTrial) -> Summary:
    return Summary(replace(trial.measured, helps=trial.helps()))


def play(trial: ChangesTrial, seconds: Callable[[set[str]], float]) -> None:
    """A round in which a step takes what `seconds` says of what a command has."""
    number, measured = trial.measured.rounds, trial.measured
    draw = random.Random(number)
    for command in measured.commands:
        luck = draw.gauss(1, 1e-4)
        for _ in range(12):
            has = {*command.name.split(TOGETHER)}
            measured.log.add(command.name, number, seconds=seconds(has) * luck, steps=10)
    measured.looks[number + 1] = (number + 1) / 6
    trial.round_ended(number)


def test_where_workers_look_slower_the_other_changes_are_tried_alone(trial):
    def seconds(has: set[str]) -> float:
        slower = any(name.startswith("workers") for name in has)
        return 0.05 if "channels_last" in has else 0.12 if slower else 0.1

    play(trial, seconds)
    assert {"workers=1", "workers=2"} == {*trial.given_up} & {"workers=1", "workers=2"}
    assert {"channels_last", "fused"} < {*trial.measured.names}
    for _ in range(3):
        play(trial, seconds)
    assert [each["name"] for each in trial.helps().changes] == ["channels_last"]


def test_a_part_that_costs_little_in_one_round_leaves_no_change_out(trial):
    def seconds(has: set[str]) -> float:
        without = {"no reading", "no optimizer"} & has
        return 0.11 if without and not trial.measured.rounds else 0.09 if "fused" in has else 0.1

    for _ in range(4):
        play(trial, seconds)
    assert {"no reading", "no optimizer"} <= {*trial.given_up}
    assert [each["name"] for each in trial.helps().changes] == ["fused"]


def test_a_part_is_taken_from_a_script_that_was_seen_to_have_it(tmp_path):
    for has, parts in (
        ({}, {"no reading", "no optimizer"}),
        ({"world": 2, "workers": None}, {"no averaging", "no optimizer"}),
    ):
        kept = {*chosen(tmp_path, **has).measured.names} & {part.name for part in PARTS}
        assert kept == parts


@pytest.mark.parametrize(("items", "kept"), [(40, 8), (6, 3)])
def test_without_reading_a_loader_hands_out_eight_batches_in_turn(monkeypatch, items, kept):
    """The first alone may be unlike the others, such as the longest of a sampler by length."""
    read = []

    class Loader(DataLoader):
        pass

    class Rows:
        def __len__(self):
            return items

        def __getitem__(self, index):
            read.append(index)
            return index

    monkeypatch.syspath_prepend(INJECT)
    import_module("ninefold_bench_changes").read_no_more(Loader)
    loader = Loader(Rows(), batch_size=2)
    for _ in range(2):
        taken = [batch.tolist() for batch in loader]
        assert len(taken) == items // 2
        assert taken == [[2 * (n % kept), 2 * (n % kept) + 1] for n in range(items // 2)]
    assert read == [*range(2 * kept)]


def test_what_was_left_is_told_by_what_was_seen_of_it(trial):
    def seconds(has: set[str]) -> float:
        fused = 0.03 if "fused" in has else 0.0
        return fused + (0.05 if "workers=2" in has else 0.06 if "workers=1" in has else 0.1)

    for _ in range(4):
        play(trial, seconds)
    (said,) = [note for note in trial.helps().notes if note.startswith("Not tried to the end")]
    assert "workers=1 was left after 1 round, as workers=2 looked faster" in said
    left = r"workers=2 \+ fused was left after 1 round, as it looked 0\.6\d+ times as fast"
    assert re.search(left, said)


def test_where_no_change_looks_faster_that_is_the_answer_and_no_more_time_is_asked_for(trial):
    while len(trial.measured.names) > 1:
        play(trial, lambda _: 0.1)
    summary, rounds = summary_of(trial), trial.measured.rounds
    said = f"No change looked faster after {rounds} rounds."
    assert summary.lead == said
    assert summary.next_step == ""
    assert "fused was left after" in trial.helps().notes[0]


def test_a_change_that_helps_with_another_alone_is_told_with_it(trial):
    def seconds(has: set[str]) -> float:
        draw = random.Random(f"{trial.measured.rounds}{sorted(has)}")
        workers = {"workers=2"} & has
        noise = draw.uniform(0.6, 1.4) if workers == has else 1.0
        return noise * (0.05 if workers and "fused" in has else 0.1 - 0.03 * len(workers))

    for _ in range(4):
        play(trial, seconds)
    helps = trial.helps()
    assert [each["name"] for each in helps.changes] == []
    assert re.match(r"With workers=2 \+ fused it is 2\.\d+ times as fast", helps.lines[0])


def test_what_a_screen_leaves_out_is_in_the_details(trial):
    for _ in range(3):
        play(trial, lambda has: 0.05 if has & {"workers=2", "no reading"} else 0.1)
    summary = summary_of(trial)
    whole = summary.text(Path.cwd() / "kept", whole=True).splitlines()
    assert {*summary.notes} < {*whole}
    assert all(f"- {note}" in summary.details() for note in summary.notes)


def test_a_command_without_a_part_is_an_upper_bound_in_the_table_and_as_data(trial):
    for _ in range(3):
        play(trial, lambda has: 0.05 if has & {"workers=2", "no reading"} else 0.1)
    summary = summary_of(trial)
    verdicts = {each["second"]: each["verdict"] for each in summary.data(0)["pairs"]}
    assert verdicts["no reading"] == "upper bound" != verdicts["workers=2"]
    assert [row for row in summary.table() if row[0] == "no reading" and "upper bound" in row]


def test_steps_that_are_not_counted_are_told_in_one_line_for_all_commands(trial):
    play(trial, lambda has: 0.05 if has & {"workers=2", "no reading"} else 0.1)
    for name in (AS_IT_IS, "workers=2"):
        trial.measured.marked[name] += [(0, "an evaluation", 2.0)] * 2
    assert [line for line in summary_of(trial).notes if "Not counted" in line] == [
        "Not counted are steps that contained an evaluation: in as it is 2 of 122 "
        "(4.0 s, 25 % of its time), in workers=2 2 of 122 (4.0 s, 40 % of its time)."
    ]


def test_no_note_is_about_a_command_that_was_given_up(trial):
    play(trial, lambda has: 0.05 if has & {"workers=2", "no reading"} else 0.1)
    assert "workers=1" in trial.given_up
    trial.measured.waits.update({"workers=1", "workers=2"})
    trial.measured.restarts.update(["workers=1", "workers=2"])
    trial.measured.own_work["workers=1"] += [[0.1, 0.2]] * 8
    notes = [note for note in summary_of(trial).notes if not note.startswith("Not tried to the")]
    assert [note.partition(" ")[0] for note in notes if "again" in note] == ["workers=2"]
    assert not [note for note in notes if "workers=1" in note]


def test_where_much_of_the_time_is_not_counted_the_sentence_says_so(trial):
    for _ in range(3):
        play(trial, lambda has: 0.05 if has & {"workers=2", "no reading"} else 0.1)
    trial.measured.marked[AS_IT_IS] += [(0, "an evaluation", 1.0)] * 24
    said = summary_of(trial).sentence
    assert re.search(r" \(in steps alone, without \d\d % of the time\)\.$", said)


@pytest.mark.slow
def test_items_that_wait_are_read_by_workers_in_the_line_that_is_named(shell):
    (shell.folder / "train.py").write_text(SLOW_ITEMS)
    file = shell.folder / "found.json"
    options = ("--try", "--minutes=2.5", f"--json={file}", f"{sys.executable} train.py")
    done = shell.run("-m", "ninefold", "bench", "-v", *options, code=0)
    line = rf"num_workers=\d, persistent_workers=True\), train.py:{LOADER_LINE}"
    assert re.search(
        rf"Loading with \d workers? it is .*: DataLoader\(\.\.\., {line}\.", done.stdout
    )
    assert "Without reading any data it would be" in done.stdout
    assert "channels_last (no convolution)" in done.stdout
    best, *_ = json.loads(file.read_text())["changes"]
    assert best["name"].startswith("workers=")
    assert best["low"] > 1.2
