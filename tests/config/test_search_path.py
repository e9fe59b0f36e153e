"""Options of the user's own are used, or the command is refused: never left out silently."""

import os
import sys
from pathlib import Path

import pytest
from hydra._internal.utils import create_config_search_path

from ninefold import main
from ninefold.config import overrides, resolvers
from ninefold.config.composition import compose, flags_of
from tests.config.test_like import made
from tests.conftest import ROOT

CONF = ROOT / "conf"


def lines(*arguments: str, command: str = "train") -> list[str]:
    return list(map(str, overrides.of_arguments(arguments, command)))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `mine` whose folder conf/ has an option of its own, model=mine."""
    folder = tmp_path / "a folder" / "mine" / "conf"
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "model" / "mine.yaml").write_text("net: {_target_: mine.Net}\n")
    monkeypatch.syspath_prepend(folder.parents[1])
    for name in ("mine", "mine.conf"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    resolvers.register()
    return folder


WAYS = ("--config-dir={}", "hydra.searchpath=['file://{}']", "hydra.searchpath=[pkg://mine.conf]")
OURS = ("logger/quiet", "train", "experiments/nine_way", "hydra/sweeper/study")


@pytest.mark.parametrize(
    ("name", "how"),
    [*(("model/convnet", how) for how in (*WAYS, "NINEFOLD_CONFIG_DIR")),
     *((name, WAYS[0]) for name in OURS)],
)  # fmt: skip
def test_an_option_named_as_one_of_ours_is_refused_with_both_paths(own, name, how, monkeypatch):
    file = own / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("net: {_target_: mine.Net}\n")
    words = [how.format(own)]
    if how == "NINEFOLD_CONFIG_DIR":
        monkeypatch.setenv(how, str(own))
        words = []
    (line,) = lines(*words, "model=mine")
    assert line.startswith(f"error: option={file}: it is not used, ")
    assert str((ROOT if name.startswith("experiments") else CONF) / f"{name}.yaml") in line
    assert lines(*words, command="evaluate") == [line]


def test_an_option_so_named_is_refused_in_a_folder_that_a_study_names_too(own, tmp_path, capsys):
    sources = [{"provider": "command-line", "schema": "file", "path": str(own)}]
    study = made(tmp_path / "study", "model=mine", config_sources=sources)
    (own / "model" / "convnet.yaml").write_text("net: {_target_: mine.Net}\n")  # added later
    assert main.Command("train", [f"like={study}", "trust=true"]).execute() == 2
    assert capsys.readouterr().err.startswith(f"error: option={own}/model/convnet.yaml: it is not")


def test_no_file_of_the_users_replaces_the_keys_of_a_command(own):
    (own / "train_keys.yaml").write_text("seed: 5\n")
    assert compose("train", flags_of(["--config-dir", str(own)])).config.seed == 0


def test_options_of_other_names_and_copies_of_ours_are_fine(own):
    (own / "model" / "convnet.yaml").write_bytes((CONF / "model/convnet.yaml").read_bytes())
    assert lines("--config-dir", str(own), "model=mine") == []


@pytest.mark.parametrize("how", WAYS)
def test_a_folder_of_ones_own_leaves_the_studies_where_they_are(own, how):
    found = compose("train", flags_of([how.format(own), "experiments=nine_way", "model=mine"]))
    assert found.sweeps
    assert found.config.model.net._target_ == "mine.Net"


def test_folders_of_the_environment_are_searched_by_every_command(own, monkeypatch):
    more = own.parent / "more" / "amp"
    more.mkdir(parents=True)
    (more / "half.yaml").write_text("autocast: true\n")
    monkeypatch.setenv("NINEFOLD_CONFIG_DIR", f"pkg://mine.conf{os.pathsep}{more.parent}")
    assert lines("model=mine", "amp=half") == []
    found = compose("train", flags_of(["model=mine", "amp=half"])).config
    assert (found.model.net._target_, found.amp.autocast) == ("mine.Net", True)


def test_no_other_program_with_hydra_sees_our_folders(tmp_path):
    resolvers.register()
    paths = [each.path for each in create_config_search_path(str(tmp_path)).get_path()]
    assert paths == ["pkg://hydra.conf", str(tmp_path), "structured://"]
    paths = [each.path for each in create_config_search_path(str(CONF)).get_path()]
    assert f"file://{ROOT}" in paths
