"""How many values a sweep gives to a key, before anything is listed."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from ninefold.study import checks


class Loader:
    """Hydra's, as far as a glob asks it: a group of two options."""

    def get_group_options(self, group: str, **options: object) -> list[str]:
        return ["ddp", "none"] if group == "parallel" else []


def problems(*texts: str, sweeper: str = "study") -> list[str]:
    parser = OverridesParser.create(config_loader=Loader())
    return list(map(str, checks.wrong_values(parser.parse_overrides(list(texts)), sweeper)))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("seed=range(0)", "it has no values"),
        ("seed=range(5,0)", "it has no values"),
        ("seed=range(0,5,-1)", "it has no values"),
        ("seed=shuffle(range(0))", "it has no values"),
        ("seed=glob(*)", "it has no values"),
        ("parallel=glob(fs*)", "it has no values"),
        ("seed=range(0,1,0)", "its step is 0"),
        ("seed=range(0.0,1.0,0.0)", "its step is 0"),
        ("seed=range(0,nan)", "[<class 'decimal.InvalidOperation'>]"),
        ("seed=range(0,inf)", "the sweep would have more than 100,000 runs"),
        ("seed=range(0,10000000000000)", "the sweep would have more than 100,000 runs"),
        ("seed=shuffle(range(0,10000000000000))", "the sweep would have more than 100,000 runs"),
        ("optimizer.lr=interval(0,1)", "an interval has no single values"),
    ],
)
def test_a_sweep_without_values_or_without_an_end_is_refused(text, wrong):
    (line,) = problems(text)
    assert line.startswith(f"error: {text}: {wrong}")


def test_the_values_of_all_keys_together_are_counted():
    (line,) = problems("seed=range(0,5000)", "epochs=range(1,5000)")
    assert line.startswith("error: epochs=range(1,5000): the sweep would have more than")


@pytest.mark.parametrize(
    "texts",
    [
        ["seed=0,1", "parallel=glob(*)", "epochs=range(1,3)", "optimizer.lr=range(0.1,0.5,0.2)"],
        ["seed=range(5,0,-1)", "epochs=3"],
        ["seed=range(0)", "seed=0,1"],  # of a study, and of the command that runs it
    ],
)
def test_a_sweep_with_values_is_none_of_its_business(texts):
    assert problems(*texts) == []


def test_an_interval_is_for_sweepers_that_search():
    assert problems("optimizer.lr=interval(0,1)", sweeper="optuna") == []
