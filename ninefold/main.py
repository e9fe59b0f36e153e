"""A command of train.py or evaluate.py from its start to its exit code.

Nothing here imports torch before a job has passed every check that can do without.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ninefold import ranks, signals
from ninefold.config import overrides
from ninefold.config.job import ROOT
from ninefold.errors import Failure, Interrupted
from ninefold.launch import concurrent
from ninefold.launch.run import execute, follow
from ninefold.launch.session import SESSION, failure_of, heed_signals, leave, report
from ninefold.ranks import under_torchrun
from ninefold.result import FILE, Result
from ninefold.study import sweep as sweeper


def main(entry: Callable[[], Any]) -> NoReturn:
    """Run a Hydra entry point and exit with the documented code."""
    SESSION.begin(here=True, debug=bool(os.environ.get("HYDRA_FULL_ERROR")))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises; the one line is written here
    if not under_torchrun():  # whose agent speaks for ranks that it ends
        heed_signals()  # workers, once there, are told first
    code = _run(entry)
    if under_torchrun():
        from ninefold.launch import torchrun

        with suppress(Failure):  # said already
            torchrun.dismiss(code)
    leave(_finish(code))


def _run(entry: Callable[[], Any]) -> int:
    """Do what the command is for, and return its exit code so far."""
    try:
        require_environment()
        if under_torchrun() and os.environ["RANK"] != "0":
            leave(follow())
        if problems := overrides.of_arguments(sys.argv[1:], entry.__name__, ROOT / "conf"):
            report(problems)
            return problems[0].code
        try:
            entry()  # Hydra: the callback, the sweeper and, for each run, train or evaluate
        finally:
            sweeper.count_runs_elsewhere()
        return SESSION.codes[0] if SESSION.codes else 0
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        name, kind = signal.Signals(number).name, signals.failure(number)
        what, do = "nothing runs now", "start again"
        if SESSION.beside is not None and SESSION.beside.told:
            what, do = (
                "its runs were told to save and have ended",
                "go on with the study, if it is one",
            )
        report([kind("signal", name, "interrupted", what, do)])
        return kind.code
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:
        failure = failure_of(error)
        report([failure])
        return SESSION.codes[0] if SESSION.codes else failure.code


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


def train(config: DictConfig) -> float | None:
    """Hydra's task function of train.py: one run. Returns its best test accuracy.

    A failure is reported at once and gives None, so that a sweep goes on to its other cells. (NaN
    ends an Optuna study: its plugin for Hydra 1.3 fails over it, see hydra#2237.)
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    SESSION.runs += 1
    if SESSION.here:
        fine = execute("train", config, hydra, folder)
    else:
        signals.follow_parent()
        heed_signals()
        with concurrent.registered():
            fine = execute("train", config, hydra, folder)
    if not fine:
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


def _finish(code: int) -> int:
    """Write the report of the sweep if there was one; returns the exit code of it all."""
    begun = SESSION.runs or SESSION.study is not None
    if SESSION.sweep is not None and begun and any(SESSION.sweep.rglob(FILE)):
        try:
            sweeper.finish(SESSION.sweep)
        except KeyboardInterrupt:
            code = code or Interrupted.code
        except Exception as error:
            failure = failure_of(error)
            report([failure])
            code = code or failure.code
    if SESSION.study is not None and not SESSION.study.finished:
        print(f"go on with: {sweeper.going_on(SESSION.study)}", flush=True)
    return code
