"""Which process of a run this is, and environments that are refused."""

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from benchmarks.ours import job
from ninefold.errors import ConfigError
from ninefold.ranks import Ranks, found, require_launcher, slurm, tell_agent, variables

SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_a_process_that_no_launcher_started_is_alone():
    assert found({}) == Ranks(0, 1, 0, 1, attempt=0)
    assert found(TORCHRUN) == Ranks(3, 4, 1, 2)


def test_a_task_of_srun_is_the_rank_that_slurm_says():
    assert found(SRUN) == Ranks(3, 4, 1, 2, node=1)
    assert variables(SRUN)["MASTER_ADDR"] == "node07"
    three = {**SRUN, "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
    last = {**three, "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
    assert found(last) == Ranks(2, 3, 0, 1, node=1)
    assert found({**SRUN, **TORCHRUN}) == found(TORCHRUN)  # torchrun inside srun


ALONE: dict[str, dict[str, str]] = {
    "no Slurm": {},
    "a step of one task in a larger job": {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
    "sbatch or salloc without srun": {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
    "the batch script as a step": {**SRUN, "SLURM_STEP_ID": str(2**32 - 5)},
    "the shell of salloc as a step": {**SRUN, "SLURM_STEP_ID": str(2**32 - 6)},
}


@pytest.mark.parametrize("environment", ALONE.values(), ids=ALONE)
def test_a_command_that_srun_did_not_start_several_of_is_alone(environment):
    require_launcher(environment)
    assert variables(environment) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_PROCID", None),
        ("SLURM_PROCID", "x"),
        ("SLURM_LOCALID", None),
        ("SLURM_STEP_NODELIST", None),
        ("SLURM_STEP_TASKS_PER_NODE", None),
        ("SLURM_STEP_TASKS_PER_NODE", "4"),
    ],
)
def test_variables_of_srun_that_are_missing_or_odd_are_one_line(name, value):
    environment = {**SRUN, name: value or ""}
    if value is None:
        del environment[name]
    with pytest.raises(ConfigError, match=r"^error: SLURM_STEP_ID=0: not the environment of a "):
        require_launcher(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("nodea", "nodea"),
        ("nodea,nodeb", "nodea"),
        ("node[07-09,12],login1", "node07"),
        ("node[3,5-7]", "node3"),
        ("rack[1-2]n[04-05].local,x", "rack1n04.local"),
        ("n[001-128]-ib", "n001-ib"),
    ],
)
def test_the_first_host_of_a_list_is_found(nodes, first):
    assert slurm.first_host(nodes) == first


def test_tasks_per_node_are_counted():
    assert slurm.tasks_per_node("2(x3),1,4(x2)") == [2, 2, 2, 1, 4, 4]
    assert slurm.tasks_per_node("3") == [3]
    assert slurm.tasks_per_node("many") == slurm.tasks_per_node("") == []


def test_all_tasks_of_a_step_have_the_same_port_and_another_step_has_another():
    def port(**changes: str) -> str:
        return variables({**SRUN, **changes})["MASTER_PORT"]

    mine = port()
    assert int(mine) in range(20000, 32768)
    assert mine == port(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    others = [port(SLURM_JOB_ID="8"), port(SLURM_STEP_ID="1"), port(SLURM_RESTART_COUNT="1")]
    assert len({mine, *others}) == 4
    assert port(SLURM_RESTART_COUNT="0") == mine
    assert port(MASTER_PORT="29500") == "29500"


def test_several_tasks_for_a_strategy_of_one_process_are_one_line(monkeypatch):
    first = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    for name, value in first.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        job("parallel=none")
    line = str(refused.value)
    assert line.startswith(
        "error: parallel.processes=1: srun started 4 processes; parallel=none wa"
    )


def test_torchrun_reports_the_line_of_the_rank_that_failed_first(tmp_path, monkeypatch):
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    tell_agent(ConfigError("seed", "x", "not allowed", "a number", "correct it"))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(file))
    said = str(ChildFailedError("train.py", {0: failure}))
    assert "traceback : error: seed=x: not allowed; a number; correct it" in said
