"""`ninefold.compare` speaks of its arguments where its command speaks of keys."""

import pickle

import pytest

from ninefold.api.answer import Answer
from ninefold.api.show import explained, in_arguments
from ninefold.errors import ConfigError
from tests.conftest import ROOT

PICK = "set model.output to the key or index of the prediction in it"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            ("study.time_budget", -1, "not allowed; above 0 is; correct study.time_budget"),
            "minutes=-1: not allowed; above 0 is; correct minutes",
        ),
        (("seed", "range(0,0)", "no values; a; b"), "seeds=0: no values; a; b"),
        (("optimizer", "torch.optim", "it; found; do"), "optimizer=function: it; found; do"),
        (
            ("task", "Own-60959caae632", "it fails; that; correct it, or choose another task"),
            "loss=Own: it fails; that; correct it",
        ),
        (
            ("model", "net", "fails; on [20]; choose another model, or set model.input_size"),
            "model=net: fails; on [20]; correct it",
        ),
        (
            ("model", "T", f"a; b; {PICK}, as out"),
            "model=T: a; b; pass overrides=['model.output=out'], the key or index of the "
            "prediction in it",
        ),
        (
            ("dataset.train", "D", "a; b; set dataset.keys to the places, as [0,1], or [[0,1],2]"),
            "dataset=D: a; b; pass overrides=['dataset.keys=[0,1]'], the places, or [[0,1],2]",
        ),
        (
            ("step", 1, "a; b; lower optimizer.lr or set on_nonfinite=skip"),
            "step=1: a; b; lower the learning rate (optimizer=) or pass "
            "overrides=['on_nonfinite=skip']",
        ),
        (("optimizer.lr", -1, "a; b; correct it"), "optimizer.lr=-1: a; b; correct it"),
        (("run", 1, "a; b; free space, or set launch.inline=true"), "run=1: a; b; free space"),
        (
            ("parallel.find_unused_parameters", "false", "a; b; set it to true, or freeze them"),
            "parallel.find_unused_parameters=false: a; b; pass "
            "overrides=['parallel.find_unused_parameters=true'], or freeze them",
        ),
    ],
)
def test_an_error_names_what_the_caller_wrote(said: tuple[str, object, str], told: str) -> None:
    field, value, sentence = said
    failure = explained(ConfigError(field, value, *sentence.split("; ")))
    assert isinstance(failure, ConfigError)
    assert str(failure) == f"error: {told}"


@pytest.mark.parametrize(
    ("caveat", "told"),
    [
        ("No margin. report.margin sets that.", "overrides=['report.margin=...'] sets that."),
        ("Others not: dataset.resident makes them agree.", "overrides=['dataset.resident=...']"),
        ("Between. amp=default measures it.", 'amp="default" measures it.'),
    ],
)
def test_a_caveat_names_what_the_caller_can_pass(caveat: str, told: str) -> None:
    assert told in in_arguments(caveat)


def test_an_answer_shows_three_notes_wherever_it_is_pickled_and_says_how_many_more() -> None:
    (folder,) = (ROOT / "experiments" / "alexnet_cifar10").glob("*_random-images")
    answer = pickle.loads(pickle.dumps(Answer(folder)))
    *_, table, first, second, third, page, command = repr(answer).splitlines()
    assert table == ""
    assert len(answer.caveats) == 6
    assert first.startswith("A/A test passed")
    assert [second, third] == answer.caveats[:2]
    assert page.endswith("report.html, with 4 more notes")
    assert command.startswith("train with it: ")
