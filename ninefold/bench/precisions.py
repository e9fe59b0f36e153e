"""One command in several precisions: the variables that say so, and whether they took effect."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ninefold.bench.contestant import Command, Precision
from ninefold.errors import ConfigError

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Lightning's Trainer, Fabric, and accelerate with Hugging Face's Trainer read these.
VARIABLES = {
    "PL_TRAINER_PRECISION": {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
    "LT_PRECISION": {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
    "ACCELERATE_MIXED_PRECISION": {"fp32": "no", "bf16": "bf16", "fp16": "fp16"},
}
OPTION = "--precisions"


def require_known(option: str, names: Sequence[str], allowed: Collection[str], listed: str) -> None:
    """Raise ConfigError for a name that the option does not allow. listed: those that it does."""
    if wrong := [name for name in names if name not in allowed]:
        raise ConfigError(
            option,
            ",".join(names),
            f"{wrong[0]} is none",
            f"{listed} are allowed",
            "name these, separated by commas",
        )


def in_precisions(command: Command, names: Sequence[str]) -> list[Command]:
    """The command in each of these precisions. Raises ConfigError for names that are none."""
    require_known(OPTION, names, DTYPES, ", ".join(DTYPES))
    return [
        replace(
            command,
            name=f"{command.name}, {name}" if command.name else name,
            precision=name,
            variables={
                **command.variables,
                **{variable: said[name] for variable, said in VARIABLES.items()},
            },
        )
        for name in dict.fromkeys(names)
    ]


def takes_effect(name: str, said: Precision) -> bool:
    """Whether a command computes in a precision, as far as it could tell."""
    return bool(said["computes"] or said["called"]) and said["computes"] in (None, DTYPES[name])


def require_effect(commands: Sequence[Command], said: Mapping[str, Precision]) -> None:
    """Raise ConfigError unless each command computes in its precision.

    said: by name what a command reported of its first steps. Where it could not tell what it
        computes in, it passes.
    """
    wanted = {command.name: str(command.precision) for command in commands}
    several = len({*wanted.values()}) > 1
    if several and not any(each["called"] or each["computes"] for each in said.values()):
        raise ConfigError(
            OPTION,
            ",".join(dict.fromkeys(wanted.values())),
            "no network of torch.nn is seen in its first step: the commands do not differ",
            "one that the loop calls, not from a compiled function, gets autocast around it",
            "give two commands, or --each P=V,V with {P} in the command",
        )
    told = {name: each for name, each in said.items() if each["computes"] is not None}
    other = [name for name, each in told.items() if each["computes"] != DTYPES[wanted[name]]]
    if not other:
        return
    each = told[other[0]]
    where = f" ({each['line']})" if each["line"] else ""
    computed = {name: each["computes"] for name, each in told.items()}
    if {wanted[name] for name in other} == {"fp16"} and each["framework"] is None:
        wrong = "fp16 is not tried in a loop without a framework"
        found = "the loop would need a GradScaler of its own"
    elif len({*computed.values()}) == 1 and len({wanted[name] for name in told}) > 1:
        wrong = f"the script sets its precision itself{where}: the commands do not differ"
        found = f"all compute in {each['computes']}"
    else:
        wrong = f"{other[0]} computes in {each['computes']}{where}"
        found = ", ".join(f"{name}: {dtype}" for name, dtype in computed.items())
    raise ConfigError(
        OPTION,
        ",".join(dict.fromkeys(wanted.values())),
        wrong,
        found,
        "take that out of the script, or compare its own option: --each P=V,V with {P} in the "
        "command",
    )


def sentences(said: Mapping[str, Precision]) -> Iterator[str]:
    """One line on what the commands compute in, and by whom."""
    if not said:
        return
    each = [
        f"{name} in {found['computes'] or 'a precision that is not known (torch.compile)'}"
        for name, found in said.items()
    ]
    first = next(iter(said.values()))
    by = f"as {first['framework']} chooses" if first["framework"] else "by autocast that bench adds"
    yield f"Seen in the first step: {', '.join(each)}, {by}."
