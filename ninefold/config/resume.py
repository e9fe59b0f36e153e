"""Going on with a run: which one, and with what of this command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from ninefold.checkpoint import manifest
from ninefold.config import environment, untrusted
from ninefold.config.plain_yaml import require_plain
from ninefold.config.rules import OF_A_SWEEP, spelled
from ninefold.errors import CheckpointError, ConfigError
from ninefold.result import FILE

AUTO = "auto"
# What a run may go on with otherwise than it began: how long, where its figures go, and on how
# many processes. A name stands for all that is below it. parallel.timeout is launch.timeout.
MAY_CHANGE = ("epochs", "max_steps", "log_every", "logger", "checkpoint", "launch", "loader",
              "parallel.processes", "parallel.timeout", "patience", "profile")  # fmt: skip
# What bears on no figure of a run.
OF_NO_FIGURE = ("resume", "logger", "choices.logger", "checkpoint", "dataset.download",
                "launch.grace", "launch.max_restarts", "launch.timeout",
                "parallel.timeout")  # fmt: skip
MISSING = "absent"
# Keys that runs of older versions do not have, and what they mean there.
ADDED = {"clip_grad_norm": None, "clip_grad_value": None, "ema_warmup": False}

Tree = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """The frozen job of a run folder. values: the same with the environment resolved."""

    folder: Path
    frozen: Tree
    values: Tree
    choices: Tree


def read(folder: Path, known: set[str]) -> Stored:
    """The job that the run in `folder` was frozen with; it has the top-level keys `known`.

    Raises CheckpointError if it cannot be read, or refers to more than the environment.
    """
    path = folder / "config.yaml"
    try:
        tree = {**ADDED, **untrusted.parse(path.read_text(encoding="utf-8"))}
        wrong = [f"it has no {key}" for key in sorted({*known, "choices"} - tree.keys())]
        groups = ("choices", "parallel", "model", "dataset", "launch")
        wrong += untrusted.misfits({group: tree[group] for group in groups if group in tree})
        wrong += [f"it refers to something in {place}" for place, text in untrusted.strings(tree)
                  if not untrusted.only_environment(text)]  # fmt: skip
        if wrong:
            raise ValueError(", ".join(wrong))
        values = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except Exception as error:  # OmegaConf's too, for what the environment no longer holds
        raise CheckpointError(
            "resume", folder, "its config.yaml cannot be used", str(error).partition("\n")[0],
            "start the run afresh in a new folder",
        ) from error  # fmt: skip
    assert isinstance(values, dict)
    choices = tree.pop("choices")
    values.pop("choices")
    return Stored(folder, tree, {str(key): value for key, value in values.items()}, choices)


def named(overrides: list[str]) -> list[str]:
    """The keys that a command names one by one, and the groups it chooses."""
    found: list[str] = []
    for override in OverridesParser.create().parse_overrides(overrides):
        key, value = override.key_or_group, override.value()
        if isinstance(value, dict) and value and not override.is_delete():
            found += flat(value, key)
        else:
            found.append(key)
    return [key for key in found if key != "resume" and key.partition(".")[0] not in OF_A_SWEEP]


def all_overrides(folder: Path, now: list[str]) -> list[str]:
    """What the commands that began a run and now resume it have set, as if in one: a key once."""
    try:
        text = (folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
        require_plain(text)
        before = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        before = []  # whoever moved the run left it behind
    texts = [text for text in before if isinstance(text, str)] if isinstance(before, list) else []
    last = {text.lstrip("+~").partition("=")[0]: text for text in (*texts, *now)}
    # A run that is resumed without its limit is one that never had any.
    return [text for key, text in last.items() if text != "max_steps=null"]


def differences(run: Stored, keys: list[str], now: Tree, values: Tree, choices: Tree) -> list[str]:
    """What the command says of `keys` that the run was not, as `key=now (was before)`.

    now, values, choices: the command's own job, as frozen, resolved, and its groups' options.
    """
    found = []
    for key in keys:
        if may_change(key):
            continue
        if key in choices:
            if choices[key] != run.choices.get(key):
                found.append(f"{key}={choices[key]} (was {run.choices.get(key)})")
            continue
        ours, theirs = select(values, key), select(run.values, key)
        if ours != theirs:
            found.append(
                f"{key}={spelled(select(now, key))} (was {spelled(select(run.frozen, key))})"
            )
    return found


def carried_over(run: Stored, keys: list[str], now: Tree, choices: Tree) -> tuple[Tree, Tree]:
    """The run's frozen job and options, with what the command says of `keys` that may change."""
    job = OmegaConf.create(run.frozen)
    options = dict(run.choices)
    # Loggers are taken as one: `~logger.tensorboard` names what is not there any more.
    keys = ["logger" if key.startswith("logger") else key for key in keys if may_change(key)]
    if "launch.timeout" in keys and select(now, "parallel.timeout") != MISSING:
        keys.append("parallel.timeout")
    for key in keys:
        value = select(now, key)
        if value == MISSING:
            continue
        OmegaConf.update(job, key, value, merge=False, force_add=True)
        if key == "logger":
            options.pop(key, None)
            if key in choices:  # not where several are chosen, in a list
                options[key] = choices[key]
    tree = OmegaConf.to_container(job)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}, options


