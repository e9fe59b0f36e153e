"""task=language and what it is tried with: dataset=text, model=gpt."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gpt import GPT
from language import Language
from text import Text

from ninefold.errors import ConfigError, DataError

pytestmark = pytest.mark.slow


def test_the_targets_of_a_text_are_the_next_characters_and_the_test_set_is_its_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("abcdefghij" * 20 + "ü")
    dataset = Text(root=str(path), context=6, stride=3)
    train, test = dataset.load("train"), dataset.load("test")
    assert dataset.count_classes() == 11
    assert dataset.item_shape() == [6]
    rows = np.array([0, 1])
    assert train.inputs[rows].tolist() == [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]]
    assert train.targets[rows].tolist() == [[1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 8, 9]]
    assert len(test) == 3
    assert test.inputs[rows][:, 0].tolist() == [1, 7], "of the last tenth, and not overlapping"
    assert len(Text(root=str(path), context=6, limit=4).load("train")) == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"root": "missing.txt"}, r"dataset.root=missing.txt: it cannot be read \(No such file"),
        ({"context": 5000}, r"dataset.context=5000: the test split of .* has 1,010 characters"),
    ],
)
def test_a_text_that_cannot_be_used_is_one_line(options, expected):
    with pytest.raises(DataError, match=expected):
        Text(**options).prepare()


def test_the_loss_is_the_mean_over_tokens_bit_for_bit_and_the_score_that_of_a_whole_set():
    torch.manual_seed(0)
    logits, tokens = torch.randn(6, 5, 7), torch.randint(7, (6, 5))
    task = Language()
    assert torch.equal(
        task.loss(logits, tokens), F.cross_entropy(logits.view(-1, 7), tokens.view(-1))
    )
    sums = task.measure(logits[:2], tokens[:2]) + task.measure(logits[2:], tokens[2:])
    scores = task.scores(sums, ())
    assert scores.score == pytest.approx(float(task.loss(logits, tokens)), rel=1e-6)
    right = (logits.argmax(-1) == tokens).double().mean().item()
    assert scores.figures == {
        "perplexity": pytest.approx(math.exp(scores.score)), "token accuracy": pytest.approx(right)
    }  # fmt: skip
    assert task.score.better == "less"


def test_padding_counts_nowhere_and_each_example_weighs_the_same():
    torch.manual_seed(0)
    logits, tokens = torch.randn(2, 4, 7), torch.tensor([[1, 2, 3, 4], [5, -100, -100, -100]])
    task = Language(padding=-100)
    each = [F.cross_entropy(logits[0], tokens[0]), F.cross_entropy(logits[1, :1], tokens[1, :1])]
    assert float(task.loss(logits, tokens)) == pytest.approx(float(torch.stack(each).mean()))
    assert task.measure(logits, tokens)[1] == 5
    with pytest.raises(DataError, match="no example of the set has a token that counts"):
        task.scores(torch.zeros(3, dtype=torch.float64), ())
    with pytest.raises(ConfigError, match=r"task=language: the model's output is \[2, 7\], the"):
        task.loss(logits[:, 0], tokens)


def test_no_place_of_the_model_sees_a_later_token():
    torch.manual_seed(0)
    model = GPT(11, 8, width=16, heads=2).eval()
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])
    assert model(tokens[:, :3]).shape == (2, 3, 11)
