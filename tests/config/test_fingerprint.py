"""Code is told from other code if, and only if, a run executes it."""

import shutil
from pathlib import Path

import pytest

from ninefold.config.fingerprint import code
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("ninefold", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", folder)
    return folder


def hashed(checkout: Path) -> str:
    return code(package=checkout / "ninefold", conf=checkout / "conf")


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
def test_only_code_that_a_run_executes_is_hashed(checkout, name, same):
    path, before = checkout / name, hashed(checkout)
    text = path.read_text()
    path.write_text(text + "\n# changed\n")
    assert (hashed(checkout) == before) == same
    path.write_text(text)
    assert hashed(checkout) == before


def test_modules_of_the_user_that_a_configuration_names_are_hashed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "my_code"
    package.mkdir()
    (tmp_path / "my_module.py").touch()
    for name in ("__init__", "nets", "other"):
        (package / f"{name}.py").touch()
    targets = {"my_code.nets.Net", "my_code.Data", "my_module.Adam", "torch.optim.AdamW"}
    targets |= {"json.loads", "nowhere.x"}
    before = code(targets)
    (package / "other.py").write_text("# changed")
    assert code(targets) == before
    (package / "nets.py").write_text("# changed")
    changed = code(targets)
    (tmp_path / "my_module.py").write_text("# changed")
    further = code(targets)
    (package / "__init__.py").write_text("# changed")  # which has Data
    assert len({before, changed, further, code(targets)}) == 4
