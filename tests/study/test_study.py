"""A study runs in rounds, tells when the machine drifted, and goes on where it was cut short."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from ninefold import main, secrets
from ninefold.callback import Check, odd_options
from ninefold.config import overrides as messages
from ninefold.config import resolvers
from ninefold.config.job import Job
from ninefold.errors import Busy, ConfigError
from ninefold.launch import Refused
from ninefold.launch.run_folder import exclusive
from ninefold.result import Result
from ninefold.study import composition, plan, start
from ninefold.study import sweep as sweeper
from ninefold.study.max_batch import Largest
from ninefold.study.plan import Cell, Plan
from ninefold.study.runner import Study
from tests.conftest import ROOT, Shell, result
from tests.faults.runs import RUN, fired, last_step, one_after_another, state_hash

CELLS = [["parallel=none"], ["parallel=dp"], ["parallel=ddp"]]
FITS = Largest(128, None, "the whole training set fits")


@dataclass
class Sweep:
    """A study in `folder`, whose runs take no time: each leaves what a run does, and its probes.

    probes: the seconds that the runs' probes take, in the order run; 1 after the last of them.
    statuses: likewise how they end; "late": well, but the command is told to stop meanwhile.
    unlike: what the results of a strategy have otherwise; dp's probes then take half. found: by
    each search.
    """

    folder: Path
    compose: Callable[[Sequence[str]], DictConfig]
    probes: list[float] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    unlike: dict[str, dict[str, Any]] = field(default_factory=dict)
    found: Largest = FITS

    def plan(self, *overrides: str, seeds: Sequence[int] = (0, 1), **study: Any) -> Plan:
        jobs = [[f"seed={seed}", *cell, *overrides] for seed, cell in product(seeds, CELLS)]
        return Plan(jobs, self.compose, self.settings(**study))

    def settings(self, **study: Any) -> dict[str, Any]:
        stored = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "train.yaml").study)
        assert isinstance(stored, dict)
        return {**{str(key): value for key, value in stored.items()}, "burn_in": 0, **study}

    def study(self, *overrides: str, resume: bool = False, **given: Any) -> Study:
        seeds = given.pop("seeds", (0, 1))
        planned, study = self.plan(*overrides, seeds=seeds, **given), self.settings(**given)
        settings, now = {"study": study, "report": {}}, time.time()
        if resume:
            sitting = start.take_up(self.folder, planned, settings, "basic", now)
        else:
            sitting = start.begin(
                self.folder, planned, settings, None, "basic", "train.py", now
            )  # fmt: skip
        return Study(planned, sitting, study, self.launch, self.largest, beside=False)

    def largest(self, cell: Cell) -> Largest:
        self.names.append(cell.name)
        time.sleep(0.001)
        return self.found

    def launch(self, jobs: Sequence[Sequence[str]], number: int) -> list[JobReturn]:
        (overrides,) = jobs
        config = self.compose(overrides)
        with open_dict(config):
            config.hydra.job.num = number
        name = str(OmegaConf.select(config, "hydra.sweep.subdir"))
        folder = self.folder / name
        self.names.append(name)
        self.resumed += [name] * (config.resume is not None)
        folder.mkdir(exist_ok=True)
        job = Job(config, config.hydra)
        (folder / "config.yaml").write_text(job.text())
        status = self.statuses.pop(0) if self.statuses else "ok"
        if status == "killed":
            raise KeyboardInterrupt
        probe, parallel = self.probes.pop(0) if self.probes else 1.0, job.choices["parallel"]
        probe /= 1 + (parallel == "dp" and bool(self.unlike))
        made = Result(
            "ok" if status == "late" else status, parallel=parallel, amp="fp32", seed=config.seed,
            accuracy=0.5, train_seconds=1.0, epochs=1, total_seconds=60.0, devices=["cpu"],
            threads=1, probe_seconds=[probe, probe],
        )  # fmt: skip
        replace(made, **self.unlike.get(parallel, {})).write(folder)
        if status == "late":
            raise KeyboardInterrupt
        done = JobReturn(status=JobStatus.COMPLETED)
        done.return_value = 0.5
        return [done]

    def file(self) -> dict[str, Any]:
        found = json.loads((self.folder / "sweep.json").read_text())
        assert isinstance(found, dict)
        return found

    def rounds(self, *keys: str) -> list[tuple[Any, ...]]:
        return [tuple(entry[key] for key in keys) for entry in self.file()["rounds"]]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Sweep]:
    resolvers.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        composition.share(loader, lambda config: None)
        master = loader.load_configuration("train", [], RunMode.MULTIRUN)
        yield Sweep(tmp_path, lambda given: loader.load_sweep_config(master, list(given)))


def test_each_round_has_every_cell_once_in_an_order_of_its_own(made: Sweep) -> None:
    made.study(seeds=range(6)).run()
    cells = [[name.split("_")[1] for name in runs] for (runs,) in made.rounds("runs")]
    assert all(sorted(names) == ["ddp", "dp", "none"] for names in cells)
    assert len({tuple(names) for names in cells}) > 2
    assert made.rounds("round", "seed") == [(number, number) for number in range(6)]
    assert [int(name.split("_")[0]) for name in made.names] == list(range(18))


def test_the_order_of_a_round_depends_on_the_seed_of_the_study_and_on_nothing_else(
    made: Sweep,
) -> None:
    one, same = made.plan(seeds=[5, 6]), made.plan(seeds=[0, 1, 2], repeats=9)
    other = made.plan(seed=1)
    orders = [[p.order(n, shuffled=True) for n in range(20)] for p in (one, same, other)]
    assert orders[0] == orders[1] != orders[2]


def test_the_second_of_two_rounds_runs_the_cells_backwards(made: Sweep) -> None:
    orders = [made.plan(seeds=[0, 1]).order(number, shuffled=True) for number in range(6)]
    assert [order[::-1] for order in orders[::2]] == orders[1::2]
    assert orders[0] == made.plan(seeds=[0, 1]).order(0, shuffled=True)
    assert len({tuple(cell.name for cell in order) for order in orders}) > 2


def test_a_sweep_in_which_nothing_is_repeated_is_run_as_it_was_given(made: Sweep) -> None:
    made.probes = [1.0, 9.0]
    made.study(seeds=[3], burn_in=5).run()
    assert made.names == ["0_none_fp32_seed3", "1_dp_fp32_seed3", "2_ddp_fp32_seed3"]


def test_a_burn_in_is_listed_and_not_counted(made: Sweep) -> None:
    made.study(burn_in=5).run()
    assert made.names[0] == made.file()["burn_in"] == "burn_in"
    assert OmegaConf.load(made.folder / "burn_in" / "config.yaml").max_steps == 5
    assert [len(runs) for (runs,) in made.rounds("runs")] == [3, 3]


def test_repeats_go_on_counting_from_the_largest_seed_and_leave_out_none_that_is_named(
    made: Sweep,
) -> None:
    made.study(seeds=[7, 2], repeats=4).run()
    assert made.rounds("seed") == [(7,), (2,), (8,), (9,)]
    with pytest.raises(ConfigError, match=r"study.repeats=2: the sweep names 3 seeds"):
        made.plan(seeds=[0, 1, 2], repeats=2)
    with pytest.raises(ConfigError, match=r"study.repeats=auto: the sweep names 21 seeds"):
        made.plan(seeds=range(21), repeats="auto")
    with pytest.raises(ConfigError, match=r"study.repeats=2,3: it has several values"):
        Plan([["study.repeats=2"], ["++study.repeats=3"]], made.compose, made.settings())


@pytest.mark.parametrize("key", ["logger", "profile", "dataset.root", "dataset.download"])
def test_what_no_result_says_takes_one_value_in_a_sweep(made: Sweep, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=a,b: it has several values; its runs would"):
        Plan([[f"{key}=a"], [f"{key}=b"]], made.compose, made.settings())
    for swept in (f"{key}=a,b", f"++{key}=choice(a,b)"):  # whichever sweeper it is for
        (failure,) = odd_options(["seed=1,2", swept])
        assert "its runs would stand in one cell" in str(failure)


def test_a_swept_mapping_is_said_in_the_results(made: Sweep) -> None:
    overrides = ["model=alexnet", "dataset={root: /a}"]
    job = Job(config := made.compose(overrides), config.hydra)
    assert job.variant == overrides[1:]


def test_a_key_is_the_same_with_a_plus_before_it(made: Sweep) -> None:
    jobs = [[f"++seed={seed}", f"++optimizer.lr={lr}"] for seed in (0, 1) for lr in (0.1, 0.2)]
    planned = Plan(jobs, made.compose, made.settings())
    assert [cell.name for cell in planned.cells] == [
        "none-fp32 optimizer.lr=0.1", "none-fp32 optimizer.lr=0.2"
    ]  # fmt: skip
    assert planned.seeds == [0, 1]
    assert planned.swept == {"optimizer.lr": ["0.1", "0.2"]}


@pytest.mark.parametrize(
    ("subdir", "given", "fine"),
    [
        ("${hydra.job.num}", {"mixed": True}, True),
        ("x", {"seeds": [0]}, False),
        ("${seed}", {}, False),  # two cells
        ("${hydra.runtime.choices.parallel}", {"retries": 0}, False),  # two rounds of a cell
        ("${seed}-${hydra.runtime.choices.parallel}", {}, False),  # a round that is repeated
        ("${seed}-${hydra.runtime.choices.parallel}", {"retries": 0}, True),
        ("${seed}-${hydra.runtime.choices.parallel}", {"seeds": [0]}, True),
        ("${seed}-${hydra.runtime.choices.parallel}", {"seeds": [0], "mixed": True}, False),
    ],
)
def test_no_two_runs_of_a_study_are_in_one_folder(
    made: Sweep, subdir: str, given: dict[str, Any], fine: bool
) -> None:
    def compose(overrides: Sequence[str]) -> DictConfig:
        config = compose_before(overrides)
        with open_dict(config):
            config.hydra.sweep.subdir = subdir
        return config

    compose_before, made.compose = made.compose, compose
    with nullcontext() if fine else pytest.raises(ConfigError, match=r"put \$\{hydra.job.num\}"):
        made.plan(**given)


def test_a_round_in_which_the_machine_drifted_is_repeated_at_the_end(
    made: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    made.probes = [1.3, 1.2, 1.3, 1.0]  # how fast it can be shows in the second round
    made.study(seeds=[0, 1]).run()
    keys = ("round", "attempt", "drifted", "counted")
    assert made.rounds(*keys) == [(0, 0, True, False), (1, 0, False, True), (0, 1, False, True)]
    assert made.rounds("drift")[0] == pytest.approx((0.3,))
    said = capsys.readouterr().out
    assert "round 1 (seed 0): the machine was up to 30% slower than at its best; " in said
    assert "round 1 again" in said


def test_a_round_that_drifts_in_each_attempt_counts_in_its_last_and_is_marked(
    made: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    made.probes = [1.0] * 3 + [2.0] * 9
    made.study(seeds=[0, 1], retries=2).run()
    assert made.rounds("round", "attempt", "drifted", "counted") == [
        (0, 0, False, True), (1, 0, True, False), (1, 1, True, False), (1, 2, True, True)
    ]  # fmt: skip
    assert "study.retries=2 being used up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dp", "others"), [({"devices": ["A"]}, {"devices": ["B", "B"]}), ({"threads": 2}, {})]
)
def test_a_cell_on_other_devices_or_threads_is_no_drift_of_the_machine(
    made: Sweep, dp: dict[str, Any], others: dict[str, Any]
) -> None:
    made.unlike, made.probes = {"none": others, "dp": dp, "ddp": others}, [1.0] * 6 + [2.0] * 3
    made.study(seeds=range(3), retries=0).run()
    assert made.rounds("drift", "drifted") == [(0, False), (0, False), (1, True)]


def test_a_round_whose_last_run_ended_with_the_command_is_judged_by_the_next(made: Sweep) -> None:
    made.probes, made.statuses = [1.0] * 5 + [2.0], ["ok"] * 5 + ["late"]
    with pytest.raises(KeyboardInterrupt):
        made.study(retries=0).run()
    made.study(retries=0, resume=True).run()
    assert made.rounds("drift", "drifted") == [(0, False), (1, True)]


def test_a_repeat_whose_last_run_ended_with_the_command_counts(made: Sweep) -> None:
    made.probes, made.statuses = [1.0, 1.0, 2.0], ["ok"] * 8 + ["late"]
    with pytest.raises(KeyboardInterrupt):
        made.study().run()
    made.study(resume=True).run()
    assert made.rounds("round", "attempt", "counted") == [(0, 0, False), (1, 0, True), (0, 1, True)]


def test_no_round_is_begun_that_would_pass_the_budget(
    made: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    study = made.study(seeds=range(5), budget=2.9)  # a round is said to take three minutes
    study.run()
    assert len(made.file()["rounds"]) == 1
    assert "seeds 1, 2, 3, 4 were not run" in capsys.readouterr().out
    assert not study.finished


def test_a_study_that_was_cut_short_keeps_what_is_finished_and_fills_the_holes(
    made: Sweep,
) -> None:
    made.statuses = ["ok", "failed", "diverged", "preempted", "killed"]
    with pytest.raises(KeyboardInterrupt):
        made.study(seeds=range(3)).run()
    failed, saved, killed = made.names[1], made.names[3], made.names[4]
    before, made.names = made.names, []
    checkpoints = made.folder / saved / "checkpoints"
    checkpoints.mkdir()
    entry = {"sha256": "0" * 64, "size": 1, "step": 1}
    (checkpoints / "manifest.json").write_text(
        json.dumps({"format": 2, "files": {"last.pt": [entry]}})
    )
    made.study(seeds=range(3), resume=True).run()
    assert made.names[:3] == [failed, saved, killed]
    assert made.resumed == [saved]
    assert made.file()["superseded"] == [
        f"superseded/{name}.1" for name in sorted([failed, killed])
    ]
    assert [name for (runs,) in made.rounds("runs") for name in runs][:5] == before
    assert sorted(int(name.split("_")[0]) for name in {*before, *made.names}) == list(range(9))


@pytest.mark.parametrize(
    ("statuses", "probes", "counted"),
    [(["ok"] * 7 + ["killed"], [], False), ([], [1.0] * 6 + [2.0] * 3, True)],
)
def test_a_round_that_is_not_planned_any_more_is_left_as_it_is(
    made: Sweep, statuses: list[str], probes: list[float], counted: bool
) -> None:
    made.statuses, made.probes = statuses, probes
    with suppress(KeyboardInterrupt):
        made.study(seeds=[0], repeats=3, retries=0).run()
    made.names = []
    made.study(seeds=[0], repeats=2, resume=True).run()
    assert made.names == []
    assert made.rounds("counted") == [(True,), (True,), (counted,)]


@pytest.mark.parametrize(
    ("repeats", "looks"),
    [((5, 5), None), ((5, 7, 7), 2), ((5, 3, 5), 2), (("auto", "auto"), 5), (("auto", 10), 5),
     (("auto", 25), 6)],
)  # fmt: skip
def test_more_rounds_than_were_planned_are_paid_for_as_another_look(
    made: Sweep, repeats: Sequence[int | str], looks: int | None
) -> None:
    for number, each in enumerate(repeats):
        made.study(seeds=[0], repeats=each, budget=0, resume=number > 0).run()
    assert made.file()["looks"] == looks


def test_an_interrupted_study_looks_after_the_rounds_that_it_was_to_look_after(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def settled(folder: Path) -> bool:
        looked.append(len(made.file()["rounds"]))
        return False

    monkeypatch.setattr("ninefold.study.runner._settled", settled)
    for runs in (10, 6):  # in the fourth round, and in the sixth
        made.statuses = ["ok"] * runs + ["killed"]
        with pytest.raises(KeyboardInterrupt):
            made.study(seeds=[0], repeats="auto", resume=runs == 6).run()
    assert looked == [3, 5]


def test_a_study_that_is_finished_has_nothing_to_go_on_with(made: Sweep) -> None:
    made.study().run()
    before, made.names = made.file(), []
    made.study(resume=True).run()
    assert made.names == []
    assert made.file()["rounds"] == before["rounds"]


@pytest.mark.parametrize(
    ("overrides", "given", "wrong"),
    [
        (["epochs=3"], {}, r"epochs=3 \(was 10\) cannot change in a study"),
        ([], {"seeds": [4, 1]}, r"seed=4 \(was 0\)"),
        ([], {"seed": 1}, r"study.seed=1 \(was 0\)"),
    ],
)
def test_a_study_goes_on_with_no_other_configuration(
    made: Sweep, overrides: list[str], given: dict[str, Any], wrong: str
) -> None:
    made.study().run()
    before = made.file()
    with pytest.raises(ConfigError, match=wrong):
        made.study(*overrides, resume=True, mixed=True, **given)
    made.study("checkpoint.keep=5", "logger=quiet", resume=True, drift=0.3)  # bear on no figure
    assert made.file() == before


@pytest.mark.parametrize("key", ["code", "launcher", "torch"])
def test_other_code_another_launcher_or_another_machine_is_refused_or_kept_apart(
    made: Sweep, key: str
) -> None:
    made.statuses = ["ok"] * 4 + ["killed"]
    with pytest.raises(KeyboardInterrupt):
        made.study(seeds=range(3)).run()
    content = made.file()
    content["max_batch"] = {"dp-fp32": asdict(made.found)}
    before = content["parts"][0]
    (before if key in before else before["machine"])[key] = "1.0"
    (made.folder / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"{key}.*changed since"):
        made.study(seeds=range(3), resume=True)
    made.study(seeds=range(3), resume=True, mixed=True).run()
    assert made.file()["max_batch"] is None  # what there was is of the machine that was
    keys = ("round", "part", "counted")
    assert made.rounds(*keys) == [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, True)]
    assert len(set(made.names)) == 5 + 6


def test_another_number_of_visible_gpus_is_another_machine(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made.study(budget=0).run()
    content = made.file()
    del content["parts"][0]["machine"]["visible"]  # a study may be older than this
    (made.folder / "sweep.json").write_text(json.dumps(content))
    made.study(resume=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=r"visible=2 \(was null\) changed since"):
        made.study(resume=True)
    content["parts"][0]["machine"]["visible"] = 2
    (made.folder / "sweep.json").write_text(json.dumps(content))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,1")
    made.study(resume=True)
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        with pytest.raises(ConfigError, match=r"visible=0 \(was 2\) changed since"):
            made.study(resume=True)


def test_what_is_said_of_a_study_where_there_is_none_is_refused(made: Sweep) -> None:
    stored = ROOT / "conf" / "train.yaml"
    single = made.compose(["study.repeats=3"])
    (failure,) = plan.not_honored(single, stored)
    assert str(failure).startswith("error: study.repeats=3: a single run has no rounds;")
    assert not plan.not_honored(made.compose(["seed=1"]), stored)
    with open_dict(single):
        single.hydra.mode = RunMode.MULTIRUN
        assert not plan.not_honored(single, stored)
        single.hydra.runtime.choices["hydra/sweeper"] = "basic"
    (failure,) = plan.not_honored(single, stored)
    assert str(failure).startswith("error: study.repeats=3: hydra/sweeper=basic has no rounds;")


def test_a_folder_with_a_study_in_it_takes_no_other(made: Sweep) -> None:
    made.study().run()
    with pytest.raises(ConfigError, match="a sweep has been run into it"):
        made.study()


def test_a_folder_with_a_sweep_in_it_takes_none_of_another_sweeper(
    made: Sweep,
) -> None:
    made.study(budget=0).run()
    before = (made.folder / "sweep.json").read_bytes()
    loader = GlobalHydra.instance().config_loader()
    given = ["hydra/sweeper=basic", f"hydra.sweep.dir={made.folder}"]
    config = loader.load_configuration("train", given, RunMode.MULTIRUN)
    with pytest.raises(Refused) as left:
        Check().on_multirun_start(config)
    assert left.value.code == ConfigError.code
    assert "a sweep has been run into it" in str(left.value.failures[0])
    assert [path.name for path in made.folder.iterdir()] == ["sweep.json"]
    assert (made.folder / "sweep.json").read_bytes() == before


@pytest.mark.parametrize("flags", [[], ["-m"]])
def test_a_command_that_names_two_studies_is_refused(flags: list[str]) -> None:
    given = [*flags, "experiments=nine_way,cifar10_cpu"]
    (failure,) = messages.of_arguments(given, "train", ROOT / "conf")
    assert "a command runs one study; give them one after the other" in str(failure)


def test_a_command_that_is_refused_leaves_the_study_to_the_one_that_runs_it(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.study().run()
    before = (made.folder / "sweep.json").read_bytes()
    command = main.Command("train", [])
    loader = GlobalHydra.instance().config_loader()
    named = [f"study.resume={made.folder}", f"hydra.sweep.dir={made.folder}"]
    config = loader.load_configuration("train", named, RunMode.MULTIRUN)
    jobs = [[f"seed={seed}", *cell] for seed, cell in product((0, 1), CELLS)]
    monkeypatch.setattr("ninefold.launch.run_folder.PATIENCE", 0.0)
    with exclusive(made.folder, 0):
        (made.folder / made.names[-1] / "result.json").touch()  # it runs on
        with pytest.raises(Busy):
            sweeper.run(config, loader, BasicLauncher(), jobs, command)
    assert command.finish(Busy.code) == Busy.code
    assert (made.folder / "sweep.json").read_bytes() == before
    assert not (made.folder / "report").exists()


def test_what_a_study_prints_to_go_on_with_can_be_given_as_it_is(
    made: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["-m", "seed=0,1", "study.budget=2.9", "hydra.sweep.dir=s", "optimizer.lr=${x}",
             "dataset.root=/the/data"]  # fmt: skip
    monkeypatch.setattr(secrets, "_KNOWN", {})
    secrets.note("DATA", "/the/data")
    given[-1] = "dataset.root=${oc.env:DATA}"
    typed = [*given[:-1], "dataset.root=/the/data"]
    assert f"'{given[-1]}'" in sweeper.typed(typed)
    assert shlex.split(sweeper.typed(typed)) == ["python", "train.py", *given]
    interrupted, spent = made.study(budget=2.9), made.study(budget=2.9)
    spent.run()
    for each, budget in ((interrupted, "study.budget=2.9"), (spent, "study.budget=null")):
        words = shlex.split(sweeper.going_on(each, typed))[2:]
        assert sorted(words) == sorted(
            ["-m", "seed=0,1", budget, *given[-2:], f"study.resume={made.folder}"]
        )
        assert messages.of_arguments(words, "train", ROOT / "conf") == []


def test_a_study_that_is_killed_and_resumed_equals_one_that_was_not(shell: Shell) -> None:
    study = ["-m", *RUN, "amp=fp32,autocast", "seed=0,1", "launch.inline=true", "threads=1",
             "study.burn_in=1", "study.retries=0"]  # fmt: skip
    mark = shell.folder / "mark"
    kill = {"FAULT": "kill_rank0@step:0:11", "FAULT_MARK": str(mark)}
    assert shell.train(*study, "hydra.sweep.dir=cut", env=kill).returncode == -signal.SIGKILL
    assert fired(mark) == 1
    assert last_step(shell.folder / "cut" / "0_none_fp32_seed0") > 0
    ends = (f"study.resume=../{shell.folder.name}/cut", "hydra.sweep.dir=whole")
    for done in one_after_another(shell, *(["train.py", *study, end] for end in ends)):
        assert done.returncode == 0, done.stderr
    assert not (shell.folder / "cut" / "superseded").exists()
    whole, cut = (sorted((shell.folder / name).glob("[0-9]*")) for name in ("whole", "cut"))
    assert [run.name for run in cut] == [run.name for run in whole]
    for one, other in zip(whole, cut, strict=True):
        assert state_hash(one) == state_hash(other), one.name
        for key in ("status", "accuracy", "best_accuracy", "test_loss", "steps", "seed", "amp"):
            assert result(one)[key] == result(other)[key], (one.name, key)


def test_the_largest_batches_are_looked_for_once_and_after_the_rounds(made: Sweep) -> None:
    made.study(seeds=(0,), max_batch=True).run()
    assert made.names[3:] == ["none-fp32", "dp-fp32", "ddp-fp32"]
    assert made.file()["max_batch"]["dp-fp32"] == {
        "batch_size": 128, "fails_at": None, "why": "the whole training set fits",
    }  # fmt: skip
    made.study(seeds=(0,), max_batch=True, resume=True).run()
    assert len(made.names) == 6


def test_the_search_for_the_largest_batches_takes_nothing_off_the_budget(made: Sweep) -> None:
    made.study(seeds=(0,), max_batch=True).run()
    file = made.file()
    assert file["search_seconds"] > 0
    longer = {name: file[name] + 3600 for name in ("wall_seconds", "search_seconds")}
    (made.folder / "sweep.json").write_text(json.dumps({**file, **longer}))
    made.study(seeds=(0, 1), max_batch=True, resume=True, budget=10).run()
    assert len(made.file()["rounds"]) == 2
    assert made.file()["search_seconds"] == longer["search_seconds"]


@pytest.mark.parametrize("why", ["the search ended: ", "there was no search: "])
def test_a_largest_batch_is_looked_for_again_where_a_failure_ended_the_search(
    made: Sweep, why: str
) -> None:
    made.found = Largest(None, None, f"{why}error: file=x: No space left on device; ...")
    made.study(seeds=(0,), max_batch=True).run()
    made.found, made.names = FITS, []
    made.study(seeds=(0,), max_batch=True, resume=True).run()
    assert made.names == ["none-fp32", "dp-fp32", "ddp-fp32"]
    assert {found["batch_size"] for found in made.file()["max_batch"].values()} == {128}
