"""The command that a study prints trains, word for word, what the study compared."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, Shell, result
from tests.faults.refusals import refused

WORDS = ("seed=3", "epochs=2", "dataset.limit=300", "optimizer=sgd", "optimizer.lr=0.05",
         "~optimizer.weight_decay", "model.net.width=8", "scheduler=cosine")  # fmt: skip


def printed(text: str) -> list[str]:
    (line,) = re.findall("^train with it: (.*)$", text, re.MULTILINE)
    return shlex.split(line)


def configuration(run: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(run / "config.yaml"))


def test_the_run_of_the_printed_command_has_the_configuration_of_the_study(shell):
    done = shell.train(
        "-m", *WORDS, "study.rounds=1", "numerics=1", "hydra.sweep.dir=a sweep", code=0
    )
    python, script, *words = printed(done.stdout)
    assert (python, Path(script).name) == ("python", "train.py")
    assert words == ["like='a sweep'", "parallel=none", "amp=fp32"]
    [before] = (shell.folder / "a sweep").glob("*_none_fp32_seed3")
    elsewhere = Shell(shell.folder / "elsewhere")
    elsewhere.folder.mkdir()
    for each, like in ((shell, words[0]), (elsewhere, f"like='{shell.folder}/a sweep'")):
        each.train(like, *words[1:], "hydra.run.dir=again", code=0)
        after = each.folder / "again"
        assert {**configuration(after), "numerics": 1} == configuration(before)
        assert result(after)["test_loss"] == result(before)["test_loss"]
    shell.train("like=again", "epochs=1", "hydra.run.dir=shorter", code=0)  # of a run
    shorter = configuration(shell.folder / "shorter")
    assert (shorter["epochs"], shorter["scheduler"]["T_max"]) == (1, 1)
    assert shorter["model"] == configuration(before)["model"]
    done = shell.train("--cfg", "job", "like=again", code=0)
    assert "width: 8" in done.stdout
    refused(shell.train("like=agian"), 2, "like=agian: no study and no run is there", hint="run")


COMPARE = """
import ninefold, torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(16, 4))

if __name__ == "__main__":
    data = torch.randn(256, 1, 4, 4), torch.randint(4, (256,))
    answer = ninefold.compare(
        Net, data, nn.functional.cross_entropy, parallel="none", amp="fp32", test=data,
        ask="score", seeds=1, epochs=1, threads=1, folder="study", show=False,
        overrides=["optimizer.lr=0.05"],
    )
    print("train with it:", answer.train)
"""


@pytest.mark.slow
def test_the_printed_command_finds_the_model_that_was_given_to_compare(shell):
    (shell.folder / "mine.py").write_text(COMPARE)
    done = shell.run("mine.py", env={"PYTHONPATH": str(ROOT)}, code=0)
    *_, like, parallel, amp, trust = printed(done.stdout)
    assert (like, parallel, amp, trust) == ("like=study", "parallel=none", "amp=fp32", "trust=true")
    elsewhere = Shell(shell.folder / "elsewhere")
    elsewhere.folder.mkdir()
    there = f"like={shell.folder}/study"
    done = elsewhere.train(there, parallel, amp)
    refused(done, 2, f"{there}: it has options in ", hint="add trust=true if you made it")
    [run] = (shell.folder / "study").glob("*_none_fp32_seed0")
    for each, word in ((shell, like), (elsewhere, there)):
        each.train(word, parallel, amp, trust, "hydra.run.dir=run", code=0)
        found = configuration(each.folder / "run")
        assert found == configuration(run)
        assert found["model"]["net"]["_target_"] == "ninefold.api.parts.network"
        assert found["optimizer"]["lr"] == 0.05
