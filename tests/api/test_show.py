"""`ninefold.compare` speaks of its arguments where its command speaks of keys."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from ninefold.api.answer import Answer
from ninefold.api.show import explained
from ninefold.errors import ConfigError
from tests.api.test_untrusted_text import studied
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            ("study.time_budget", -1, "not allowed; above 0 is; correct study.time_budget"),
            "minutes=-1: not allowed; above 0 is; correct minutes",
        ),
        (
            ("task", "Own-60959caae632", "it fails; that; correct it"),
            "loss=Own: it fails; that; correct it",
        ),
        (("optimizer.lr", -1, "a; b; correct it"), "optimizer.lr=-1: a; b; correct it"),
        (
            ("task", "own", "a; task=own-60959caae632; set on_nonfinite=skip"),
            "loss=own: a; loss=own; pass overrides=['on_nonfinite=skip']",
        ),
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


def test_an_answer_shows_three_notes_wherever_it_is_pickled_and_says_how_many_more() -> None:
    (folder,) = (ROOT / "experiments" / "alexnet_cifar10").glob("*_random-images")
    answer = pickle.loads(pickle.dumps(Answer(folder)))
    *_, table, first, second, third, page, command = repr(answer).splitlines()
    assert table == ""
    assert len(answer.caveats) == 6
    assert first.startswith("A/A test passed")
    assert [second, third] == answer.caveats[:2]
    assert page.endswith("report.html, with 1 more row and 4 more notes")
    assert command.startswith("train with it: ")


def test_minutes_that_are_no_number_are_refused_before_a_study_goes_on(tmp_path: Path) -> None:
    minutes: Any = "5"
    with pytest.raises(ConfigError, match=r"^error: minutes='5': it cannot be that; "):
        studied(tmp_path / "study").resume(minutes)


def test_a_run_that_was_repeated_is_no_failure(tmp_path: Path) -> None:
    assert [*studied(tmp_path / "failed").failed] == ["ddp-scaler"]
    assert not studied(tmp_path / "repeated", folder="superseded/42").failed
