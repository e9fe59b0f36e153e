"""The launcher: compose once, check, freeze the job into its folder, run it, give an exit code.

Nothing here imports torch before a job has passed every check that can do without.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ninefold import (
    capacity,
    check,
    forkserver,
    messages,
    opening,
    parent_death,
    plan,
    ranks,
    resume,
    sitting,
    stop,
    sweep,
)
from ninefold.errors import (
    Busy,
    ConfigError,
    Failure,
    Interrupted,
    Preempted,
    ResourceError,
    memory_failure,
    resource_failure,
)
from ninefold.folder import exclusive
from ninefold.job import GROUPS, ROOT, Job, not_a_name
from ninefold.order import Order
from ninefold.ranks import under_torchrun
from ninefold.result import FILE, Result, stamp, write_durably, write_json
from ninefold.secrets import redact, redacted
from ninefold.study import Study, quoted


@dataclass
class Session:
    """What one command has come to so far: a run, or the runs of a sweep.

    checked: the job that Check has found to be right. told: the signal that this command received.
    debug: HYDRA_FULL_ERROR was set by the user. here: this process is the command, and not one that
    another launcher than Hydra's basic one runs a sweep's jobs in.
    """

    started: float = field(default_factory=time.time)
    checked: Job | None = None
    told: int | None = None
    debug: bool = False
    here: bool = False
    codes: list[int] = field(default_factory=list)
    sweep: Path | None = None
    study: str | None = None
    sitting: Study | None = None
    runs: int = 0


SESSION = Session()
BESIDE_OTHERS = "It may have run beside others: its times are those of a machine that it shared."
CONF = ROOT / "conf" / "train.yaml"
LEAST_MEMORY = 4 * 2**30  # bytes of address space; the least that trained the digits was 3.4


def register_resolvers() -> None:
    """What conf/ uses to find the project and to name folders. Call it before hydra.main."""
    resolvers: dict[str, Callable[..., Any]] = {
        "project_root": lambda: str(ROOT),
        "sweep_folder": lambda resumed, study, time: (
            resumed or f"outputs/{_file_name(study or 'sweep')}/{time}"
        ),
        "cell_name": lambda *parts: _file_name("_".join(map(str, parts))),
        "run_folder": _run_folder,
        "hydra_folder": lambda resumed: None if _resumes(resumed) else ".hydra",
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def _resumes(resumed: str | None) -> bool:
    """Whether `resumed` is a run folder; for AUTO, Check says so when it has found one."""
    return bool(resumed) and resumed != resume.AUTO


def _file_name(text: str) -> str:
    """`text` as one name of a folder, which stays in the folder that it is put into."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:64]
    return name if check.NAME.fullmatch(name) else f"_{name[1:]}"


def _run_folder(resumed: str | None) -> str:
    if _resumes(resumed):
        return str(resumed)  # a resumed run goes on in place
    return time.strftime("outputs/runs/%Y-%m-%d_%H-%M-%S_") + f"{time.time_ns() // 1000 % 10**6:06}"


def main(entry: Callable[[], Any]) -> NoReturn:
    """Run a Hydra entry point and exit with the documented code."""
    SESSION.here = True
    SESSION.debug = bool(os.environ.get("HYDRA_FULL_ERROR"))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises; the one line is written here
    # Workers, once there, are told first. Torchrun's agent speaks for ranks that it ends.
    for number in () if under_torchrun() else stop.heeded():
        signal.signal(number, _interrupt)
    try:
        require_environment()
        if under_torchrun() and os.environ["RANK"] != "0":
            leave(follow())
        if problems := messages.of_arguments(sys.argv[1:], entry.__name__, ROOT / "conf"):
            report(problems)
            SESSION.codes.append(problems[0].code)
        else:
            try:
                entry()
            finally:
                count_runs_elsewhere()
        code = SESSION.codes[0] if SESSION.codes else 0
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        name, kind = signal.Signals(number).name, stop.failure(number)
        report([kind("signal", name, "interrupted", "nothing runs now", "start again")])
        code = kind.code
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:
        failure = failure_of(error)
        report([failure])
        code = SESSION.codes[0] if SESSION.codes else failure.code
    if under_torchrun():
        from ninefold import torchrun

        with suppress(Failure):  # said already
            torchrun.dismiss(code)
    begun = SESSION.runs or SESSION.sitting is not None
    if SESSION.sweep is not None and begun and any(SESSION.sweep.rglob(FILE)):
        try:
            finish_sweep(SESSION.sweep)
        except KeyboardInterrupt:
            code = code or Interrupted.code
        except Exception as error:
            failure = failure_of(error)
            report([failure])
            code = code or failure.code
    if SESSION.sitting is not None and not SESSION.sitting.finished:
        print(f"go on with: {going_on(SESSION.sitting.folder)}", flush=True)
    leave(code)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    SESSION.told = number  # the exception alone could be lost in somebody's destructor
    raise KeyboardInterrupt(number)


