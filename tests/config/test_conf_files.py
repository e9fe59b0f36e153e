"""A key that some options of a group have is of those alone in a sweep over the group."""

import pytest
from hydra.errors import ConfigCompositionException

from ninefold.config import resolvers
from ninefold.config.composition import compose, flags_of
from ninefold.config.conf_files import of_options
from ninefold.config.job import asked
from ninefold.errors import ConfigError

UNUSED = "parallel.find_unused_parameters=true"


def test_a_key_of_one_strategy_is_set_in_its_configurations_of_a_sweep():
    none, dp, ddp = ([f"parallel={name}", UNUSED] for name in ("none", "dp", "ddp"))
    assert of_options([none, ddp], lambda group: None) == [none[:1], ddp]
    assert of_options([none, dp], lambda group: None) == [none, dp]  # in which it is refused


def test_gpus_that_one_strategy_would_not_use_are_refused_in_a_sweep():
    jobs = [["parallel=none", "parallel.devices=[1,2]"], ["parallel=ddp", "parallel.devices=[1,2]"]]
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES=1,2"):
        of_options(jobs, lambda group: None)
    on_all = [[words[0], "parallel.devices=null"] for words in jobs]
    assert of_options(on_all, lambda group: None) == [on_all[0][:1], on_all[1]]
    assert of_options(jobs[1:], lambda group: None) == jobs[1:]


def test_a_run_of_an_experiment_leaves_no_word_of_its_command_out():
    resolvers.register()
    study, run = ["experiments=nine_way", "parallel=none", UNUSED], "hydra.mode=RUN"
    assert compose("train", flags_of(study)).own == (UNUSED,)
    with pytest.raises(ConfigCompositionException, match="find_unused_parameters"):
        compose("train", flags_of([*study, run]))


def test_gpus_that_are_set_by_force_are_refused_where_a_strategy_would_not_use_them():
    resolvers.register()
    words = ["experiments=nine_way", "hydra.mode=RUN", "parallel=none", "+parallel.devices=[1]"]
    config = compose("train", flags_of(words)).config
    with pytest.raises(ConfigError, match=r"parallel.devices=\[1\]: strategies of one process"):
        asked(config, config.hydra)
