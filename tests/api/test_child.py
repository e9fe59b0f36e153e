"""The command of a comparison, a process of its own."""

import signal
from pathlib import Path

import pytest
import torch

from ninefold.api import child, running
from ninefold.api.compare import as_words, asked_axes
from ninefold.errors import ResourceError


def test_a_command_that_is_stopped_before_it_has_begun_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself would print a traceback."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "_events", interrupted)
    log = tmp_path / "output.txt"
    with pytest.raises(KeyboardInterrupt):
        child.run(child.TRAIN, log, prints=False)
    said = "error: signal=SIGINT: interrupted; nothing runs yet; start again\n"
    assert log.read_text() == said


def test_a_command_that_was_killed_is_told_as_memory_even_where_nothing_was_kept(
    tmp_path: Path,
) -> None:
    killed, ended = (running.failure(child.Ended(code), tmp_path) for code in (-signal.SIGKILL, 1))
    assert isinstance(killed, ResourceError)
    assert "the kernel does where memory is short" in str(killed)
    assert str(ended).endswith("it told no failure; see what it printed")


def test_words_of_any_kind_reach_the_command_which_says_what_is_wrong_with_them() -> None:
    assert asked_axes(torch.device("cpu"), None, None) == asked_axes("cpu", None, None)
    given = {"parallel": 2, "amp": [torch.bfloat16, "fp32"]}
    assert asked_axes("cpu", **given) == {"parallel": "2", "amp": "torch.bfloat16,fp32"}
    assert as_words({}, {}, None) == []
    assert as_words({"seed": 0}, {}, [1]) == ["seed=0", "1"]
