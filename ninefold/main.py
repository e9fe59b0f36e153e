"""A command of train.py or evaluate.py, from its arguments to its exit code.

A run is loaded (config.composition), checked (launch.ready), launched (launch.run) and, in a worker
process, trained (train.run).

Nothing here imports torch before a job has passed every check that works without torch. What only
sweeps need is imported where one begins: most commands make one run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hydra
from omegaconf import DictConfig

from ninefold import places, ranks, signals
from ninefold.config import like, overrides, resolvers, search_path
from ninefold.config.composition import (
    VERSION,
    Composition,
    compose,
    flags_of,
    mode_problems,
    only_shows,
)
from ninefold.config.job import Settled, asked
from ninefold.errors import Failure, Refused, error_of_exit, require_configuration
from ninefold.exits import exit_now, exit_process, interrupted
from ninefold.launch import events
from ninefold.launch.ready import ready
from ninefold.launch.run import announce, failure_of, follow
from ninefold.launch.runs import RESUME, Runs
from ninefold.places import CONF
from ninefold.ranks import started_by
from ninefold.streams import OutputClosed, flush_stdout, no_reader, open_streams
from ninefold.words import last_of_each, quoted

if TYPE_CHECKING:
    from ninefold.sweeps import Sweep


def main(name: str, program: str | None = None) -> NoReturn:
    """Run the command `name` (train or evaluate) and exit with its documented code.

    program: what was typed for it, as in `ninefold train`; None: python train.py.
    """
    places.typed_with(program)
    sys.argv[1:] = last_of_each(quoted(sys.argv[1:]))
    command = Command(name, sys.argv[1:])
    events.connect()
    open_streams()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else torch's sockets print more
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and the error is one line here
    if command.launcher != "torchrun":
        command.runs.handle_signals()
    else:  # its agent handles signals to the ranks
        signals.restore_default_handlers(signals.interrupt)
        signals.reset_signals_in_forks()
    try:
        code = command.execute()
        if command.launcher:
            from ninefold.launch import per_rank

            with suppress(Failure):  # they are gone
                per_rank.release(code)
        if command.sweep is not None:
            code = command.sweep.finish(code)
    except OutputClosed:
        code = no_reader().code
    except Failure as failure:  # what is printed found no room
        command.runs.tell([failure])
        code = failure.code
    except KeyboardInterrupt as interrupt:  # it came between the lines above
        code = interrupted(interrupt, "", "", "").code
    if command.launcher:
        leave_ranks(code)
    exit_process(code, command.runs.patience)


def leave_ranks(code: int) -> NoReturn:
    """Exit as one of several ranks: without cleanup, which might wait for peers that are gone."""
    flush_stdout()
    exit_now(code)


class Command:
    """One command while it runs.

    argv: its arguments.
    launcher: torchrun or srun, if it started this process as one of several ranks.
    started: time.time() at its start.
    runs: its runs.
    sweep: its sweep, if it makes one.
    """

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name, self.started = name, time.time()
        self.launcher = started_by()
        self.runs = Runs(argv)
        self.argv = self.runs.argv
        self.sweep: Sweep | None = None

    def execute(self) -> int:
        """Run the command and print its failures. Returns its exit code, before any report."""
        runs, arguments = self.runs, self.argv
        try:
            ranks.require_launcher(os.environ)
            require_configuration()
            if self.launcher:
                self._meet()
            if problems := overrides.of_arguments(self.argv, self.name):
                raise Refused(problems)
            resolvers.register()  # only now, as Hydra then imports all of its plugins
            if self.name == "train":
                arguments = like.expanded(arguments)
            flags = flags_of(arguments)
            if problems := search_path.problems(flags):  # in the places that like= stands for
                raise Refused(problems)
            if flags.help:
                from ninefold.config import list_commands

                print(list_commands.help_text(self.name))
            elif only_shows(flags):
                self._show(arguments)
            elif (composition := compose(self.name, flags)).sweeps:
                from ninefold.sweeps import Sweep

                self.sweep = Sweep(composition, runs, self.started)
                self.sweep.run()
            else:
                self._make_run(composition)
            return runs.code
        except KeyboardInterrupt as interrupt:
            left = "nothing of it runs on this host now"
            do = RESUME if self.sweep and self.sweep.resume_command else "start again"
            stopped = error_of_exit(interrupt) or interrupted(interrupt, "interrupted", left, do)
            runs.tell([stopped])
            return stopped.code
        except Refused as refused:
            runs.tell(refused.failures)
            return refused.failures[0].code
        except OutputClosed:
            raise
        except Exception as error:
            failure = failure_of(error, arguments, self.name)
            runs.tell([failure])
            return runs.code or failure.code
        except BaseException as leaving:  # of the user's code, or a SystemExit of ours or Hydra's
            if (unasked := error_of_exit(leaving)) is not None:
                runs.tell([unasked])
                return runs.code or unasked.code
            if not isinstance(leaving, SystemExit):
                raise
            return leaving.code if isinstance(leaving.code, int) else 1

    def _meet(self) -> None:
        """Meet the other ranks. Returns on rank 0 only; the others run its job, and exit.

        Raises Failure.
        """
        from ninefold.launch import per_rank

        per_rank.meet(self.argv)
        if ranks.found(os.environ).rank != 0:
            leave_ranks(follow())

    def _show(self, arguments: Sequence[str]) -> None:
        """Let Hydra print what is asked for: the configuration and the like."""
        from ninefold import plugins

        sys.argv[1:] = arguments
        run = plugins.HydraTask(self.runs)

        def task(config: DictConfig) -> float | None:
            return run(config)  # for --experimental-rerun alone

        task.__module__ = self.name  # after which Hydra names the job
        hydra.main(version_base=VERSION, config_path=str(CONF), config_name=self.name)(task)()

    def _make_run(self, composition: Composition) -> None:
        """Check a job and, if it can be run, make its folder and run it. Raises Refused."""
        job = job_of(composition)
        config, callbacks = composition.config, composition.context.callbacks
        if job.resume is not None:
            composition.go_on_in(job.resume)
        else:
            composition.set_folder(str(config.hydra.run.dir))
        name = config.hydra.job.config_name
        announce(config.hydra.run.dir)
        callbacks.on_run_start(config=config, config_name=name)

        def make() -> float | None:
            """Return the best score."""
            result = self.runs.run_settled(job, Path(config.hydra.runtime.output_dir)).result
            return None if result is None else result.best_score

        try:
            done = composition.in_run_folder(make)
            callbacks.on_run_end(config=config, config_name=name, job_return=done)
        except KeyboardInterrupt:
            if not self.runs.outcomes:
                raise  # else the run has ended: there was nothing left to stop


def job_of(composition: Composition) -> Settled:
    """The job of a single run, which can be run. Nothing is written. Raises Refused, Failure."""
    config = composition.config
    if problems := mode_problems(composition):
        raise Refused(problems)
    return ready(asked(config, config.hydra), Path(config.hydra.run.dir))
