"""Documentation, help and JSON Schemas that are generated from the schema."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from omegaconf import OmegaConf
from referencing import Registry, Resource

from ninefold.config import reference, schema
from ninefold.config.options import option_keys
from tests.conftest import ROOT, Shell

CONF = ROOT / "conf"
COMMAND = "python -m ninefold.config.reference"
YAMLS = [*CONF.glob("*.yaml"), *CONF.glob("*/*.yaml"), *ROOT.glob("experiments/*.yaml")]


def test_what_is_generated_is_up_to_date() -> None:
    for path, text in reference.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run {COMMAND}"


# JSON Schemas


def errors(path: Path) -> list[str]:
    """What the schema that a yaml names in its header finds in it."""
    (name,) = (line for line in path.read_text().splitlines() if line.startswith(reference.HEADER))
    file = (path.parent / name.removeprefix(reference.HEADER)).resolve()
    schemas = {each.name: json.loads(each.read_text()) for each in file.parent.glob("*.json")}
    registry: Any = Registry().with_resources(
        [(key, Resource.from_contents(each)) for key, each in schemas.items()]
    )
    content = OmegaConf.to_container(OmegaConf.load(path))
    validator = Draft7Validator(schemas[file.name], registry=registry)
    return [error.message for error in validator.iter_errors(content)]


def ids(path: Path) -> str:
    return f"{path.parent.name} {path.stem}"


@pytest.mark.parametrize("path", YAMLS, ids=ids)
def test_each_yaml_names_a_schema_that_it_fits(path: Path) -> None:
    assert errors(path) == []


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of conf/ and experiments/."""
    for name in ("conf", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


MISTAKES = [
    ("conf/train.yaml", "epochs: 10 ", "epochs: ten ", "'ten'"),
    ("conf/train.yaml", "epochs: 10 ", "epohcs: 10 ", "'epohcs' was unexpected"),
    ("conf/train.yaml", "  keep: 2 ", "  keep: 1 ", "1 "),
    ("conf/train.yaml", "  keep: 2 ", "  kept: 2 ", "'kept' was unexpected"),
    ("conf/train.yaml", "  mode: null ", "  mode: fast ", "'fast'"),
    ("conf/evaluate.yaml", "weights: null ", "weights: best ", "'best'"),
    ("conf/amp/scaler.yaml", "scaler: true", "scaler: 1", "1 "),
    ("conf/amp/scaler.yaml", "scaler: true", "scalar: true", "'scalar'"),
    ("conf/dataset/digits.yaml", "classes: 10", "classes: 0", "0"),
    ("conf/dataset/digits.yaml", "limit: null", "limt: null", "'limt'"),
    ("conf/parallel/ddp.yaml", "static_graph: false", "static: false", "'static'"),
    ("conf/optimizer/adamw.yaml", "lr: 0.001", "lr: 0", "0 "),
    ("experiments/nine_way.yaml", "numerics: 3", "numerisc: 3", "'numerisc' was unexpected"),
    ("experiments/cifar10_cpu.yaml", "limit: 20000", "limit: many", "'many'"),
]


@pytest.mark.parametrize(("name", "before", "after", "found"), MISTAKES)
def test_a_wrong_key_or_value_in_a_yaml_is_found_by_its_schema(
    copied: Path, name: str, before: str, after: str, found: str
) -> None:
    path = copied / name
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    (message,) = errors(path)
    assert found in message


def test_an_option_of_your_own_may_have_keys_of_its_own(copied: Path) -> None:
    path = copied / "conf" / "dataset" / "mine.yaml"
    text = (copied / "conf" / "dataset" / "synthetic.yaml").read_text()
    path.write_text(text.replace("ninefold.dataset.synthetic", "mine") + "resolution: 3\n")
    assert errors(path) == []
    path.write_text(path.read_text().replace("limit: null", "limit: 0"))
    assert len(errors(path)) == 1


def test_a_logger_without_a_target_is_found(copied: Path) -> None:
    path = copied / "conf" / "logger" / "mine.yaml"
    path.write_text(reference.headed("mine: {target: a.b}\n", "../schema/logger.json"))
    assert errors(path) == ["'_target_' is a required property"]
    path.write_text(path.read_text().replace("target", "_target_"))
    assert errors(path) == []


# Comments, docs/keys.md, --help


def test_a_yaml_without_the_line_for_editors_gets_it_after_its_first_comment() -> None:
    line = f"{reference.HEADER}a.json\n"
    assert reference.headed("# 1\n# 2\na: 1\n# 3\n", "a.json") == f"# 1\n# 2\n{line}a: 1\n# 3\n"
    assert reference.headed(f"{line}a: 1\n", "a.json") == f"{line}a: 1\n"


def test_a_key_in_a_yaml_has_its_sentence_behind_it_however_long_it_was() -> None:
    keys = reference.keys_of("train")
    before = f"# A file\nepochs: 1  # old\nlaunch:\n  grace: 5\n{' ' * 24}# more\nhydra:\n  a: 1\n"
    lines = reference.commented(before, keys).splitlines()
    assert lines[0] == "# A file"
    assert lines[1] == f"{'epochs: 1':24}# {keys['epochs'].meaning}"
    assert lines[3] == f"{'  grace: 5':24}# {keys['launch.grace'].meaning}"
    assert lines[4:] == ["hydra:", "  a: 1"]


def documented() -> Iterator[str]:
    for line in (ROOT / "docs" / "keys.md").read_text().splitlines():
        if line.startswith("| `"):
            yield line.split("`")[1]


def test_the_page_of_keys_has_every_key_and_every_option() -> None:
    keys = {n for n, key in {**schema.KEYS, **option_keys()}.items() if not key.is_section}
    options = {path.stem for path in CONF.glob("*/*.yaml")}
    assert set(documented()) == keys | options


def test_the_page_of_keys_marks_those_that_a_resumed_run_takes_another_value_of() -> None:
    lines = (ROOT / "docs" / "keys.md").read_text().splitlines()
    marked = {line.split("`")[1] for line in lines if line.endswith(" resume |")}
    assert marked >= {"epochs", "launch.grace", "launch.inline", "checkpoint.keep"}
    assert "seed" not in marked


@pytest.mark.parametrize("command", ["train", pytest.param("evaluate", marks=pytest.mark.slow)])
def test_help_shows_each_key_with_its_sentence_at_80_columns(shell: Shell, command: str) -> None:
    done = shell.run(str(ROOT / f"{command}.py"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) < 80
    text = " ".join(done.stdout.split())
    for name, key in reference.keys_of(command).items():
        assert f" {name}" in text
        assert f" {key.meaning}" in text
    for group in reference.COMMANDS[command]:
        assert f" {group} {', '.join(reference.options_of(group))}. " in text


@pytest.mark.slow
def test_a_help_template_of_ones_own_may_name_the_parts_that_hydra_fills_in(shell: Shell) -> None:
    own = "hydra.help.template='mine $APP_CONFIG_GROUPS'"
    done = shell.run(str(ROOT / "train.py"), "--help", own)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mine amp: autocast, bf16, fp32")
