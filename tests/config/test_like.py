"""like=FOLDER stands for the words with which a study or a run was made; the command's win."""

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from ninefold.config import resolvers
from ninefold.config.composition import compose, flags_of
from ninefold.config.job import asked, problems
from ninefold.config.like import expanded, needs_trust
from ninefold.errors import ConfigError

CHOICES = {"parallel": "none", "amp": "fp32", "model": "mlp", "dataset": "digits"}


def made(folder: Path, *words: str, root: str | None = None, **runtime: Any) -> Path:
    """The folder of a sweep with these words, as Hydra and ninefold leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "overrides": {
            "task": [word for word in words if not word.startswith("hydra")],
            "hydra": [word for word in words if word.startswith("hydra")],
        },
        "runtime": {"cwd": "/there", "config_sources": [], "choices": CHOICES, **runtime},
    }
    known = {"dataset": {"root": root}, "init": None, "checkpoint": {"every": 0}}
    tree = {"hydra": settings, **known}
    (folder / "multirun.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(tree)))
    return folder


def words_of(folder: Path, *given: str) -> list[str]:
    return [word for word in expanded([f"like={folder}", *given]) if word not in given]


def test_the_words_of_a_study_come_first_without_what_it_swept_and_what_was_its_own(tmp_path):
    own = [
        "study.ask=[time]", "hydra.run.dir=x", "hydra.callbacks.x._target_=os.system",
        "report.margin=1", "numerics=3", "resume=auto", "trust=true",
    ]  # fmt: skip
    folder = made(tmp_path, "parallel=none,ddp", "epochs=1", "~optimizer.fused", "seed=3", *own)
    assert expanded(["-m", f"like={folder}", "parallel=ddp"]) == [
        "-m", "epochs=1", "~optimizer.fused", "seed=3", "parallel=ddp"
    ]  # fmt: skip
    assert expanded(["epochs=2", "like=null"]) == ["epochs=2"]


def test_a_key_of_the_command_replaces_the_stored_one_and_another_option_the_group(tmp_path):
    words = ("model=mlp", "model.net.width=8", "optimizer.lr=0.1", "epochs=1")
    folder = made(tmp_path, *words)
    assert words_of(folder, "epochs=90") == list(words[:3])
    assert words_of(folder, "model=convnet") == list(words[2:])
    assert words_of(folder, "model=mlp") == list(words[1:])  # the same option


def test_a_key_of_some_strategies_stays_with_these(tmp_path):
    own = "parallel.find_unused_parameters=true"
    folder = made(tmp_path, "parallel=none,ddp", own)
    assert words_of(folder, "parallel=ddp") == [own]
    assert words_of(folder, "parallel=none") == words_of(folder) == []


def test_the_answer_of_a_study_from_a_file_is_a_job_with_whatever_strategy(tmp_path):
    folder = made(tmp_path, "experiments=alexnet_cifar10")  # it has a key of dp
    resolvers.register()
    for strategy in ("none", "ddp", "dp"):
        words = expanded([f"like={folder}", f"parallel={strategy}", "amp=fp32"])
        config = compose("train", flags_of(words)).config
        assert not problems(asked(config, config.hydra))


def test_gpus_of_a_study_are_not_dropped_for_a_strategy_of_one_process(tmp_path):
    folder = made(tmp_path, "parallel=dp,ddp", "parallel.devices=[2,3]")
    assert words_of(folder, "parallel=ddp") == ["parallel.devices=[2,3]"]
    with pytest.raises(ConfigError, match=r"parallel.devices=\[2,3\]: .*CUDA_VISIBLE_DEVICES=2,3"):
        words_of(folder, "parallel=none")


@pytest.mark.parametrize("words", [["experiments=alexnet_cifar10"], ["checkpoint.every=null"]])
def test_a_study_that_kept_no_weights_is_trained_with_some(tmp_path, words):
    folder = made(tmp_path, *words)
    (tree := OmegaConf.load(folder / "multirun.yaml")).checkpoint = {"every": None}
    OmegaConf.save(tree, folder / "multirun.yaml")
    assert words_of(folder)[-1] == "checkpoint.every=0"
    assert "checkpoint.every=0" not in words_of(folder, "checkpoint.every=null")


def test_an_experiment_makes_one_run_but_in_a_sweep(tmp_path):
    folder = made(tmp_path, "experiments=nine_way")
    assert words_of(folder) == [
        "experiments=nine_way", "hydra.mode=RUN", "~study", "~report", "numerics=0",
    ]  # fmt: skip
    assert words_of(folder, "-m") == ["experiments=nine_way"]


def test_a_relative_path_stays_that_of_the_folder_it_was_typed_in(tmp_path):
    folder = made(tmp_path, "dataset.root=data", root="data")
    assert words_of(folder) == ["dataset.root=/there/data"]
    (tree := OmegaConf.load(folder / "multirun.yaml")).init = "weights.pt"
    OmegaConf.save(tree, folder / "multirun.yaml")
    with pytest.raises(ConfigError, match=r"it has init=/there/weights\.pt, which is not"):
        words_of(folder)
    tree.init = None
    OmegaConf.save(tree, folder / "multirun.yaml")
    assert words_of(folder, "dataset.root=here") == words_of(folder, "dataset=folder") == []


def test_a_run_that_was_resumed_elsewhere_is_repeated_as_it_was_resumed(tmp_path):
    """With data in another place, and a strategy that lacks a key of the one before."""
    own = "parallel.find_unused_parameters=true"
    choices = {**CHOICES, "parallel": "ddp"}
    folder = made(tmp_path, "parallel=ddp", own, "dataset.root=data", root="data", choices=choices)
    (folder / ".hydra").mkdir()
    (folder / "multirun.yaml").rename(folder / ".hydra" / "hydra.yaml")
    (folder / ".hydra" / "config.yaml").write_text("dataset: {root: data, cache_dir: ~/x}\n")
    overrides = folder / ".hydra" / "overrides.yaml"
    overrides.write_text(OmegaConf.to_yaml(["parallel=ddp", own, "dataset.root=data"]))
    assert words_of(folder) == ["parallel=ddp", own, "dataset.root=/there/data"]
    overrides.write_text(OmegaConf.to_yaml(["parallel=none", own, "dataset.root=data"]))
    resumed = "dataset: {root: /new/data, cache_dir: /home/another/x}\n"  # in /new, by another
    (folder / "config.yaml").write_text(resumed)
    assert words_of(folder) == ["parallel=none", "dataset.root=/new/data"]


def test_options_are_looked_for_where_the_study_found_them(tmp_path):
    sources = [
        {"provider": "main", "schema": "file", "path": "/clone/conf"},
        {"provider": "command-line", "schema": "file", "path": "mine/conf"},
    ]
    folder = made(tmp_path, "model=mine", config_sources=sources)
    with pytest.raises(ConfigError, match="it has options in file:///there/mine/conf, which"):
        expanded([f"like={folder}"])
    assert needs_trust(folder)
    given = ["hydra.searchpath=[pkg://more]", "trust=true"]
    assert words_of(folder, *given) == [
        "model=mine", "hydra.searchpath=['file:///there/mine/conf','pkg://more']"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "word",
    [
        "model.net._target_=os.system", "task.loss={_target_: os.system}", "init=/etc/passwd",
        "+model.net.checkpoint_path=x", "model=../x",
        "model@hydra.callbacks.x=mlp", "dataset.limit='${oc.env:TOKEN}'",
        "logger.mlflow.uri=http://127.0.0.1:9", "dataset.root='${oc.create:1}'",
        "model.net.weights=DEFAULT", "scheduler={_target_: a.B}", "logger=[{_target_: a.B}]",
        "model.net.width=[{_target_: os.mkdir, path: x}]", "model.net.width=[[{_target_: a.B}]]",
        "model.net.pretrained=true", "model.net.name=vit", "+x.y=z",
    ],
)  # fmt: skip
def test_a_strangers_words_choose_nothing_but_options_numbers_and_listed_choices(word, tmp_path):
    folder = made(tmp_path, "epochs=1", word)
    with pytest.raises(ConfigError, match="which is not in conf/") as refused:
        expanded([f"like={folder}", "amp=bf16"])
    assert "add trust=true if you made it" in str(refused.value)
    assert needs_trust(folder)
    assert words_of(folder, "trust=true") == ["epochs=1", word]


def test_a_study_that_goes_on_has_all_words_that_began_it_and_those_of_the_command(tmp_path):
    own = [
        "parallel=none,'ddp'", "parallel.find_unused_parameters=true", "epochs=1",
        "study.ask=[time]", "numerics=3", "seed=range(0,1000000000000)",
    ]  # fmt: skip
    alone = ["like=other", "trust=true", "hydra.sweep.dir=x", "dataset.download=true"]
    folder = made(tmp_path, *own, *alone)
    resumes = f"study.resume={folder}"
    assert expanded([resumes, "seed=0,1,2"]) == ["-m", *own[:5], resumes, "seed=0,1,2"]
    for as_it_is in (["-m", resumes], ["study.resume=null"]):
        assert expanded(as_it_is) == as_it_is
    for theirs in (
        "init=/theirs.pt", "dataset={download:true}", "hydra.job.chdir=true",
        "hydra/launcher=theirs",
    ):  # fmt: skip
        made(tmp_path, *own, theirs)
        with pytest.raises(
            ConfigError, match=rf"^error: study.resume=.*: it has {re.escape(theirs)}"
        ):
            expanded([resumes])
        assert needs_trust(folder)
    assert words_of(folder) == ["epochs=1"]  # like= takes no launcher


def test_stored_words_stay_before_the_flags_of_the_command(tmp_path):
    sources = [{"provider": "command-line", "schema": "file", "path": "theirs"}]
    folder = made(tmp_path, "seed=3", config_sources=sources)
    given = ["hydra.searchpath=[pkg://more]", "trust=true", f"like={folder}", "--config-dir", "x"]
    assert expanded(given) == [
        "trust=true", "seed=3", "hydra.searchpath=['file:///there/theirs','pkg://more']",
        "--config-dir", "x",
    ]  # fmt: skip


def test_a_study_goes_on_as_a_sweep_though_the_command_has_all_its_words(tmp_path):
    resumes = f"study.resume={made(tmp_path, 'seed=0,1')}"
    assert expanded([resumes, "seed=0,1"]) == ["-m", resumes, "seed=0,1"]


def test_plain_words_need_no_trust(tmp_path):
    root = "dataset.root='${oc.env:DATA}/photos'"
    plain = (
        "model=mlp", "optimizer.lr=0.1", "checkpoint.every=null", "logger=[jsonl]", root,
        "amp.dtype=float16", "dataset.shape=[3,8,8]", "+model.net.plain=true", "device=cuda:1",
    )  # fmt: skip
    folder = made(tmp_path, *plain)
    assert words_of(folder) == list(plain)
    assert not needs_trust(folder)


@pytest.mark.parametrize("text", ["", "- 1", "hydra: 3", "hydra: {overrides: {task: [7=, '=']}}"])
def test_a_folder_without_words_is_one_line(text, tmp_path):
    with pytest.raises(ConfigError, match=r"error: like=.*: no study and no run is there;"):
        expanded([f"like={tmp_path}"])
    (tmp_path / "multirun.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"error: like=.*: what it holds cannot be read \("):
        expanded([f"like={tmp_path}"])
