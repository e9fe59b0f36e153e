"""Code is told from other code if, and only if, a run executes it."""

import shutil

import pytest

from ninefold.config import resolvers
from ninefold.config.composition import compose, flags_of
from ninefold.config.data import facts_of
from ninefold.config.fingerprint import code
from ninefold.config.job import as_yaml, asked
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


@pytest.mark.parametrize(
    "words",
    [
        ["task=classification"],  # it refers to dataset.classes
        ["model=resnet18"],
        ["dataset=mapped", "dataset.test={_target_: a.B, seed: '${seed}'}"],
    ],
    ids=str,
)
def test_hosts_evaluate_what_refers_to_a_checkpoint_that_none_has_read_so_far(words):
    resolvers.register()
    config = compose("evaluate", flags_of(["ckpt=run", *words])).config
    job = asked(config, config.hydra)
    assert facts_of(as_yaml(job.config.frozen, job.choices), check=True).keys() == {"modules"}


def test_hosts_compare_the_modules_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NETS", "my_nets")
    resolvers.register()
    words = ["ckpt=run", "+model.net={_target_: '${oc.env:NETS}.Net', depth: '${seed}'}"]
    config = compose("evaluate", flags_of(words)).config
    job = asked(config, config.hydra)
    text = as_yaml(job.config.frozen, job.choices)
    (tmp_path / "my_nets.py").touch()
    before = facts_of(text, check=True)
    (tmp_path / "my_nets.py").write_text("# changed")
    assert facts_of(text, check=True) != before
