"""The schema agrees with conf/: each key once, with the same default."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ninefold.config import schema
from ninefold.config.options import find, marked, option_keys
from ninefold.config.rules import breach
from ninefold.config.schema import BY_OPTION, GROUPS
from ninefold.places import option_files
from ninefold.types import MAY_CHANGE, NO_EFFECT, accepts

OURS = ("parallel", "amp", "dataset", "task", "model")  # groups whose keys are all in the schema
FILES = [path for group in GROUPS for path in option_files(group)]


def tree(path: Path) -> dict[str, Any]:
    found = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items() if key not in ("defaults", "hydra")}


def test_an_option_has_keys_of_the_schema_with_their_defaults():
    assert {path.parent.name for path in FILES} == {*GROUPS}
    for path in FILES:
        group = path.parent.name
        for name, value in tree(path).items():
            key = find(f"{group}.{name}")
            assert key is not None or group not in OURS, f"{group}.{name} is not in the schema"
            assert isinstance(value, dict) or breach(f"{group}.{name}", value) == []
            # Runs that were stored without these mean the default, an option means what it is.
            own = name in ("output", "weights")
            if key is not None and key.default is not BY_OPTION and not own:
                assert (value, type(value)) == (key.default, type(key.default)), (path, name)


def test_a_key_has_a_default_that_it_accepts_and_a_sentence():
    for name, key in {**schema.KEYS, **option_keys()}.items():
        default = key.is_section or key.default is BY_OPTION or accepts(key.kind, key.default)
        assert default, name
        assert key.meaning[0] in key.meaning[0].upper() + "dt", name  # dtype, torch.compile
        assert key.meaning.endswith("."), name


def test_a_mark_on_a_section_holds_for_all_of_its_keys():
    for name in ("checkpoint.every", "launch.grace", "parallel.least", "epochs"):
        assert schema.is_any_of(name, marked(MAY_CHANGE))
    for name in ("seed", "epochs_", "dataset.limit", "amp.dtype", "compile.mode"):
        assert not schema.is_any_of(name, marked(MAY_CHANGE))
    assert set(marked(NO_EFFECT)) == {
        "resume", "logger", "checkpoint", "dataset.cache_dir", "dataset.download", "launch.grace",
        "launch.max_restarts", "launch.timeout", "parallel.checkpoint", "parallel.timeout",
    }  # fmt: skip
