"""Precisions in which one command can compute: frameworks by variables, plain loops by the hook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ninefold.bench.change import Axis, Change, Seen
from ninefold.bench.command import Command
from ninefold.bench.messages import Hello, Script
from ninefold.frameworks import BF16_LINES, precision_variables
from ninefold.machine import computes_in_bfloat16

AXIS = Axis("--precisions", "precision", "compute")
NETWORK = "network"  # the key of Script with the line where it is called
OWN_OPTION = "give two commands, or --each P=V,V with {P} in the command"


def in_precisions(command: Command, names: Sequence[str]) -> list[Command]:
    """The command in each of these precisions. Raises ConfigError for names that are none."""
    return command.in_each(AXIS.option, names, PRECISIONS, ", ".join(PRECISIONS))


def computes_in(dtype: str, ranks: Sequence[Hello]) -> Seen | None:
    """What the first step of a command shows that is to compute in a dtype.

    Where it is not known, as in a function that is compiled whole, that passes.
    """
    said = ranks[0]["precision"]
    if said is None:
        return None
    value, framework = said["computes"], said["framework"]
    wrong, allowed = None, f"{dtype} was asked for"
    if value is None and not said["called"]:
        wrong = "no network of torch.nn is seen in its first step: the commands do not differ"
        allowed = "one that the loop calls, not from a compiled function, gets autocast around it"
    elif dtype == "float16" and value == "float32" and framework is None:
        wrong = "fp16 is not tried in a loop without a framework"
        allowed = "the loop would need a GradScaler of its own"
    took = value == dtype or (value is None and (said["called"] or dtype == "float32"))
    told = value or "a precision that is not known (torch.compile)"
    ending = f", as {framework} chooses" if framework else ", by autocast that bench adds"
    do = OWN_OPTION if wrong else f"take that out of the script, or {OWN_OPTION}"
    return Seen(took, value, told, allowed, do, wrong, ending)


def _lacks_bfloat16(script: Script) -> str | None:
    if (computes := script["computes"]) in ("bfloat16", "float16"):
        return "already there" if computes == "bfloat16" else "it computes in float16"
    if not script["cuda"] and not computes_in_bfloat16():
        return "the processor has no instructions for it"
    return None


def _precision(name: str, dtype: str) -> Change:
    variables, took_effect = precision_variables(name), partial(computes_in, dtype)
    return Change(name, AXIS, variables=variables, took_effect=took_effect)


FP32, FP16 = _precision("fp32", "float32"), _precision("fp16", "float16")
BF16 = replace(
    _precision("bf16", "bfloat16"),
    unavailable=_lacks_bfloat16,
    does="With autocast to bfloat16",
    line="with torch.autocast(DEVICE, torch.bfloat16): around the forward pass, whose outputs go "
    "on in .float()",
    in_framework=BF16_LINES,
    where=NETWORK,
    alters=True,
)
PRECISIONS = {each.name: each for each in (FP32, BF16, FP16)}
