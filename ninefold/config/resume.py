"""Resume a run: find it, compare the command with it, and take over what may change.

Who decides that a run is resumed:

- its command, by resume=FOLDER: `check` in config/job.py
- its command, by resume=auto, Slurm, which requeues the command, and torchrun, which restarts all
  ranks: `ready` in launch/ready.py
- torch elastic, which restarts the workers (launch.max_restarts): `main` in launch/worker.py
- a study that is resumed, for a run that it had begun: `_prepare` in study/runner.py

The last three resume a run that has saved a checkpoint, and start it anew if it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from ninefold.checkpoint import manifest
from ninefold.config import schema, untrusted
from ninefold.config.configuration import Configuration, Tree
from ninefold.config.options import marked
from ninefold.config.rules import COMMAND_SECTIONS, problems
from ninefold.config.spec import OVERRIDES
from ninefold.errors import CheckpointError, ConfigError
from ninefold.files import flat, read_json, read_text, require_plain_yaml
from ninefold.ranks import started_by
from ninefold.result import FILE
from ninefold.types import MAY_CHANGE, NO_EFFECT, spelled
from ninefold.words import key_of

AUTO = "auto"
STRATEGY = "parallel"
# Keys that may change, but not so that resume=auto takes runs that differ in them for one job.
ONLY_IF_NAMED = (STRATEGY, "optimizer.fused", "threads", "dataset.root")
SET_BY = {"parallel.device": "device", "parallel.timeout": "launch.timeout"}


@dataclass(frozen=True)
class Stored:
    """The frozen job of a run folder, and the option of each of its groups."""

    folder: Path
    config: Configuration
    choices: Tree


def read(folder: Path) -> Stored:
    """Read the frozen job of the run in `folder`.

    Raises CheckpointError if it is damaged, another version's, or refers past the environment.
    """
    path = folder / "config.yaml"
    try:
        tree = untrusted.parse(read_text(path))
        ours = {*schema.top_level(evaluates=False), "choices"}
        theirs = set(tree) - {*COMMAND_SECTIONS}
        for section, keys in schema.in_sections(evaluates=False).items():
            if isinstance(node := tree.get(section), Mapping):
                ours |= {f"{section}.{key}" for key in keys}
                theirs |= {f"{section}.{key}" for key in node}
        wrong = [f"it has no {key}" for key in sorted(ours - theirs)]
        if other := sorted(theirs - ours):
            wrong.append(f"this version has no {', '.join(other)}")
        groups = ("choices", "parallel", "model", "dataset", "launch")
        wrong += untrusted.misfits({group: tree[group] for group in groups if group in tree})
        wrong += untrusted.references(tree)
        if wrong:
            raise ValueError(", ".join(wrong))
        choices = tree.pop("choices")
        config = Configuration(tree=OmegaConf.create(tree))
        _ = config.resolved
    except Exception as error:  # OmegaConf's too, for what the environment no longer holds
        said = str(error).partition("\n")[0]
        do = f"resume it with the version that wrote it, or start a new run with init={folder}"
        unused = "its config.yaml cannot be used"
        raise CheckpointError("resume", folder, unused, said, do) from error
    return Stored(folder, config, choices)


def all_overrides(folder: Path, now: list[str], replaced: Sequence[str] = ()) -> list[str]:
    """The overrides of the commands that started and resumed a run, as of one command.

    now: those of the command that resumes it, which replace earlier ones of the same key.
    replaced: groups that it replaces as a whole, so that no earlier override of them holds.
    """
    try:
        before = overrides_of(folder)
    except (OSError, ValueError, yaml.YAMLError):
        before = []  # the run was moved without it
    before = [text for text in before if key_of(text).partition(".")[0] not in replaced]
    return list({key_of(text): text for text in (*before, *now)}.values())


def overrides_of(folder: Path) -> list[str]:
    """The overrides in a run folder. Raises OSError, ValueError, YAMLError."""
    text = read_text(folder / OVERRIDES)
    require_plain_yaml(text)
    found = yaml.safe_load(text)
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


@dataclass(frozen=True)
class Resume:
    """A run that a command resumes.

    keys: those that the command names. Its values of the ones that may change replace the run's.
    config, choices: of the command's job.
    """

    run: Stored
    keys: Sequence[str]
    config: Configuration
    choices: Tree

    def check_trust(self) -> None:
        """Raise CheckpointError if the run has what needs trust=true."""
        merged, now = self.merged[0].completed().frozen, self.config.completed().frozen
        groups = {group: merged[group] for group in schema.GROUPS}
        for place, value in untrusted.unknown(groups, now):
            raise untrusted.refused("resume", self.run.folder, place, value)

    def check_same(self) -> None:
        """Raise ConfigError if the command names a key with another value that may not change."""
        now, before = self.config.completed(), self.run.config.completed()
        found = []
        for key in self.keys:
            if may_change(key):
                continue
            if key in self.choices:
                ours, theirs = self.choices[key], self.run.choices.get(key)
                differ = ours != theirs
            else:
                ours, theirs = (spelled(select(each.frozen, key)) for each in (now, before))
                differ = select(now.resolved, key) != select(before.resolved, key)
            if differ:
                found.append(f"{key}={ours} (was {theirs})")
        if found:
            wrong = f"{', '.join(found)} cannot change in a resumed run"
            allowed = f"{', '.join(marked(MAY_CHANGE))} may"
            do = "leave the others out or start a new run"
            raise ConfigError("resume", self.run.folder, wrong, allowed, do)

    def check_root(self) -> None:
        """Raise ConfigError if the data is elsewhere by the command, and not by another path."""
        dataset = self.run.config.resolved["dataset"]
        now, root = select(self.config.completed().resolved, "dataset.root"), dataset.get("root")
        if "dataset.root" not in self.keys or not root or now == root:
            return
        for key, text in flat(dataset, "dataset").items():
            if not may_change(key) and isinstance(text, str) and text.startswith(f"{root}/"):
                allowed = "a run whose only path is its root is allowed"
                do = "move the data back, or set both in its config.yaml"
                raise ConfigError("dataset.root", now, f"{key} of the run is {text}", allowed, do)

    def check_values(self) -> None:
        """Raise Failure if the job that comes of both has a wrong value."""
        moved = self.choices[STRATEGY] != self.run.choices[STRATEGY]  # it may not fit the rest
        for problem in problems(self.merged[0].resolved, schema.top_level(evaluates=False)):
            if moved or problem.field in self.keys:
                raise problem
            wrong = "its config.yaml is of another version, or was changed"
            do = "put back the one that was written, or start a new run"
            raise CheckpointError("resume", self.run.folder, wrong, problem.cause, do)

    @cached_property
    def merged(self) -> tuple[Configuration, Tree, list[str]]:
        """The run's job and options, with the command's values of `keys` that may change.

        Last, the groups that the command replaces as a whole.
        """
        options, values = dict(self.run.choices), {}
        # Loggers are replaced as a whole: `~logger.tensorboard` names one that is absent.
        keys = ["logger" if key.startswith("logger") else key for key in self.keys]
        now = self.config.frozen
        for key in filter(may_change, keys):
            same = key == STRATEGY and self.choices.get(key) == options.get(key)  # it is repeated
            if same or (value := select(now, key)) == schema.ABSENT:
                continue
            values[key] = value
        replaced = [key for key in ("logger", STRATEGY) if key in values]
        for key in replaced:
            options.pop(key, None)
            if key in self.choices:  # not where several are chosen, in a list
                options[key] = self.choices[key]
        if started_by() and "parallel.processes" not in keys:  # their launcher determines it
            values["parallel.processes"] = "auto"
        config = self.run.config.with_values(values)
        follows = {
            key: f"${{{by}}}"
            for key, by in SET_BY.items()
            if key not in keys and (STRATEGY in values or by in keys)
            if select(config.frozen, key) != schema.ABSENT
        }
        return config.with_values(follows), options, replaced


def unfinished(root: Path) -> list[Path]:
    """The run folders in `root` that have a checkpoint and have not ended, newest first."""
    found = []
    for path in root.glob(f"*/checkpoints/{manifest.FILE}"):
        folder = path.parent.parent
        if _status(folder) not in ("ok", "diverged") and manifest.has_checkpoint(folder):
            found.append((path.stat().st_mtime_ns, folder.name, folder))
    return [folder for _, _, folder in sorted(found, reverse=True)]


def holds_a_run(folder: Path) -> bool:
    """Whether a run in `folder` has a checkpoint or ended well, which a new run would lose."""
    if not (folder / "config.yaml").exists():
        return False
    return manifest.has_checkpoint(folder) or _status(folder) == "ok"


def _status(folder: Path) -> Any:
    """The status in result.json of a run folder; None if there is none."""
    try:
        return read_json(folder / FILE)["status"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def may_change(key: str) -> bool:
    """Whether a run may be resumed with another value of `key`."""
    return schema.is_any_of(key, marked(MAY_CHANGE))


def may_vary() -> tuple[str, ...]:
    """The keys of which runs that resume=auto takes for the same job may have other values.

    Besides those that affect no result.
    """
    others = (*ONLY_IF_NAMED, *marked(NO_EFFECT))
    return ("choices.experiments", *(key for key in marked(MAY_CHANGE) if key not in others))


def select(tree: Any, key: str) -> Any:
    """The value of a dotted key, or schema.ABSENT."""
    for part in key.split("."):
        if isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        else:
            return schema.ABSENT
    return tree
