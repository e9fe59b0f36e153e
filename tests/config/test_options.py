"""Keys that one option alone has: they stand beside its module, which is not imported."""

import inspect
from pathlib import Path
from pydoc import locate

import pytest

from ninefold.config import options
from ninefold.config.conf_files import read_tree
from ninefold.config.options import of_class
from ninefold.config.rules import problems
from ninefold.config.schema import BY_OPTION
from ninefold.errors import ConfigError
from ninefold.places import CONF
from ninefold.types import Count

MINE = "import torch_that_is_not_there\n"
KEYS = '''
from __future__ import annotations

from ninefold.types import Count, Fraction, Section

class MineKeys(Section, kw_only=True):
    depth: Count = 3
    """Its depth."""
    share: Fraction
    silent: Count = 1

class OtherKeys(Section):
    width: Count = 1
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    of_class.cache_clear()
    options._beside.cache_clear()
    (tmp_path / "mine_to_read.py").write_text(MINE)
    keys = tmp_path / "mine_to_read_keys.py"
    keys.write_text(KEYS)
    return keys


def test_the_keys_of_a_class_are_the_fields_of_the_class_of_keys_with_its_name(mine):
    keys = of_class("mine_to_read.Mine")
    defaults = {name: key.default for name, key in keys.items()}
    assert defaults == {"depth": 3, "share": BY_OPTION, "silent": 1}
    assert (keys["depth"].kind, keys["depth"].meaning) == (Count, "Its depth.")
    assert keys["silent"].meaning == ""


def test_a_job_is_checked_against_the_keys_of_its_own_class_which_is_not_run(mine):
    job = {"dataset": {"_target_": "mine_to_read.Mine", "depth": 0, "share": 2}}
    depth, share = map(str, problems(job, job))
    assert depth.startswith("error: dataset.depth=0: not allowed; a whole number of at least 1 is ")
    assert share.startswith("error: dataset.share=2: not allowed; a number above 0 and below 1")


KINDS = """
from ninefold.types import Section
class MineKeys(Section):
    depth: int | dict[int, str] | dict[str, str] = 1
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [("import", "SyntaxError"), ("\nx = WORD", ":2, NameError"), (KINDS, "TypeError")],
)
def test_keys_that_cannot_be_read_are_one_line_with_the_users_line(mine, text, said):
    mine.write_text(text)
    with pytest.raises(ConfigError) as caught:
        of_class("mine_to_read.Mine")
    assert f"{said}: " in str(caught.value)
    assert str(caught.value).endswith(f"; correct {mine}")


@pytest.mark.parametrize("target", ["no_such_module.Mine", "Mine", "", ".", "torch.optim.AdamW"])
def test_a_class_that_is_not_found_or_not_ours_has_no_keys(target):
    assert of_class(target) == {}


def test_a_class_has_the_defaults_of_its_keys():
    for path in CONF.glob("*/*.yaml"):
        target = read_tree(path).get("_target_", "")
        keys = {name: key for name, key in of_class(target).items() if name != "_target_"}
        taken = inspect.signature(locate(target)).parameters if keys else {}
        for name, key in keys.items():
            assert key.default in (taken[name].default, BY_OPTION), f"{target}: {name}"


ROWS = """
from ninefold.config.combinations import Combination

REFUSED = [
    Combination("epochs", lambda job: job["mine.depth"] == 4, "{deep}", "a", "b", {"deep": WORD})
]
"""


def test_what_an_option_refuses_is_read_beside_its_module_which_is_not_run(mine):
    mine.write_text(ROWS.replace("WORD", "lambda _: 4"))
    job = {"epochs": 2, "parallel": {"_target_": "mine_to_read.Mine"}, "mine": {"depth": 4}}
    (failure,) = problems(job, job)
    assert str(failure) == "error: epochs=2: 4; a; b"
    assert problems({**job, "mine": {"depth": 3}}, job) == []
