"""What may make a training script faster: a change each, and the line of the script for it.

`ninefold bench --try` has the script run with each of them, in turns beside the script as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ninefold.bench.contestant import Command, Script
from ninefold.bench.precisions import VARIABLES
from ninefold.machine import computes_in_bfloat16

AS_IT_IS = "as it is"
WORKERS = "workers"  # a kind
NETWORK = "network"  # where it is called
TOGETHER = " + "  # between the names of changes that are tried together


@dataclass(frozen=True)
class Change:
    """A change that may make a script faster.

    kind: what it changes; of several of a kind, only the fastest is kept. does: the beginning of a
    sentence on it. line: the code to write, in_framework: the code for users of a framework, whose
    name is the key. where: the key of Script that has the line to change. lacks: returns why a
    script cannot use it, None if it can. alters: whether it changes the results of rounding.
    """

    name: str
    kind: str
    does: str
    line: str
    where: str
    lacks: Callable[[Script], str | None]
    alters: bool = False
    in_framework: Mapping[str, str] = field(default_factory=dict)


# What a part of a step costs: the command without it. By name: how a sentence begins, and the twin.
READING, AVERAGING, OPTIMIZER = "no reading", "no averaging", "no optimizer"
BOUNDS = {
    READING: ("Without reading any data", "batch"),
    AVERAGING: ("Without averaging gradients over ranks", "no-sync"),
    OPTIMIZER: ("Without the optimizer", "no-optimizer"),
}

# What to do instead of calls that the hook has seen in each step.
BESIDES = {
    "zero_grad(set_to_none=False)": "zero_grad(), which writes no zeros",
    ".item()": ".item() in fewer steps, as it waits for the GPU",
}
PINNED = "DataLoader(..., pin_memory=True), and .to(DEVICE, non_blocking=True)"

BF16 = {
    "lightning": 'Trainer(precision="bf16-mixed")',
    "pytorch_lightning": 'Trainer(precision="bf16-mixed")',
    "lightning_fabric": 'Fabric(precision="bf16-mixed")',
    "accelerate": 'Accelerator(mixed_precision="bf16"), or TrainingArguments(bf16=True)',
}
CALLED = "compile() of the network that is called there"
COMPILE = {
    **dict.fromkeys(("lightning", "pytorch_lightning", "lightning_fabric"), CALLED),
    "accelerate": "model.compile(), or TrainingArguments(torch_compile=True)",
}
FUSED = 'fused=True in the optimizer, or TrainingArguments(optim="adamw_torch_fused")'


def of_machine(cores: int) -> list[Change]:
    """All that may help on a machine with so many cores."""
    workers = dict.fromkeys((1 if cores < 3 else 2, min(cores, 8)))
    threads = dict.fromkeys(n for n in (1, cores // 2, cores) if n)
    found = [
        Change(
            f"workers={n}", WORKERS, f"Loading with {n} worker{'s' * (n > 1)}",
            f"DataLoader(..., num_workers={n}, persistent_workers=True)",
            "loader", _lacks_workers(n),
            in_framework={"accelerate": f"num_workers={n}, or dataloader_num_workers={n}"},
        )
        for n in workers
    ]  # fmt: skip
    found += [
        Change(
            f"threads={n}", "threads", f"With {n} thread{'s' * (n > 1)}",
            f"torch.set_num_threads({n})", NETWORK, _has_threads(n),
        )
        for n in threads
    ]  # fmt: skip
    return [
        *found,
        Change(
            "bf16", "bf16", "With autocast to bfloat16",
            "with torch.autocast(DEVICE, torch.bfloat16): around the forward pass, whose outputs "
            "go on in .float()",
            NETWORK, _lacks_bfloat16, alters=True, in_framework=BF16,
        ),
        Change(
            "channels_last", "channels_last", "In channels_last",
            "model.to(memory_format=torch.channels_last), and the images", NETWORK,
            lambda script: None if script["convolutions"] else "no convolution",
        ),
        Change(
            "fused", "fused", "With a fused optimizer", "fused=True in the optimizer",
            "optimizer", _lacks_optimizer,
            in_framework={"accelerate": FUSED},
        ),
        Change(
            "compile", "compile", "Compiled", "model.compile()", NETWORK,
            lambda script: "already there" if script["compiled"] else None, alters=True,
            in_framework=COMPILE,
        ),
    ]  # fmt: skip


def _lacks_workers(count: int) -> Callable[[Script], str | None]:
    def lacks(script: Script) -> str | None:
        if script["workers"] is None:
            return "no DataLoader"
        if script["iterable"]:
            return "each worker may read all of an IterableDataset"
        return "already there" if script["workers"] >= count else None

    return lacks


def _lacks_optimizer(script: Script) -> str | None:
    if script["fused"] is None:
        return "no optimizer of PyTorch that can be"
    return "already there" if script["fused"] else None


def _has_threads(count: int) -> Callable[[Script], str | None]:
    def lacks(script: Script) -> str | None:
        if script.get("cuda"):
            return "the GPU computes"
        return "already there" if script["threads"] == count else None

    return lacks


def _lacks_bfloat16(script: Script) -> str | None:
    if (computes := script.get("computes")) in ("bfloat16", "float16"):
        return "already there" if computes == "bfloat16" else "it computes in float16"
    if not script.get("cuda") and not computes_in_bfloat16():
        return "the processor has no instructions for it"
    return None


def besides(script: Script, lines: Mapping[str, str]) -> Iterator[str]:
    """What else costs the script time. lines: of it, by the calls that it makes in most steps."""
    found: dict[str, str | None] = {BESIDES[call]: lines[call] for call in BESIDES if call in lines}
    if script.get("cuda") and script["workers"] and not script["pinned"]:
        found[PINNED] = script["loader"]
    for what, line in found.items():
        yield what if line is None else f"{what} ({line})"


def with_changes(command: Command, changes: Sequence[Change]) -> Command:
    """The command with these changes."""
    names = [change.name for change in changes]
    changed = replace(
        command,
        name=TOGETHER.join(names),
        changes=",".join(name for name in names if name != "bf16") or "none",
        precision=None,
    )
    if "bf16" not in names:
        return changed
    chosen = {variable: said["bf16"] for variable, said in VARIABLES.items()}
    return replace(changed, precision="bf16", variables={**command.variables, **chosen})


def as_it_is(command: Command) -> Command:
    """The command, of which the hook says what it has of the changes."""
    return replace(command, name=AS_IT_IS, changes="none", precision="fp32")


def without_parts(command: Command) -> list[Command]:
    """The command without each part."""
    return [replace(command, name=name, twin=twin) for name, (_, twin) in BOUNDS.items()]
