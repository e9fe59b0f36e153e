"""The extras of the package: each can be installed as the tests ran with it, and is told of."""

import sys
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ninefold
from ninefold.config import composition, resolvers
from ninefold.config.job import asked
from ninefold.errors import ConfigError, Failure
from ninefold.launch.ready import ready
from tests.conftest import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def requirements(lines: list[str]) -> Iterator[Requirement]:
    """What is required, with what extras of our own stand for."""
    for found in map(Requirement, lines):
        if canonicalize_name(found.name) == PROJECT["name"]:
            yield from (each for extra in found.extras for each in requirements(EXTRAS[extra]))
        else:
            yield found


def pinned() -> dict[str, str]:
    """The versions in constraints.txt by package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_what_is_required_is_pinned_to_a_version_that_is_allowed(extra):
    versions = pinned()
    for found in requirements(PROJECT["dependencies"] if extra is None else EXTRAS[extra]):
        version = versions.get(canonicalize_name(found.name))
        assert version is not None, f"{found.name} is not in constraints.txt"
        assert found.specifier.contains(version), f"{found} is pinned to {version}"


def test_the_package_says_the_version_that_it_is_built_with():
    assert ninefold.__version__ == PROJECT["version"]


def test_the_tests_run_with_every_extra_but_those_of_the_benches_and_the_site():
    (own,) = (found for found in map(Requirement, EXTRAS["dev"]) if found.name == PROJECT["name"])
    assert own.extras == EXTRAS.keys() - {"dev", "bench", "docs", "frameworks"}


@pytest.mark.parametrize(
    ("setting", "others", "package", "extra"),
    [
        ("logger=mlflow", [], "mlflow", "mlflow"),
        ("logger=wandb", [], "wandb", "wandb"),
        ("model=timm", [], "timm", "timm"),
        ("init=w.safetensors", [], "safetensors", "timm"),
        ("dataset=hf", ["dataset.root=."], "datasets", "hf"),
        ("dataset=volumes", ["dataset.root=.", "dataset.classes=2"], "nibabel", "volumes"),
    ],
)
def test_a_run_without_a_package_is_refused(tmp_path, monkeypatch, setting, others, package, extra):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "w.safetensors").touch()
    resolvers.register()
    flags = composition.flags_of([setting, *others, "launch.inline=true"])
    config = composition.compose("train", flags).config
    with pytest.raises(Failure) as refused:
        ready(asked(config, config.hydra), tmp_path / "run")
    failure = refused.value
    assert isinstance(failure, ConfigError)
    assert failure.code == 2
    line = f"error: {setting}: {package} is not installed; the extra {extra} has it; pip install "
    assert str(failure).startswith(line)
    assert not (tmp_path / "run").exists()
