"""launch.dry: what a process of many would hold and send, without the others."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from ninefold.config import resolvers
from ninefold.config.job import as_yaml, asked
from ninefold.config.spec import RunSpec
from ninefold.errors import ConfigError
from ninefold.parallel.ddp import DDP
from ninefold.train import build
from ninefold.train.dry import dry_run, pretended, share_of
from tests.conftest import ROOT, Shell


def text_of(*overrides: str) -> str:
    resolvers.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", overrides=list(overrides), return_hydra_config=True)
    job = asked(config, config.hydra)
    return as_yaml(job.stored, job.choices)


def test_one_of_hundreds_of_processes_holds_what_one_of_a_few_does_and_sends_twice_as_much() -> (
    None
):
    job = OmegaConf.create(text_of("parallel=ddp", "batch_size=512", "threads=1"))
    assert isinstance(job, DictConfig)
    few, many = (share_of(job, DDP(), processes) for processes in (2, 512))
    assert few.memory == many.memory
    assert many.sent / few.sent == pytest.approx(2 * 511 / 512, rel=0.01)
    assert (few.examples, many.examples) == (256, 1)
    assert not dist.is_initialized()


@pytest.mark.parametrize("processes", [4, 512])
def test_one_of_many_processes_of_fsdp_holds_its_rows_of_each_parameter(processes: int) -> None:
    job = OmegaConf.create(text_of("parallel=fsdp", "batch_size=512", "threads=1"))
    assert isinstance(job, DictConfig)
    parallel = build.make(job.parallel, "parallel")
    share, shapes = (
        share_of(job, parallel, processes),
        [p.shape for p in build.network(job).parameters()],
    )
    rows = sum(math.ceil(shape[0] / processes) * math.prod(shape[1:]) for shape in shapes)
    assert share.memory["parameters"] == share.memory["gradients"] == 4 * rows
    assert share.memory["optimizer"] >= 2 * 4 * rows
    assert share.messages == 3  # gather twice, reduce once


@pytest.mark.slow
def test_each_number_of_processes_up_to_hundreds_has_its_share(
    tmp_path: Path,
) -> None:
    text = text_of("parallel=ddp", "parallel.processes=512", "batch_size=512", "threads=1")
    dry_run(RunSpec("dry", text, tmp_path, 0.0))
    shares = json.loads((tmp_path / "dry.json").read_text())["shares"]
    assert [share["processes"] for share in shares] == [2**power for power in range(10)]
    assert [share["examples"] for share in shares][-1] == 1
    [memory] = {json.dumps(share["memory"]) for share in shares}
    held = json.loads(memory)
    assert held["gradients"] == held["parameters"]
    assert held["optimizer"] >= 2 * held["parameters"]  # both moments of AdamW
    buffers = shares[1]["sent"] - held["gradients"]  # of BatchNorm, if it has any
    assert 0 <= buffers < held["gradients"] / 20
    last = shares[-1]["sent"] / shares[1]["sent"]
    assert last == pytest.approx(2 * 511 / 512, rel=0.01)
    assert not dist.is_initialized()


def test_halving_the_processes_of_hsdp_stops_where_each_copy_has_one(tmp_path: Path) -> None:
    text = text_of(
        "parallel=fsdp", "parallel.processes=8", "parallel.replicas=4", "batch_size=64", "threads=1"
    )
    dry_run(RunSpec("dry", text, tmp_path, 0.0))
    shares = json.loads((tmp_path / "dry.json").read_text())["shares"]
    assert [share["processes"] for share in shares] == [4, 8]


def test_a_torch_that_cannot_pretend_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "torch.testing._internal.distributed.fake_pg"
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    job = OmegaConf.create(text_of("parallel=ddp"))
    assert isinstance(job, DictConfig)
    with pytest.raises(ConfigError, match=r"launch\.dry=true: torch .* cannot pretend"):
        share_of(job, DDP(), 2)


def test_a_group_that_pretends_ends_with_its_block() -> None:
    with pretended(64) as place:
        assert (dist.get_world_size(), place.world_size, place.rank) == (64, 64, 0)
    assert not dist.is_initialized()


@pytest.mark.slow
def test_the_command_prints_a_table_and_leaves_no_run(shell: Shell) -> None:
    done = shell.train(
        "parallel=ddp", "parallel.processes=64", "threads=1", "launch.dry=true",
        "hydra.run.dir=dry",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    head, names, *rows = done.stdout.splitlines()
    assert head == "parallel=ddp: MB of each process, without activations"
    assert names.split()[:2] == ["processes", "examples"]
    assert [row.split()[0] for row in rows] == ["1", "2", "4", "8", "16", "32", "64"]
    assert not (shell.folder / "dry" / "result.json").exists()


def test_it_is_refused_where_there_is_no_one_new_job(shell: Shell) -> None:
    done = shell.train("-m", "launch.dry=true", "seed=0,1")
    assert done.returncode == 2
    assert done.stderr.startswith("error: launch.dry=true: a sweep has many jobs; ")
