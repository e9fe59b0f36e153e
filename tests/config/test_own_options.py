"""Options of the user's own are used, or the command is refused: never left out silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninefold.config import overrides
from tests.conftest import ROOT

CONF = ROOT / "conf"


def lines(*arguments: str, command: str = "train") -> list[str]:
    return list(map(str, overrides.of_arguments(arguments, command)))


@pytest.mark.parametrize("name", ["model/convnet.yaml", "logger/quiet.yaml", "train.yaml"])
def test_an_option_with_the_name_of_one_of_ours_is_refused_with_both_paths(
    tmp_path: Path, name: str
) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text("net: {_target_: mine.Net}\n")
    (line,) = lines("--config-dir", str(tmp_path), "model=convnet")
    assert line.startswith(f"error: option={own}: it is not used, ")
    assert str(CONF / name) in line
    (again,) = lines(f"--config-dir={tmp_path}", command="evaluate")
    assert again == line


def test_options_of_other_names_and_copies_of_ours_are_fine(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("net: {_target_: mine.Net}\n")
    (tmp_path / "model" / "convnet.yaml").write_bytes((CONF / "model/convnet.yaml").read_bytes())
    assert lines("--config-dir", str(tmp_path), "model=mine") == []


@pytest.mark.parametrize("given", ["hydra.searchpath=[file://mine]", "~hydra.searchpath"])
def test_a_search_path_without_the_studies_is_refused(given: str) -> None:
    (line,) = lines(given)
    assert line.startswith("error: hydra.searchpath=")
    assert "--config-dir" in line


def test_a_search_path_with_the_studies_is_fine() -> None:
    assert lines(f"hydra.searchpath=[file://mine,file://{ROOT}]") == []
