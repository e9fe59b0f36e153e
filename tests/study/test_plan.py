"""A sweep becomes cells and rounds, in an order that only the seed of the study decides."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from ninefold.config import resolvers
from ninefold.config.composition import not_honored
from ninefold.config.job import variant
from ninefold.errors import ConfigError, Refused
from ninefold.study.checks import odd_options, settings_of
from ninefold.study.plan import Composer, Plan
from tests.conftest import ROOT


def test_the_order_of_a_round_is_the_same_whatever_the_seeds(made):
    one, same = made.plan(seeds=[5, 6]), made.plan(seeds=[0, 1, 2], rounds=9)
    orders = [[p.order(n, shuffled=True) for n in range(20)] for p in (one, same)]
    assert orders[0] == orders[1]


def test_the_second_of_two_rounds_runs_the_cells_backwards(made):
    orders = [made.plan(seeds=[0, 1]).order(number, shuffled=True) for number in range(6)]
    assert [order[::-1] for order in orders[::2]] == orders[1::2]
    assert orders[0] == made.plan(seeds=[0, 1]).order(0, shuffled=True)
    assert len({tuple(cell.name for cell in order) for order in orders}) > 2


def test_rounds_continue_from_the_largest_seed_and_keep_all_named_seeds(made):
    made.study(seeds=[7, 2], rounds=4).run()
    assert made.rounds("seed") == [(7,), (2,), (8,), (9,)]
    with pytest.raises(ConfigError, match=r"study.rounds=2: the sweep names 3 seeds"):
        made.plan(seeds=[0, 1, 2], rounds=2)
    with pytest.raises(ConfigError, match=r"study.rounds=2,3: it has several values"):
        Plan([["study.rounds=2"], ["++study.rounds=3"]], made.compose, made.settings())


def test_seeds_that_are_named_by_options_alone_are_all_run(made):
    def compose(overrides: Sequence[str]) -> DictConfig:
        config = made.compose(overrides)
        config.seed = 3 if "amp=fp32" in overrides else 7
        return config

    planned = Plan([["amp=fp32"], ["amp=autocast"]], compose, made.settings())
    assert planned.seeds == [3, 7]


@pytest.mark.parametrize("key", ["logger", "profile", "dataset.root", "dataset.download"])
def test_a_key_that_results_do_not_record_cannot_be_swept(key):
    for swept in (f"{key}=a,b", f"++{key}=choice(a,b)"):  # whichever sweeper it is for
        (failure,) = odd_options(OverridesParser.create().parse_overrides(["seed=1,2", swept]))
        assert "its runs would be one configuration" in str(failure)
        parse = OverridesParser.create().parse_overrides
        assert odd_options(parse([swept, f"{swept.partition('=')[0]}=a"])) == []  # the last counts


def test_a_swept_mapping_is_recorded_in_the_results(made):
    overrides = ["model=alexnet", "dataset={root: /a}"]
    assert variant(overrides) == overrides[1:]


def test_a_key_is_the_same_with_a_plus_before_it(made):
    jobs = [[f"++seed={seed}", f"++optimizer.lr={lr}"] for seed in (0, 1) for lr in (0.1, 0.2)]
    planned = Plan(jobs, made.compose, made.settings())
    assert [cell.name for cell in planned.cells] == [
        "none-fp32 optimizer.lr=0.1", "none-fp32 optimizer.lr=0.2"
    ]  # fmt: skip
    assert planned.seeds == [0, 1]
    assert planned.swept == {"optimizer.lr": ["0.1", "0.2"]}
    assert planned.cells[0].keys == {"parallel": "none", "amp": "fp32", "optimizer.lr": "0.1"}


@pytest.mark.parametrize(
    ("subdir", "given", "fine"),
    [
        ("${hydra.job.num}", {}, True),
        ("x", {"seeds": [0]}, False),
        ("${seed}", {}, False),  # two cells
        ("${hydra.runtime.choices.parallel}", {}, False),  # two rounds of a cell
        ("${seed}-${hydra.runtime.choices.parallel}", {}, True),
        ("${seed}-${hydra.runtime.choices.parallel}", {"seeds": [0]}, True),
    ],
)
def test_no_two_runs_of_a_study_are_in_one_folder(made, subdir, given, fine):
    def compose(overrides: Sequence[str]) -> DictConfig:
        config = compose_before(overrides)
        with open_dict(config):
            config.hydra.sweep.subdir = subdir
        return config

    compose_before, made.compose = made.compose, compose
    with nullcontext() if fine else pytest.raises(ConfigError, match=r"put \$\{hydra.job.num\}"):
        made.plan(**given)


def test_settings_of_a_study_are_refused_where_none_is_run(made):
    single = made.compose(["study.rounds=3", "report.margin=1"])
    wrong = "a single run is no study; "
    starts = [f"error: study.rounds=3: {wrong}", f"error: report.margin=1: {wrong}"]
    for failure, start in zip(not_honored(single), starts, strict=True):
        assert str(failure).startswith(start)
    assert not not_honored(made.compose(["seed=1"]))
    with open_dict(single):
        single.hydra.mode = RunMode.MULTIRUN
        assert not not_honored(single)
        single.hydra.runtime.choices["hydra/sweeper"] = "basic"
    wrong = [str(failure).partition("; ")[0] for failure in not_honored(single)]
    assert wrong == [f"error: {word}: hydra/sweeper=basic makes no study"
                     for word in ("study.rounds=3", "report.margin=1")]  # fmt: skip


def test_each_run_has_a_configuration_of_its_own(made):
    planned = made.plan()
    overrides = planned.overrides(planned.cells[0], 0)
    planned.folder_name(planned.cells[0], 0, 5)
    first = planned.config(overrides, 5)
    first.seed = 99
    second, of_another = planned.config(overrides, 5), planned.config(overrides, 6)
    assert (second.seed, second.hydra.job.num, of_another.hydra.job.num) == (0, 5, 6)


def test_lists_and_numbers_of_a_sweep_are_checked_as_they_are_composed(made):
    for ask in ("[time]", "[time,score]", "null"):
        config = made.compose([f"study.ask={ask}", "study.rounds=3"])
        settings_of(config)
    with pytest.raises(Refused) as refused:
        settings_of(made.compose(["study.ask=[score,time]"]))
    (one,) = refused.value.failures
    assert str(one).startswith("error: study.ask=[score, time]: not allowed; [time], ")


RUNS = [
    ["seed=1"],
    ["seed=2", "parallel=ddp", "optimizer.lr=0.1", "model.net.width=4"],
    ["seed=3", "parallel=ddp", "optimizer.lr=${clock.sample}", "dataset.root='a, b=c'"],
    ["experiments=nine_way", "amp=scaler", "batch_size=8", "max_steps=null"],
    ["~logger.console", "seed=1", "+model.net.more=1", "dataset.shape=[1,2,3]", "epochs=3"],
    ["model.net.width=4", "model={net: {width: 3}}"],
    ["model={net: {width: 3}}", "model.net.width=4"],
    ["hydra.sweep.subdir=first", "parallel=ddp", "max_steps=3"],
    ["logger=jsonl", "optimizer.groups=[{match: '*.bias', lr: 0.1}]", "dataset.shape=[3,8,8]"],
    ["dataset=synthetic", "dataset.shape=[3,'${clock.sample}',8]", "optimizer.groups=[]"],
]  # fmt: skip


@pytest.fixture
def loader() -> Iterator[ConfigLoader]:
    resolvers.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


@pytest.mark.slow
def test_a_run_is_composed_as_by_hydra(loader):
    given = ["hydra.job.config.override_dirname.exclude_keys=[epochs]"]
    sweep = loader.load_configuration("train", given, RunMode.MULTIRUN)
    compose = Composer(loader, sweep)
    for run in RUNS:
        expected = OmegaConf.to_yaml(loader.load_sweep_config(sweep, run))
        for _ in range(2):  # the second time from what is kept
            config = compose(run)
            assert OmegaConf.to_yaml(config) == expected, run
            assert OmegaConf.is_struct(config)


def test_runs_that_differ_in_values_are_composed_once(loader, monkeypatch):
    sweep = loader.load_configuration("train", [], RunMode.MULTIRUN)
    composed: list[list[str]] = []
    real = loader.load_sweep_config

    def load_sweep_config(master: DictConfig, overrides: list[str]) -> DictConfig:
        composed.append(overrides)
        return real(master, overrides)

    monkeypatch.setattr(loader, "load_sweep_config", load_sweep_config)
    compose = Composer(loader, sweep)
    for seed in range(5):
        for lr in (0.1, 0.2):
            shape = [seed + 1, 8, 8]
            config = compose(
                [f"seed={seed}", "parallel=ddp", f"optimizer.lr={lr}", f"dataset.shape={shape}"]
            )
            assert (config.seed, config.optimizer.lr, config.dataset.shape) == (seed, lr, shape)
    assert composed == [["parallel=ddp"]]
