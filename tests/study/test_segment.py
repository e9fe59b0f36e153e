"""Runs are compared only if their code, machine and launcher are the same."""

from __future__ import annotations

import json

import pytest

from ninefold.errors import ConfigError
from tests.study.conftest import Sweep


def test_another_number_of_visible_gpus_is_another_machine(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made.study(budget=0).run()
    content = made.file()
    del content["parts"][0]["machine"]["visible"]  # a study may be older than this
    (made.folder / "sweep.json").write_text(json.dumps(content))
    made.study(resume=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=r"visible=2 \(was null\) changed since"):
        made.study(resume=True)
    content["parts"][0]["machine"]["visible"] = 2
    (made.folder / "sweep.json").write_text(json.dumps(content))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,1")
    made.study(resume=True)
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        with pytest.raises(ConfigError, match=r"visible=0 \(was 2\) changed since"):
            made.study(resume=True)
