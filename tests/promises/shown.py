"""Takes a command line as far as it goes without time, a download, other hosts or a GPU.

`python -m tests.promises.shown FILE`: FILE has a list of [PYTHONPATH, program, argument, ...], and
gets a list of what is wrong with each, or null.
"""

import gc
import json
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from omegaconf import OmegaConf
from torch.distributed.run import get_args_parser

from ninefold import __main__ as ninefold
from ninefold.bench import __main__ as bench
from ninefold.config import list_commands, overrides, resolvers
from ninefold.config.composition import (
    SWEEPER,
    Composition,
    compose,
    flags_of,
    mode_problems,
    only_shows,
)
from ninefold.config.hydra_parts import split
from ninefold.config.job import Asked, asked, check
from ninefold.diff import __main__ as diff
from ninefold.errors import Failure, Refused
from ninefold.launch.command import jobs as jobs_of
from ninefold.study import checks, plan
from ninefold.words import last_of_each, quoted
from tests.forked import ROOT

STANDS_FOR = re.compile(r"(.*/)?[A-Z][A-Z0-9]*")  # such as FOLDER, which the reader fills in
ELSEWHERE = re.compile(rf"{STANDS_FOR.pattern}|/usr/share/.*")  # or a package of Debian has
ELIDED = "..."
COMPARISONS = (("true",), ("steps",), ("scripts",))  # with options of their own
FILLED = {"experiments=NAME": "experiments=nine_way", "K": "0", "PATTERN": "*", "[PATTERN]": "*"}


def python(words: Sequence[str]) -> None:
    """Check `python ...`. Raises Failure, Refused."""
    program, *rest = words
    if program == "-m":
        module(*rest)
    elif program == "-c":
        compile(rest[0], "-c", "exec")
    elif program in ("train.py", "evaluate.py"):
        run(Path(program).stem, rest)
    elif not (ROOT / program).is_file():
        raise ValueError(f"there is no {program}")


def module(name: str, *arguments: str) -> None:
    if name == "ninefold":
        command(arguments)
    elif name == "ninefold.report":
        command(["report", *arguments])
    elif name in ("benchmarks", "benchmarks.gpu") and arguments[:1] not in COMPARISONS:
        benches(name, arguments)
    elif find_spec(name) is None:
        raise ValueError(f"there is no module {name}")
    elif "train.py" in arguments:  # as of python -m cProfile
        python(arguments[arguments.index("train.py") :])


def benches(name: str, arguments: Sequence[str]) -> None:
    from benchmarks import gpu
    from benchmarks import run as on_cpu  # here, because it imports rivals

    sys.argv = [name, *arguments]
    if name == "benchmarks.gpu":
        gpu.parse()
    elif unknown := {*on_cpu.parse().names} - on_cpu.known().keys():
        raise ValueError(f"there is no bench {unknown}")


def known() -> set[str]:
    return {"--help", *ninefold.COMMANDS, *ninefold.extensions.COMMANDS}


def command(words: Sequence[str]) -> None:
    """Check `ninefold ...`."""
    name, arguments = (*words, "--help")[0], list(words[1:])
    if name in ("train", "evaluate"):
        run(name, arguments)
    elif name == "bench" and "--help" not in arguments:
        bench.parser().read(arguments)
    elif name == "diff" and "--help" not in arguments:
        diff.parser().read(arguments)
    elif name == "compare":
        run("train", ninefold.compared(arguments))
    elif name == "fits":
        for _, job in jobs_of([word for word in arguments if not word.startswith("memory=")]):
            run("train", job)
    elif name in ("conf", "keys"):
        printed = list_commands._conf if name == "conf" else list_commands._keys
        printed("".join(arguments))
    elif not (name in known() or STANDS_FOR.fullmatch(name)):
        raise ValueError(f"there is no command {name}")


def run(name: str, words: Sequence[str]) -> None:
    """Check a command of train or evaluate, up to where its processes start."""
    whole = ELIDED not in words
    words = last_of_each(quoted([word for word in words if word != ELIDED]))
    require(overrides.of_arguments(words, name))
    if any(word.startswith("study.resume=") for word in words) and "-m" not in words:
        words = ["-m", *words]  # it stands for the words of a study
    if only_shows(flags := flags_of(words)):
        return
    composition = compose(name, flags)
    if not composition.sweeps:
        require(mode_problems(composition))
        start(asked(composition.config, composition.config.hydra), whole)
        return
    checks.settings_of(composition.config)
    require(checks.of_a_sweep(composition))
    if composition.choice("hydra/sweeper") == SWEEPER:
        for job in jobs(composition):
            start(job, whole)


def jobs(composition: Composition) -> list[Asked]:
    """Jobs of a study: each value of each key that it sweeps is in one of them."""
    config = composition.config
    given = composition.parsed([*composition.params(), *composition.overrides()])
    study = OmegaConf.to_container(config.study, resolve=True)
    assert isinstance(study, dict)
    found = plan.Plan(
        covering(split(given)), plan.Composer(composition.context.config_loader, config), study
    )
    return [found.job(cell, 0) for cell in found.cells]


def covering(runs: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Some of the runs, in which each value of each key is."""
    chosen, left = [], {word for run in runs for word in run}
    while left:
        chosen.append(max(runs, key=lambda run: len(left & {*run})))
        left -= {*chosen[-1]}
    return chosen


def start(job: Asked, whole: bool) -> None:
    """Check a job, and its data unless they are to be named or downloaded. whole: as typed."""
    ready = check(job)
    data = ready.resolved.get("dataset") or {}
    if whole and not data.get("download") and not ELSEWHERE.fullmatch(str(data.get("root"))):
        ready.settle()


def require(*problems: Sequence[Failure]) -> None:
    for found in problems:
        if found:
            raise Refused(found)


def torchrun(words: Sequence[str]) -> None:
    given = get_args_parser().parse_args(words)
    arguments = given.training_script_args
    if ELIDED not in arguments:
        processes = int(given.nnodes.partition(":")[0]) * int(given.nproc_per_node)
        arguments.append(f"parallel.processes={processes}")
    python([*["-m"] * given.module, given.training_script, *arguments])


def starter(words: Sequence[str]) -> None:
    """Check what srun and others start, or sbatch by --wrap."""
    if "--wrap" in words:
        words = shlex.split(words[words.index("--wrap") + 1])
    if "python" in words:
        python(words[words.index("python") + 1 :])


PROGRAMS = {
    "python": python, "ninefold": command, "torchrun": torchrun, "srun": starter,
    "sbatch": starter, "strace": starter, "py-spy": starter,
}  # fmt: skip


def wrong(program: str, words: Sequence[str]) -> str | None:
    """What the command says before it would start; None if it would."""
    filled = [FILLED.get(word, word) for word in words]
    try:
        PROGRAMS[program](filled)
    except Refused as refused:
        return "\n".join(map(str, refused.failures))
    except Failure as failure:
        named = re.search("cuda|devices=", " ".join(words))  # a GPU, which is not here
        return None if named and "no GPU found" in str(failure) else str(failure)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(file: Path) -> None:
    gc.disable()  # it would take a quarter of the time
    resolvers.register()
    found: list[str | None] = []
    for path, program, *words in json.loads(file.read_text()):
        sys.path[:0] = filter(None, path.split(":"))
        found.append(wrong(program, words))
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
