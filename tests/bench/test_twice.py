"""`ninefold bench --twice` says whether two starts are identical, and what would make them."""

import json
import sys

import pytest

CHANCE = """
import random
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

chance = sys.argv[1]
torch.set_num_threads(1)
if chance != "torch":
    torch.manual_seed(0)
words = [f"word {number}" for number in range(20)]
order = list(set(words)) if chance == "hash" else words
if chance == "file":
    with open("runs.txt", "a") as file:
        file.write("another run\\n")
        file.flush()
        torch.manual_seed(file.tell())


class Rows(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        drawn = {"numpy": np.random.rand, "random": random.random, "time": time.time}
        row = torch.full((8,), float(index % 7))
        row[0] = drawn.get(chance, lambda: 0.0)() % 1.0
        row[1] = float(order[index % 20][5:])
        return row


model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for rows in DataLoader(Rows(), batch_size=8):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chance", "equal", "needed"),
    [
        ("none", True, []),
        ("numpy", False, ["numpy"]),
        ("hash", False, ["hash"]),
        ("time", False, None),
        ("file", False, None),
    ],
)
def test_two_starts_train_alike_or_the_source_of_chance_is_named(shell, chance, equal, needed):
    (shell.folder / "train.py").write_text(CHANCE)
    line = f"{sys.executable} train.py {chance}"
    done = shell.run("-m", "ninefold", "bench", "--twice", "--json=found.json", line, code=0)
    found = json.loads((shell.folder / "found.json").read_text())
    assert (found["equal"], found["needed"]) == (equal, needed)
    if equal:
        assert done.stdout.startswith("Two starts are identical: ")
    else:
        inputs = "from equal inputs" if chance == "file" else "and so do their inputs"
        assert f"from the first steps on, {inputs}" in done.stdout
        assert ("Both starts write to runs.txt: " in done.stdout) == (chance == "file")


def test_one_command_is_looked_at_and_nothing_else_is_asked_of_it(refused_at_once):
    for words in (("--try", "true"), ("true", "true"), ("--step=a:b", "true")):
        assert "twice" in refused_at_once("--twice", *words)
