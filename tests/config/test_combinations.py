"""What cannot be combined is refused before a process starts, in one line that says what to do."""

import re

import pytest

from ninefold.config.combinations import REFUSED, REFUSED_COMMANDS, problems
from ninefold.config.options import find

IMAGES, VOLUMES = {"shape": [3, 8, 8]}, {"shape": [1, 8, 8, 8]}
NONE = {"max_processes": 1}
DP = {"max_processes": 1, "devices": None}
DDP = {"max_processes": None, "devices": None}
SGD = {"_target_": "torch.optim.SGD", "fused": True, "foreach": None}


@pytest.mark.parametrize("row", [*REFUSED, *REFUSED_COMMANDS], ids=lambda row: row.wrong[:40])
def test_each_row_refuses_its_example_in_one_line_of_three_parts(row):
    (failure,) = problems(row.example, REFUSED if row in REFUSED else REFUSED_COMMANDS)
    line = str(failure)
    assert re.fullmatch(rf"error: {re.escape(row.field)}=.+: [^;]+(; [^;]+){{2,}}", line)
    assert not set("{}") & set(line.replace(str(row.example.get(row.field)), ""))


@pytest.mark.parametrize(
    "asked",
    [{}, {"study.ask": ["time"], "hydra/launcher": "basic"}, {"launch.inline": True}],
    ids=str,
)
def test_what_a_command_can_be_asked_for_is_allowed(asked):
    assert problems(asked, REFUSED_COMMANDS) == []


def test_rows_name_keys_that_there_are():
    of_torch = {"optimizer.fused", "optimizer.foreach", "scheduler.T_max"}
    of_hydra = {"hydra.mode", "hydra/launcher", "started_by"}
    rows = [*REFUSED, *REFUSED_COMMANDS]
    named = {row.field for row in rows}
    for row in rows:
        words = {*re.findall(r"{([\w./]+)}", f"{row.wrong} {row.allowed} {row.do}")}
        assert row.words.keys() <= words
        named |= words - row.words.keys()
    assert {name for name in named - of_torch - of_hydra if find(name) is None} == set()


@pytest.mark.parametrize(
    "job",
    [
        {"dataset": VOLUMES, "model": {"input_channels": 3}},  # gray: repeated
        {"dataset": IMAGES, "model": {"input_channels": 3}},
        {"dataset": {"classes": None}, "task": {"classes": None}},  # counted
        {"dataset": {"ignore": 255}, "task": {"classes": 3}},  # one that knows no void
        {"dataset": {"ignore": 255}, "task": {"ignore": "${oc.select:dataset.ignore,255}"}},
        {"dataset": {"cache": "disk", "cache_dir": "here"}},
        {"device": "cuda:1", "parallel": NONE},
        {"device": "cpu", "parallel": DDP},
        {"parallel": {**DP, "devices": [0, 2]}},
        {"parallel": DDP, "optimizer": SGD, "compile": {"mode": "reduce-overhead"}},
        {"compile": {"mode": "max-autotune"}, "parallel": DDP},
        {"init": "run", "init_partial": True, "init_without": ["fc"]},
        {"cudnn_benchmark": True, "deterministic": False},
        {"parallel": {**DDP, "static_graph": True}, "accumulate": 1},
        {"scheduler": {"T_max": 0}, "epochs": 0},
        {"clip_grad_norm": 1, "clip_grad_value": None},
        {"ema_warmup": True, "ema": 0.9},
        {"optimizer": None, "parallel": {}},
    ],
    ids=str,
)
def test_what_can_be_honored_is_allowed(job):
    assert problems(job) == []