def newest_unfinished(
    root: Path, config: DictConfig, frozen: Tree, choices: Tree, known: set[str]
) -> Stored | None:
    """The run under `root` that has a checkpoint and no end, and that this command would make.

    config: the command's configuration; frozen: the same, settled.
    """
    for folder in unfinished(root):
        try:
            run = read(folder, known)
        except CheckpointError:
            continue  # whatever it is, it is no run of this job
        same_options = all(
            run.choices.get(group) == option for group, option in choices.items()
            if group not in ("logger", "experiments")
        )  # fmt: skip
        if same_options and fixed(run.frozen) == fixed(_as_if(config, frozen, run.frozen)):
            return run
    return None


def unfinished(root: Path) -> list[Path]:
    """The run folders in `root` with a checkpoint and without an end, the newest first."""
    found = []
    for path in root.glob(f"*/checkpoints/{manifest.FILE}"):
        folder = path.parent.parent
        if _status(folder) not in ("ok", "diverged"):
            found.append((path.stat().st_mtime_ns, folder.name, folder))
    return [folder for _, _, folder in sorted(found, reverse=True)]


def holds_a_run(folder: Path) -> bool:
    """Whether a run in `folder` has saved something or ended well: there is something to lose."""
    if not (folder / "config.yaml").exists():
        return False
    return any(folder.glob("checkpoints/[!.]*.pt")) or _status(folder) == "ok"


def _status(folder: Path) -> Any:
    """What the result in a run folder says that became of the run; None if there is none."""
    try:
        return json.loads((folder / FILE).read_text())["status"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def saved_step(folder: Path) -> int:
    """The step of the newest checkpoint that the manifest lists."""
    files = manifest.read(folder / "checkpoints")
    return max((entry["step"] for entries in files.values() for entry in entries), default=0)


def _as_if(config: DictConfig, frozen: Tree, before: Tree) -> Tree:
    """What the command would freeze if it said of all that may change what the run has.

    Other keys are computed from these: a cosine's T_max from epochs.
    """
    config = config.copy()
    with open_dict(config):
        for key, value in flat(before).items():
            if may_change(key) and not key.startswith("logger"):
                OmegaConf.update(config, key, value, merge=False, force_add=True)
    with environment.kept():
        tree = OmegaConf.to_container(config, resolve=True)
    assert isinstance(tree, dict)
    tree["threads"] = frozen["threads"]
    tree["dataset"]["root"] = frozen["dataset"].get("root")
    return {str(key): value for key, value in tree.items()}


def fixed(job: Mapping[str, Any]) -> Tree:
    """The part of a frozen job that makes it this job and no other, flat."""
    return {k: v for k, v in flat(job).items() if not may_change(k) and k != "resume"}


def may_change(key: str) -> bool:
    """Whether a run may go on with another value of `key`."""
    return is_any_of(key, MAY_CHANGE)


def is_any_of(key: str, names: tuple[str, ...]) -> bool:
    """Whether `key` is one of `names`, or below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def flat(tree: Any, prefix: str = "") -> Tree:
    """A nested mapping as one of dotted keys; an empty mapping is a value."""
    return dict(_leaves(tree, prefix))


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, Mapping) or (prefix and not tree):
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))


def select(tree: Any, key: str) -> Any:
    """The value of a dotted key, or MISSING."""
    for part in key.split("."):
        if isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        else:
            return MISSING
    return tree


def refusal(folder: Path, wrong: list[str]) -> ConfigError:
    """What a command is told that says otherwise than the run it is to go on with."""
    return ConfigError(
        "resume", folder, f"{', '.join(wrong)} cannot change in a resumed run",
        f"{', '.join(MAY_CHANGE)} may", "leave the others out or start a new run",
    )  # fmt: skip