def require_environment() -> None:
    """Leave with a line for each thing that is wrong with the environment of this process.

    Each process says it: where it is wrong there is no store through which to agree on one.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's sockets would add to the line
    problems = ranks.problems(os.environ)
    if under_torchrun() and not problems:
        try:
            ranks.require_store()
        except Failure as failure:
            problems = [failure]
    if problems:
        report(problems)
        sys.stderr.flush()
        os._exit(problems[0].code)


def require_undisturbed() -> None:
    """Raise KeyboardInterrupt if this command was told to stop."""
    if SESSION.told is not None:
        raise KeyboardInterrupt(SESSION.told)


def leave(code: int) -> NoReturn:
    """Exit; under torchrun at once, or what is torn down might wait for peers that are gone."""
    if under_torchrun():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


class Check(Callback):
    """Hydra's callback that rejects a command before its run folder is made."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            job = Job(config, config.hydra)
            problems = plan.not_honored(config, CONF) or examine(job) or go_on(job, config)
        except Exception as error:  # Hydra would go on, with a warning
            problems = [failure_of(error)]
        if problems:
            report(problems)
            raise SystemExit(problems[0].code)
        SESSION.checked = job

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        problems = odd_options(config.hydra.overrides.task) or plan.not_honored(config, CONF)
        if problems:
            report(problems)
            raise SystemExit(problems[0].code)
        if under_torchrun():
            report([ConfigError(
                "hydra.mode", "MULTIRUN", "a sweep starts processes of its own",
                "torchrun starts one run", "leave torchrun out: python train.py -m ...",
            )])  # fmt: skip
            raise SystemExit(ConfigError.code)
        for_accuracy(config.hydra)
        SESSION.sweep = Path(config.hydra.sweep.dir).absolute()
        SESSION.study = config.hydra.runtime.choices.get("experiments")
        loader = GlobalHydra.instance().config_loader()
        basic = config.hydra.runtime.choices["hydra/launcher"] == "basic"
        sweep.share(loader, look_ahead if basic else lambda config: None)


def for_accuracy(hydra: DictConfig) -> None:
    """Have a sweeper that optimizes look for the best accuracy, which is what a run returns.

    Optuna's minimizes and stops at a failure unless it is told otherwise, as it still can be.
    """
    told = {str(text).lstrip("+").partition("=")[0] for text in hydra.overrides.hydra}
    for key, value in {"direction": "maximize", "max_failure_rate": 1.0}.items():
        if key in hydra.sweeper and f"hydra.sweeper.{key}" not in told:
            with read_write(hydra), open_dict(hydra):
                hydra.sweeper[key] = value


def examine(job: Job) -> list[Failure]:
    """What is wrong with `job`; with nothing found, it is settled and ready to run."""
    problems = job.problems() or too_little_memory()
    if problems:
        return problems
    start_importing(job)  # while this process looks at the data
    try:
        job.settle()
    except Failure as failure:
        return [failure]
    return []


def start_importing(job: Job) -> None:
    """Have torch, and what else a worker needs, imported in a process of its own."""
    if not under_torchrun() and not job.values["launch"]["inline"]:
        forkserver.start(job.values)


def look_ahead(config: DictConfig) -> None:
    """Start importing when the first run of a sweep is composed, if there is nothing against it."""
    with suppress(Exception):  # it is told when the run's turn comes
        job = Job(config, config.hydra)
        if not job.problems() and not too_little_memory():
            start_importing(job)


