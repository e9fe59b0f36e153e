"""A key that some options of a group have is of those alone in a sweep over the group."""

from pathlib import Path

import pytest
import yaml

from ninefold.config.conf_files import of_options
from ninefold.errors import ConfigError
from tests.faults.refusals import refused

UNUSED = "parallel.find_unused_parameters=true"


@pytest.mark.slow
def test_a_key_of_one_strategy_is_set_in_its_configurations_of_a_sweep(shell):
    given = ["-m", UNUSED, "amp=fp32", "max_steps=2", "logger=quiet", "study.rounds=1"]
    common = [*given, "study.ask=[score]", "launch.cpu_processes=2", "hydra.sweep.dir=sweep"]
    done = shell.train(*common, "parallel=none,ddp", code=0)
    assert "different conditions" not in done.stdout
    jobs = {path.parent.name: read(path) for path in shell.folder.glob("sweep/*/config.yaml")}
    said = {job["choices"]["parallel"]: job["parallel"] for job in jobs.values()}
    assert said["ddp"]["find_unused_parameters"] is True
    assert "find_unused_parameters" not in said["none"]
    refused(
        shell.train(*given, "parallel=none,dp", "hydra.sweep.dir=other"),
        2,
        "parallel.find_unused_parameters=true: the chosen options have no such key",
    )


def test_gpus_that_one_strategy_would_not_use_are_refused_in_a_sweep():
    jobs = [["parallel=none", "parallel.devices=[1,2]"], ["parallel=ddp", "parallel.devices=[1,2]"]]
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES=1,2"):
        of_options(jobs, lambda group: None)
    on_all = [[words[0], "parallel.devices=null"] for words in jobs]
    assert of_options(on_all, lambda group: None) == [on_all[0][:1], on_all[1]]
    assert of_options(jobs[1:], lambda group: None) == jobs[1:]


def read(path: Path) -> dict[str, dict[str, object]]:
    return yaml.safe_load(path.read_text())
