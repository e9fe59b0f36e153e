"""The command `ninefold NAME ...`, which is `python -m ninefold NAME ...`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import ninefold
from ninefold import extensions, places

# What each takes, and is for: all that is printed without one.
COMMANDS = {
    "train": "[-m] [GROUP=OPTION ...] [KEY=VALUE ...]: train a model, or run a study of several",
    "compare": "[KEY=VALUE ...]: which configuration trains fastest on this machine?",
    "bench": "'COMMAND' 'COMMAND' ...: which of these training scripts is faster? (bench --help)",
    "diff": "'COMMAND' ['COMMAND']: where do two trainings part? (diff --help)",
    "evaluate": "ckpt=PATH [KEY=VALUE ...]: evaluate a checkpoint",
    "report": "FOLDER: write the report of a study",
    "conf": "[GROUP[/OPTION]]: list the options that there are, or print the file of one",
    "keys": "[PATTERN]: the keys with their types, defaults and meanings",
}
EXAMPLES = (
    ("compare", ""),
    ("bench", " 'python train.py' 'python train.py --amp'"),
    ("bench", " --precisions fp32,bf16 'python train.py'"),
    ("bench", " --try 'python train.py'"),
)
# Arguments of Hydra with which a command shows something and runs nothing.
SHOWING = ("--cfg", "--help", "--hydra-help", "--info")


def main() -> NoReturn:
    """Run the command that the arguments name, and exit with its documented code."""
    script = Path(sys.argv[0]).name
    if script != "__main__.py":  # else importing ninefold has done it
        ninefold.look_in_working_folder()
    from ninefold.signals import exit_until_handled

    exit_until_handled()  # the imports that follow take half a second
    program = "python -m ninefold" if script == "__main__.py" else "ninefold"
    places.typed_with(program)
    places.take_path()
    name, arguments = (*sys.argv[1:2], "")[0], sys.argv[2:]
    sys.argv[1:] = arguments
    asks = not {"-h", "--help"}.isdisjoint(arguments)
    if name in ("train", "evaluate") or (name == "compare" and not asks):
        from ninefold import main as commands

        if name == "compare":
            name, sys.argv[1:] = "train", compared(arguments)
        commands.main(name, program)
    from ninefold.exits import exit_with

    exit_with(lambda: other(name)(arguments))


def other(name: str) -> Callable[[Sequence[str]], int]:
    """The function of a command that trains nothing: from its arguments to its exit code."""
    rooms = dict.fromkeys(("report", "bench", "diff"), "ninefold")
    rooms |= dict.fromkeys(extensions.COMMANDS, "ninefold.extensions")
    command: Callable[[Sequence[str]], int]
    if name in rooms:
        command = import_module(f"{rooms[name]}.{name}.__main__").main
    elif name in ("compare", "conf", "keys"):
        command = getattr(import_module("ninefold.config.list_commands"), name)
    else:
        return lambda _: none_of_them(name)
    return command


def none_of_them(word: str) -> int:
    """List the commands; exit code 2 if `word` is a mistake."""
    commands = {**COMMANDS, **extensions.COMMANDS}
    if word in ("", "-h", "--help", "help"):
        print("\n".join(f"{places.typed_as(name)} {said}" for name, said in commands.items()))
        print("For example:")
        print("\n".join(f"  {places.typed_as(name)}{words}" for name, words in EXAMPLES))
        print("See NAME --help; in Python help(ninefold.compare), help(ninefold.time_steps)")
        return 0
    if word == "--version":
        print(f"ninefold {ninefold.__version__}")
        return 0
    from ninefold.errors import ConfigError, nearest

    allowed = f"{', '.join(commands)} are allowed"
    failure = ConfigError("command", word, "no such command", allowed, nearest(word, commands))
    print(failure, file=sys.stderr)
    return failure.code


def compared(arguments: Sequence[str]) -> list[str]:
    """The arguments of the train command that compares `axes`, as `arguments` change them."""
    from ninefold.default_axes import axes, left_out
    from ninefold.words import key_and_value

    given = dict(map(key_and_value, arguments))
    shows = any(word in ("-c", "-h", "-i") or word.startswith(SHOWING) for word in arguments)
    if shows or {"experiments", "study.resume"} & {*given}:  # they say what is compared
        return list(arguments)
    sweeps = {"-m", "--multirun"} & {*arguments}
    found = axes(given.get("device", "auto"))
    wanted = {**found, "study.ask": "[time]", "study.control": "true"}
    cells = [f"{key}={value}" for key, value in wanted.items() if key not in given]
    for sentence in left_out(found) if "amp" not in given else ():
        print(sentence, flush=True)
    return [*([] if sweeps else ["-m"]), *cells, *arguments]


if __name__ == "__main__":
    main()
