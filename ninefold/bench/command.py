"""A compared command: what is run, with which variables, and how it is started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ninefold.bench import guardian
from ninefold.bench.change import Change
from ninefold.bench.revisions import Copy
from ninefold.errors import ConfigError, Failure, ResourceError
from ninefold.files import opener

INJECT = Path(__file__).parent / "inject"
SEED = "{seed}"  # in a line: the number of the round
OUT = "{out}"  # in a line, or a score: the empty folder of a run
CHANGES = "NINEFOLD_BENCH_CHANGES"  # the variable that tells the hook what to change
LONGEST_NAME = 60  # characters of a folder for output
NO_HOOK = (
    "no Python of it loaded the hook",
    "-I, -E, -S, sudo, containers and a PYTHONPATH= in the command drop that of bench",
    "leave that out (export PYTHONPATH before bench), or --whole",
)
# Where a part of a pipe fails, as of `python train.py | tee log`, the command has failed. In all
# else bash is as sh: it reads no BASH_ENV (--posix), and leaves braces (+B).
PIPES = ("bash", "--posix", "+B", "-o", "pipefail", "-c")
SHELL = PIPES if shutil.which("bash") else ("/bin/sh", "-c")
CLOSED_PIPE = 128 + signal.SIGPIPE  # code of a part that wrote to one that has ended
# Codes of a killed process, and of a shell whose child was.
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


@dataclass(frozen=True)
class Command:
    """What is compared.

    text: run by a shell, with {seed} and {out} replaced. folder: where. variables: its own.
    step: MODULE:FUNCTION whose return ends a step; None: Optimizer.step. changes: that were made to
    it. copy: the revision that it is of.
    """

    text: str
    name: str = ""
    folder: Path = field(default_factory=Path.cwd)
    variables: Mapping[str, str] = field(default_factory=dict)
    step: str | None = None
    changes: tuple[Change, ...] = ()
    copy: Copy | None = None

    def changed(self, changes: Sequence[Change], name: str | None = None) -> Command:
        """The command with these changes as well; unless it gets a name, their names join its own.

        Raises ConfigError where its line cannot be changed.
        """
        text, variables = self.text, {**self.variables}
        for change in changes:
            text = change.launch(text)
            variables |= change.variables
        name = name or ", ".join(filter(None, (self.name, *(each.name for each in changes))))
        more = (*self.changes, *changes)
        return replace(self, text=text, name=name, variables=variables, changes=more)

    def in_each(
        self, option: str, names: Sequence[str], changes: Mapping[str, Change], listed: str
    ) -> list[Command]:
        """The command with each of the changes that an option names, out of those that there are.

        listed: these, for the ConfigError of a name that is none.
        """
        if others := [name for name in names if name not in changes]:
            wrong, do = f"{others[0]} is none", "name these, separated by commas"
            raise ConfigError(option, ",".join(names), wrong, f"{listed} are allowed", do)
        return [self.changed([changes[name]]) for name in dict.fromkeys(names)]

    @property
    def processes(self) -> int | None:
        """In how many it is to train; None: as it comes."""
        return next((each.processes for each in self.changes if each.processes), None)

    @property
    def leaves_out(self) -> bool:
        """Whether a part of its steps is left out."""
        return any(each.leaves_out for each in self.changes)

    def require_environment(self, prefixes: Sequence[str]) -> None:
        """Raise ConfigError unless a Python with one of these prefixes is that of --env."""
        env = self.variables.get("VIRTUAL_ENV")
        if env and os.path.realpath(env) not in map(os.path.realpath, prefixes):
            wrong = f"its Python is that of {prefixes[0]}"
            raise self.failure(wrong, "python alone is that of --env", "write that")

    def failure(self, wrong: str, allowed: str, do: str) -> ConfigError:
        return ConfigError("command", self.text, wrong, allowed, do)

    def ended(self, code: int, wrong: str, allowed: str, do: str) -> Failure:
        """The failure of one that has ended. code: its own, or the number of a signal, below 0."""
        kind = ResourceError if code in KILLED else ConfigError
        return kind("command", self.text, wrong, allowed, do)

    def start(
        self, number: int, log: Path, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start it with its output in a file. number: of the round. variables: besides its own."""
        if not self.folder.is_dir():
            wrong = f"its working folder, {self.folder}, is gone"
            why = "a command is started in it in each round"
            raise self.failure(wrong, why, "let none remove it")
        text = self.text.replace(SEED, str(number))
        log.parent.mkdir(parents=True, exist_ok=True)
        if OUT in text:
            out = tempfile.mkdtemp(prefix=f"{log.stem}-", dir=log.parent)
            text = text.replace(OUT, shlex.quote(out))
        with open(log, "ab", opener=lambda name, flags: opener(name, flags, 0o600)) as file:
            return subprocess.Popen(
                [*SHELL, text],
                cwd=self.folder,
                env={**os.environ, **self.variables, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def log(self, keep: Path, number: int) -> Path:
        """The file for its output in a round."""
        return keep / folder_name(self.name) / f"{number + 1}.log"

    @property
    def python_path(self) -> str:
        """Its PYTHONPATH, in front of which is the folder of what is loaded into it."""
        before = self.variables.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        return f"{INJECT}{os.pathsep}{before}" if before else str(INJECT)

    @property
    def told(self) -> str:
        """The changes, as the hook is told them."""
        return ",".join(change.name for change in self.changes)

    def hooks(self, path: Path, one_optimizer: bool) -> dict[str, str]:
        """The variables that load the hook.

        path: of the socket that it connects to. one_optimizer: whether the command is known to have
        no other one, so that its first step says already which ends a step.
        """
        with socket.socket() as listener:  # whatever is exported: commands are alive together
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        variables = {
            guardian.TOKEN: str(path),
            "PYTHONPATH": self.python_path,
            "MASTER_PORT": port,
            "PET_MASTER_PORT": port,  # torchrun's own
            "PET_LOG_DIR": os.environ.get("PET_LOG_DIR", str(path.with_name("torchrun"))),
            "NINEFOLD_BENCH_STEP": self.step,
            CHANGES: self.told,
            "NINEFOLD_BENCH_ONE_OPTIMIZER": "1" if one_optimizer else None,
            "NINEFOLD_BENCH_ORIGIN": self.copy and self.copy.original,
        }
        return {name: str(value) for name, value in variables.items() if value is not None}


def exit_code_of_pipe(code: int | None) -> int | None:
    """The code of a command: 0 where `yes` of `yes | python train.py` wrote to a closed pipe."""
    return 0 if code == CLOSED_PIPE else code


def folder_name(name: str) -> str:
    """What a command's folder is called; of a long name the end counts."""
    return re.sub(r"[^\w.=-]+", "-", name)[-LONGEST_NAME:].lstrip(".")
