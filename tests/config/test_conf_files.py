"""A key that some options of a group have is of those alone in a sweep over the group."""

import pytest

from ninefold.config.conf_files import of_options
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
