"""Runs are compared only if their code, machine and launcher are the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ninefold.errors import ConfigError
from ninefold.study import segment
from tests.conftest import ROOT
from tests.study.conftest import Sweep


def test_another_number_of_visible_gpus_is_another_machine(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made.study(budget=0).run()
    made.study(resume=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=r"visible=2 \(was null\) changed since"):
        made.study(resume=True)
    content = made.file()
    content["parts"][0]["machine"]["visible"] = 2
    (made.folder / "sweep.json").write_text(json.dumps(content))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,1")
    made.study(resume=True)
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        with pytest.raises(ConfigError, match=r"visible=0 \(was 2\) changed since"):
            made.study(resume=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("ninefold", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", folder)
    return folder


def hashed(checkout: Path) -> str:
    return segment.code(package=checkout / "ninefold", conf=checkout / "conf")


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("ninefold/report/__init__.py", True),
        ("ninefold/study/plan.py", True),
        ("ninefold/plugins.py", True),
        ("ninefold/launch/workers.py", False),
        ("ninefold/train/training_run.py", False),
        ("ninefold/dataset/digits.py", False),  # named in conf/ alone
        ("ninefold/engine/parallel/__init__.py", False),
        ("ninefold/engine/amp.py", False),
        ("conf/model/convnet.yaml", False),
        ("train.py", True),  # an installed package has none
    ],
)
def test_only_code_that_a_run_executes_is_hashed(checkout: Path, name: str, same: bool) -> None:
    path, before = checkout / name, hashed(checkout)
    text = path.read_text()
    path.write_text(text + "\n# changed\n")
    assert (hashed(checkout) == before) == same
    path.write_text(text)
    assert hashed(checkout) == before


def test_modules_of_the_user_that_a_configuration_names_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "my_code"
    package.mkdir()
    (tmp_path / "my_module.py").touch()
    for name in ("__init__", "nets", "other"):
        (package / f"{name}.py").touch()
    targets = {"my_code.nets.Net", "my_code.Data", "my_module.Adam", "torch.optim.AdamW"}
    targets |= {"json.loads", "nowhere.x"}
    before = segment.code(targets)
    (package / "other.py").write_text("# changed")
    assert segment.code(targets) == before
    (package / "nets.py").write_text("# changed")
    changed = segment.code(targets)
    (tmp_path / "my_module.py").write_text("# changed")
    further = segment.code(targets)
    (package / "__init__.py").write_text("# changed")  # which has Data
    assert len({before, changed, further, segment.code(targets)}) == 4


def test_a_study_hashes_the_targets_of_its_cells(made: Sweep) -> None:
    targets = made.plan("+optimizer.more._target_=my_code.Adam").targets()
    assert {"ninefold.engine.parallel.ddp.DDP", "my_code.Adam"} <= targets
