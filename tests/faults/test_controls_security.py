"""Negative controls of set G: with a guard taken away, its canary is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, Shell
from tests.faults.test_hostile_files import CASES

LOADS_ANYTHING = (
    "import torch; load = torch.load; "
    "torch.load = lambda *given, **more: load(*given, **{**more, 'weights_only': False})"
)
BUILDS_ANYTHING = (
    "from ninefold.config import untrusted; "
    "untrusted.require_known_targets = lambda *given, **more: None; "
    "untrusted.foreign = lambda *given: ()"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "harm"),
    [("a_pickle_that_calls_a_shell", LOADS_ANYTHING), ("target_open", BUILDS_ANYTHING)],
    ids=["weights_only=False", "no check"],
)
def test_without_its_guard_the_canary_is_touched(
    name: str, harm: str, shell: Shell, trained: Path
) -> None:
    script, *words = CASES[name](shell.folder, trained).command
    (shell.folder / "sitecustomize.py").write_text(harm)  # Python imports it before anything else
    env = {"PYTHONPATH": f"{shell.folder}:{ROOT}"}
    shell.run(str(ROOT / script), *words, env=env, fresh=True)
    assert (shell.folder / "canary").exists()
