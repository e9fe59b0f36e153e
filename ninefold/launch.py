"""The launcher: compose once, check, freeze the job into its folder, run it, give an exit code.

Nothing here imports torch before a job has passed every check that can do without.
"""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ninefold import messages, parent_death
from ninefold.errors import ConfigError, Failure, Interrupted
from ninefold.job import ROOT, Job, under_torchrun
from ninefold.order import Order
from ninefold.result import FILE, Result, write_durably, write_json


@dataclass
class Session:
    """What one command has done so far: a run, or the runs of a sweep."""

    started: float = field(default_factory=time.time)
    codes: list[int] = field(default_factory=list)
    sweep: Path | None = None
    study: str | None = None
    runs: int = 0


SESSION = Session()


def register_resolvers() -> None:
    """What conf/ uses to find the project and to name folders. Call it before hydra.main."""
    resolvers: dict[str, Callable[..., Any]] = {
        "project_root": lambda: str(ROOT),
        "sweep_name": lambda study: study or "sweep",
        "run_folder": _run_folder,
        "hydra_folder": lambda resume: None if resume else ".hydra",
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def _run_folder(resume: str | None) -> str:
    if resume:
        return str(resume)  # a resumed run goes on in place
    return time.strftime("outputs/runs/%Y-%m-%d_%H-%M-%S_") + f"{time.time_ns() // 1000 % 10**6:06}"


def main(entry: Callable[[], Any]) -> NoReturn:
    """Run a Hydra entry point and exit with the documented code."""
    wanted = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises; the one line is written here
    code = 1
    try:
        if under_torchrun() and os.environ["RANK"] != "0":
            code = follow()
        else:
            entry()
            code = SESSION.codes[0] if SESSION.codes else 0
    except Exception as error:
        if wanted:
            raise
        failure = failure_of(error)
        report([failure])
        code = failure.code
    except KeyboardInterrupt:
        report([Interrupted("signal", "SIGINT", "interrupted", "nothing runs now", "start again")])
        code = Interrupted.code
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        if under_torchrun() and os.environ["RANK"] == "0":
            from ninefold import torchrun

            torchrun.dismiss(code)
        if SESSION.sweep is not None:
            finish_sweep(SESSION.sweep)
    sys.exit(code)


class Check(Callback):
    """Hydra's callback that rejects a command before its run folder is made."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            problems = Job(config, config.hydra).problems()
        except Exception as error:  # Hydra would go on, with a warning
            problems = [failure_of(error)]
        reject(problems)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if under_torchrun():
            reject([ConfigError(
                "hydra.mode", "MULTIRUN", "a sweep starts processes of its own",
                "torchrun starts one run", "leave torchrun out: python train.py -m ...",
            )])  # fmt: skip


def failure_of(error: Exception) -> Failure:
    """`error` as one line: what Hydra says of a configuration, or a bug of ours."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, HydraException | OmegaConfBaseException):
        return messages.of_composition(error, ROOT / "conf")
    what = f"{type(error).__name__}: {error}"
    return Failure("ninefold", "bug", what, "HYDRA_FULL_ERROR=1 shows where", "please report it")


def reject(problems: Sequence[Failure]) -> None:
    """Print what is wrong and leave; nothing if nothing is."""
    if problems:
        report(problems)
        raise SystemExit(problems[0].code)


def report(failures: Sequence[Failure]) -> None:
    """A line on stderr for each failure."""
    for failure in failures:
        print(failure, file=sys.stderr, flush=True)


def train(config: DictConfig) -> float:
    """Hydra's task function of train.py: one run. Returns its best test accuracy.

    A failure is reported at once and gives NaN, so that a sweep goes on to its other cells.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    SESSION.runs += 1
    if hydra.mode == RunMode.MULTIRUN:
        SESSION.sweep = Path(hydra.sweep.dir).absolute()
        SESSION.study = hydra.runtime.choices.get("experiments")
    if not execute("train", config, hydra, folder):
        return math.nan
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
    started, choices = time.time(), hydra.runtime.choices
    failures: list[Failure] = []
    try:
        job = Job(config, hydra)
        failures = job.problems()
        if not failures:
            text = job.text()
            write_durably(folder / "config.yaml", text.encode())
            start(Order(task, text, folder, started, resume=job.resumes), job)
            return True
    except Exception as error:
        if not isinstance(error, Failure):
            with (folder / "run.log").open("a") as log:
                traceback.print_exc(file=log)
        failures = [failure_of(error)]
    if not under_torchrun() or _first_to_report():
        report(failures)
    if task == "train" and not (folder / FILE).exists():  # a resumed run's result stays
        Result(
            status=failures[0].status,
            error="\n".join(map(str, failures)),
            study=choices.get("experiments"),
            parallel=choices.get("parallel"),
            amp=choices.get("amp"),
            dataset=choices.get("dataset"),
            model=choices.get("model"),
            seed=config.get("seed"),
            total_seconds=time.time() - started,
        ).write(folder)
    SESSION.codes.append(failures[0].code)
    if isinstance(failures[0], Interrupted):
        raise SystemExit(Interrupted.code)  # Ctrl-C ends a sweep, not one cell of it
    return False


def start(order: Order, job: Job) -> None:
    """Run `order` where this command runs its jobs. Raises Failure."""
    from ninefold import elastic, torchrun, worker

    if under_torchrun():
        parent_death.follow_parent()
        torchrun.hand_out(order)
        worker.run(order)
    elif job.values["launch"]["inline"]:
        try:
            worker.run(order)
        except KeyboardInterrupt:
            raise elastic.interrupted("SIGINT", order.folder) from None
    else:
        elastic.launch(order, job.processes)


def follow() -> int:
    """A rank other than 0 under torchrun: wait for the job, run it, return the exit code."""
    from ninefold import torchrun, worker

    parent_death.follow_parent()
    order = torchrun.receive()
    if isinstance(order, int):
        return order
    try:
        worker.run(order)
    except Failure as failure:
        if torchrun.first_to_report():
            report([failure])
        return failure.code
    return 0


def _first_to_report() -> bool:
    from ninefold import torchrun

    return torchrun.first_to_report()


def finish_sweep(folder: Path) -> None:
    """Write sweep.json and the report of a sweep's runs, and print the tables."""
    from ninefold import report as reporting

    write_json(
        folder / "sweep.json",
        {
            "study": SESSION.study,
            "command": " ".join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(SESSION.started)),
            "wall_seconds": time.time() - SESSION.started,
            "runs": SESSION.runs,
        },
    )
    print(reporting.write(folder))
    print(f"report {folder / 'report'}", flush=True)
