"""Command lines that are checked before they are composed."""

from __future__ import annotations

import pytest

from ninefold.config import overrides


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("logger=[default,quiet]", None),
        ("logger=quiet", None),
        ("logger=[quiet]", None),
        ("logger=[quiet,nowhere]", "logger=[quiet,nowhere]: no such option; "),
        ("logger=[]", "logger=[]: no such option; "),
        ("logger=[../amp/fp32]", "logger=[../amp/fp32]: no such option; "),
        ("model=[convnet]", "model=[convnet]: no such option; "),
    ],
)
def test_only_of_loggers_may_a_command_choose_several(argument: str, problem: str | None) -> None:
    found = [str(each) for each in overrides.of_arguments([argument], "train")]
    assert len(found) == (problem is not None)
    assert not found or found[0].startswith(f"error: {problem}")


@pytest.mark.parametrize("last", ["epochs=1", "hydra/launcher=joblib", "~scheduler", "seed"])
@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_an_override_behind_a_flag_and_one_before_it_is_told_to_come_after_it(
    flag: str, last: str
) -> None:
    (found,) = overrides.of_arguments(["seed=0", flag, last], "train")
    assert str(found) == (
        f"error: arguments={last}: it stands behind a flag, others before it; "
        "flags are allowed before all key=value or behind them; put the flags first"
    )