def go_on(job: Job, config: DictConfig) -> list[Failure]:
    """Find the run that resume=auto means, and make its folder this command's."""
    try:
        if job.resume == resume.AUTO:
            job.find_unfinished(Path(config.hydra.run.dir).parent)
            with read_write(config), open_dict(config):
                config.resume = job.resume
    except Failure as failure:
        return [failure]
    if job.resume is not None:
        with read_write(config.hydra), open_dict(config.hydra):
            config.hydra.run.dir = job.resume
    return []


def odd_options(overrides: Sequence[str]) -> list[Failure]:
    """What a sweep chooses from groups that is more than a name: see Job.problems.

    It is looked for before Hydra makes the sweep's folders, whose names are made from it.
    """
    found: list[Failure] = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        group = override.key_or_group
        if group not in (*GROUPS, "experiments"):
            continue
        swept = override.is_sweep_override()
        options = list(override.sweep_string_iterator()) if swept else [override.value()]
        found += [
            not_a_name(group, option)
            for option in options
            if isinstance(option, str) and not check.NAME.fullmatch(option)
        ]
    return found


def too_little_memory() -> list[Failure]:
    """Whether the address space that this process may have is too small to import torch in.

    Libraries that run out of it end the process in ways of their own, with no line to read.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit in (resource.RLIM_INFINITY, -1) or limit >= LEAST_MEMORY:
        return []
    return [ResourceError(
        "memory", f"{limit // 2**20} MB", "the limit of this shell is too low",
        f"at least {LEAST_MEMORY // 2**20} MB of address space are needed, to import torch alone",
        "raise it with ulimit -v",
    )]  # fmt: skip


def failure_of(error: Exception) -> Failure:
    """`error` as one line: what Hydra says of a configuration, the system of a file, or a bug."""
    if isinstance(error, Failure):
        return error
    if SESSION.debug:
        print(redact("".join(traceback.format_exception(error))), file=sys.stderr)
    if short := memory_failure(error, "a run needs a few GB to import torch alone"):
        return short
    if isinstance(error, HydraException | OmegaConfBaseException | YAMLError):
        return messages.of_composition(error, ROOT / "conf", sys.argv[1:])
    if isinstance(error, OSError):
        return resource_failure(
            error, "a run writes its folder", "choose another hydra.run.dir or hydra.sweep.dir"
        )
    what = f"{type(error).__name__}: {error}"
    if plugin := messages.plugin_of(error):
        given = isinstance(error, ValueError | TypeError | KeyError)
        return (ConfigError if given else ResourceError)(
            "hydra", plugin, what, "this Hydra plugin gave up",
            "correct what it was given; HYDRA_FULL_ERROR=1 shows where",
        )  # fmt: skip
    return Failure("ninefold", "bug", what, "HYDRA_FULL_ERROR=1 shows where", "please report it")


def report(failures: Sequence[Failure]) -> None:
    """A line on stderr for each failure."""
    for failure in failures:
        print(failure, file=sys.stderr, flush=True)


def train(config: DictConfig) -> float | None:
    """Hydra's task function of train.py: one run. Returns its best test accuracy.

    A failure is reported at once and gives None, so that a sweep goes on to its other cells. (NaN
    ends an Optuna study: its plugin for Hydra 1.3 fails over it, see hydra#2237.)
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    SESSION.runs += 1
    if not SESSION.here:
        parent_death.follow_parent()
    if not execute("train", config, hydra, folder):
        return None
    result = Result.read(folder)
    assert result.accuracy is not None
    assert result.best_accuracy is not None
    print(
        f"accuracy {result.accuracy:.4f} (best {result.best_accuracy:.4f})  "
        f"trained {result.train_seconds:.2f} s of {result.total_seconds:.2f} s  folder {folder}",
        flush=True,
    )
    return result.best_accuracy


def evaluate(config: DictConfig) -> None:
    """Hydra's task function of evaluate.py."""
    hydra = HydraConfig.get()
    execute("evaluate", config, hydra, Path(hydra.runtime.output_dir))


def execute(task: str, config: DictConfig, hydra: HydraConf, folder: Path) -> bool:
    """Freeze the job into `folder` and run it. Reports a failure; returns whether it was fine."""
    started, job = time.time(), None
    try:
        require_undisturbed()
        checked, SESSION.checked = SESSION.checked, None
        job = checked or Job(config, hydra)
        # A study that goes on has such of its runs resumed as were cut short, where they are.
        if job.resumes and hydra.mode == RunMode.MULTIRUN and job.resume != str(folder):
            failures: list[Failure] = [ConfigError(
                "resume", config.resume, "a sweep makes new runs", "one run can be resumed",
                "leave out -m",
            )]  # fmt: skip
        else:
            failures = examine(job) if checked is None else []
        if not failures:
            text = job.text()
            with exclusive(folder, rank=0):
                write_durably(folder / "config.yaml", text.encode())
            order = Order(
                task, text, folder, started, resume=job.resumes, overrides=job.variant,
                notes=job.notes + ([] if SESSION.here else [BESIDE_OTHERS]),
                grace=job.values["launch"]["grace"],
            )  # fmt: skip
            start(order, job)
            return True
    except Exception as error:
        require_undisturbed()  # or it may be a consequence
        failures = [failure_of(error)]
    if hydra.mode == RunMode.RUN and isinstance(failures[0], Interrupted | Preempted):
        with suppress(OSError, ValueError):
            if Result.read(folder).status == "ok":  # the signal came too late to stop anything
                return True
    SESSION.codes.append(failures[0].code)
    if first_to_report(failures[0]):
        report(failures)
    if task == "train" and not isinstance(failures[0], Busy):
        # A resumed run is what its folder says, not what the defaults of this command are.
        choices, values = (job.choices, job.values) if job else (hydra.runtime.choices, config)
        record(failures, choices, values, folder, started)
    if isinstance(failures[0], Interrupted | Preempted):
        raise SystemExit(failures[0].code)  # it ends a sweep, not one cell of it
    return False


def record(
    failures: Sequence[Failure],
    choices: Mapping[Any, Any],
    values: Mapping[Any, Any],
    folder: Path,
    started: float,
) -> None:
    """Write the result.json of a run that failed, unless its worker got to write one."""
    if (folder / FILE).exists():
        return
    try:
        Result(
            status=failures[0].status,
            exit_code=failures[0].code,
            error="\n".join(map(str, failures)),
            study=choices.get("experiments"),
            parallel=choices.get("parallel"),
            amp=choices.get("amp"),
            dataset=choices.get("dataset"),
            model=choices.get("model"),
            seed=values.get("seed"),
            batch_size=values.get("batch_size"),
            total_seconds=time.time() - started,
        ).write(folder)
    except OSError:
        return  # why it failed is said already, and one line is enough


def start(order: Order, job: Job) -> None:
    """Run `order` where this command runs its jobs. Raises Failure."""
    from ninefold import elastic, torchrun, worker

    if under_torchrun():
        parent_death.follow_parent()
        torchrun.hand_out(order)
        worker.run(order)
    elif job.values["launch"]["inline"]:
        try:
            worker.run(order, inline=True)
        except KeyboardInterrupt:
            raise elastic.stopped(signal.SIGINT, order.folder) from None
    else:
        forkserver.require_semaphores()
        elastic.launch(order, job.processes, job.values["launch"]["max_restarts"])


def follow() -> int:
    """A rank other than 0 under torchrun: wait for the job, run it, return the exit code."""
    from ninefold import torchrun, worker

    parent_death.follow_parent()
    try:
        order = torchrun.receive()
        if isinstance(order, int):
            return order
        worker.run(order)
    except Failure as failure:
        if first_to_report(failure):
            report([failure])
        return failure.code
    return 0


def first_to_report(failure: Failure) -> bool:
    """Whether this process is the one to print `failure`: of several ranks, one is."""
    if not under_torchrun():
        return True
    from ninefold import torchrun

    try:
        return torchrun.first_to_report(failure)
    except ConfigError:  # no store to agree through, on any rank
        return os.environ["RANK"] == "0"
    except Failure:  # this one cannot reach it
        return True


def count_runs_elsewhere() -> None:
    """Take note of the runs of this sweep that a launcher made in processes of its own."""
    if SESSION.sweep is None or SESSION.runs:
        return
    made = [(path.stat().st_mtime, path) for path in SESSION.sweep.rglob(FILE)
            if capacity.FOLDER not in path.relative_to(SESSION.sweep).parts]  # fmt: skip
    for written, path in sorted(made):
        if written >= SESSION.started:
            SESSION.runs += 1
            with suppress(OSError, ValueError):
                code = Result.read(path.parent).exit_code
                SESSION.codes += [code] if code else []


def finish_sweep(folder: Path) -> None:
    """Write the report of a sweep, and sweep.json unless its study did, and print the answer."""
    from ninefold import report as reporting

    if SESSION.sitting is None:
        write_json(
            folder / sitting.SWEEP,
            redacted({
                "study": SESSION.study,
                "command": command(),
                "started": stamp(SESSION.started),
                "wall_seconds": time.time() - SESSION.started,
                "runs": SESSION.runs,
            }),
        )  # fmt: skip
    print(reporting.write(folder))
    print(f"report {reporting.place(folder)}", flush=True)


def study(
    config: DictConfig, loader: ConfigLoader, launcher: Launcher, jobs: Sequence[Sequence[str]]
) -> list[Any]:
    """What Hydra's sweeper of train.py does with the jobs of a sweep: see ninefold.study.

    Raises Failure.
    """
    problems = plan.problems(config)
    if problems:
        report(problems)
        raise SystemExit(problems[0].code)
    settings: dict[str, Any] = {
        section: OmegaConf.to_container(config[section], resolve=True)
        for section in check.OF_A_SWEEP
    }
    resumed, settings["study"]["resume"] = settings["study"]["resume"], None
    planned = plan.Plan(
        jobs, lambda overrides: loader.load_sweep_config(config, list(overrides)), settings["study"]
    )
    folder = Path(config.hydra.sweep.dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # It says for each run what Hydra would, and more.
    logging.getLogger(BasicLauncher.__module__).setLevel(logging.WARNING)
    with exclusive(folder, 0, "study.resume", "folder of a study"):
        if resumed is None:
            found = opening.begin(
                folder, planned, settings, SESSION.study, command(), SESSION.started
            )
            OmegaConf.save(config, folder / "multirun.yaml")
        else:
            found = opening.take_up(folder, planned, settings, SESSION.started)
        chosen = config.hydra.runtime.choices.get("hydra/launcher")
        found.launcher = None if chosen == "basic" else chosen
        SESSION.sitting = Study(
            planned, found, settings["study"], launcher.launch,
            lambda cell: largest_batch(planned, cell, folder), beside=found.launcher is not None,
        )  # fmt: skip
        return SESSION.sitting.run()


def largest_batch(planned: plan.Plan, cell: plan.Cell, study: Path) -> capacity.Largest:
    """The largest batch with which `cell` runs here: see ninefold.capacity.

    Whoever stops it stops the study: raises SystemExit.
    """
    folder = study / capacity.FOLDER / _file_name(f"{planned.cells.index(cell)}_{cell.name}")

    def attempt(size: int) -> int | None:
        job = ready(planned.job(cell, 0, *capacity.ATTEMPT, f"batch_size={size}"))
        print(f"max_batch  {cell.name}  trying {size}", flush=True)
        run = folder / str(size)
        run.mkdir(parents=True, exist_ok=True)
        text = job.text()
        with exclusive(run, rank=0):
            write_durably(run / "config.yaml", text.encode())
        start(Order("train", text, run, time.time(), grace=job.values["launch"]["grace"]), job)
        result = Result.read(run)
        return sum(result.peak_memory_bytes) if set(result.devices) == {"cpu"} else None

    try:
        job = ready(planned.job(cell, 0))
        step = job.processes * job.values["accumulate"]
        return capacity.search(
            attempt, job.values["batch_size"], job.training_examples(), step,
            capacity.available_memory,
        )  # fmt: skip
    except (Interrupted, Preempted) as failure:
        report([failure])
        raise SystemExit(failure.code) from failure
    except Failure as failure:
        return capacity.Largest(None, None, f"there was no search: {failure}")


def ready(job: Job) -> Job:
    """`job`, settled. Raises Failure."""
    if problems := examine(job):
        raise problems[0]
    return job


def command() -> str:
    """This command, as it can be given again."""
    return " ".join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])


def going_on(folder: Path) -> str:
    """The command that goes on with the study in `folder`."""
    words = [word for word in sys.argv[1:] if not word.startswith("study.resume=")]
    with suppress(ValueError):
        folder = folder.relative_to(Path.cwd())
    name = str(folder)
    plain = re.fullmatch(r"[\w./-]+", name)
    words.append(f"study.resume={name if plain else quoted(name)}")
    return redact(shlex.join(["python", Path(sys.argv[0]).name, *words]))
