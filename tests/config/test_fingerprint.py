"""Code is told from other code if, and only if, a run executes it."""

import shutil

from ninefold.config.fingerprint import code
from tests.conftest import ROOT

EXECUTED = {
    "ninefold/answer/notes.py": False, "ninefold/report/__init__.py": False,
    "ninefold/study/plan.py": False,
    "ninefold/plugins.py": False, "ninefold/launch/workers.py": True,
    "ninefold/train/training_run.py": True,
    "ninefold/dataset/digits.py": True,  # named in conf/ alone
    "ninefold/engine/parallel/__init__.py": True, "ninefold/engine/amp.py": True,
    "conf/model/convnet.yaml": True,
    "train.py": False,  # an installed package has none
}  # fmt: skip


def test_only_code_that_a_run_executes_is_hashed(tmp_path):
    for name in ("ninefold", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", tmp_path)

    def hashed() -> str:
        return code(package=tmp_path / "ninefold", conf=tmp_path / "conf")

    before = hashed()
    for name, executed in EXECUTED.items():
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text + "\n# changed\n")
        assert (hashed() != before) == executed, name
        (tmp_path / name).write_text(text)
    assert hashed() == before


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
