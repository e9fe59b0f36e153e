"""A key that some options of a group have is of those alone in a sweep over the group."""

from pathlib import Path

import pytest
import yaml

from ninefold.config.own_keys import fits, is_own, of_options
from tests.conftest import Shell
from tests.faults.refusals import refused

UNUSED = "parallel.find_unused_parameters=true"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (UNUSED, True),
        ("optimizer.momentum=0.5", True),
        ("parallel.device=cpu", False),  # every option has it
        ("parallel.find_unused=true", False),  # none has it
        (f"+{UNUSED}", False),
        ("batch_size=8", False),
    ],
)
def test_a_key_is_of_some_options_if_others_of_its_group_lack_it(text: str, own: bool) -> None:
    assert is_own(text) is own


def test_each_job_of_a_sweep_keeps_the_keys_that_its_own_option_has() -> None:
    assert fits(UNUSED, "ddp")
    assert not fits(UNUSED, "none")
    assert fits(UNUSED, "mine")  # an option that is not in conf/
    jobs = [["parallel=none", UNUSED], ["parallel=ddp", UNUSED], ["batch_size=8", UNUSED]]
    found = of_options(jobs, lambda group: "none")
    assert found == [["parallel=none"], ["parallel=ddp", UNUSED], ["batch_size=8"]]
    alone = [["parallel=none", UNUSED], ["parallel=dp", UNUSED]]
    assert of_options(alone, lambda group: "none") == alone  # it is refused then


def test_a_key_of_one_strategy_is_set_in_its_configurations_of_a_sweep(shell: Shell) -> None:
    given = ["-m", UNUSED, "amp=fp32", "max_steps=2", "logger=quiet", "study.rounds=1"]
    common = [*given, "study.ask=[accuracy]", "launch.cpu_processes=2", "hydra.sweep.dir=sweep"]
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


def read(path: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = yaml.safe_load(path.read_text())
    return found
