"""like=FOLDER: the words with which a study or a run was made, before those of the command.

Of a run they are those of all commands that began and resumed it.

study.resume=FOLDER, without -m, stands for them too, with what only that study swept and measured.

Hydra stores them (multirun.yaml, .hydra/), with the folder they were typed in and the places where
it looked for options. The command wins: its keys replace the stored ones, and another option of a
group replaces what was set in that group. Without trust=true the words may only choose options and
set what ninefold.config.untrusted says.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Override

from ninefold.config import conf_files, rules, search_path, untrusted
from ninefold.config.composition import flags_of
from ninefold.config.conf_files import STUDIES
from ninefold.config.hydra_parts import parsed
from ninefold.config.resume import overrides_of, select
from ninefold.config.schema import ABSENT, GROUPS, is_any_of
from ninefold.errors import ConfigError, error_text
from ninefold.files import read_text
from ninefold.words import as_text, as_value, key_and_value, key_of

KEY, RESUMED = "like", "study.resume"
SWEEP = "multirun.yaml"  # of the composed configuration, in the folder of a study
# What was for that one study or run alone.
LEFT_OUT = ("hydra", "resume", "numerics", "profile", "dataset.download", *rules.COMMAND_SECTIONS)
# What was for that one command alone, of those that go on with a study.
OF_COMMAND = (
    *(KEY, RESUMED, "trust", "dataset.download"),
    *("hydra.mode", "hydra.sweep.dir", search_path.SEARCHED),
)
PATHS = ("dataset.root", "dataset.cache_dir", "init")  # of one that was typed elsewhere
# Of an experiment that describes a study.
ONE_RUN = ("hydra.mode=RUN", "~study", "~report", "numerics=0")
SAVES = "checkpoint.every=0"  # after each epoch, where the study needed no weights


@dataclass(frozen=True)
class Stored:
    """What a folder says of the command that made it.

    words: its overrides. of_hydra: those of Hydra's own section. tree: the configuration that was
    composed of them. job: that of a run with what its resumes changed, its paths absolute; `tree`
    of a study. typed_in: its working directory. places: where it looked for the user's options, as
    in Hydra's search path. options: those of each group, the composed one first, then those that it
    swept.
    """

    folder: Path
    words: list[Override]
    of_hydra: list[Override]
    tree: Mapping[str, Any]
    job: Mapping[str, Any]
    typed_in: Path
    places: list[str]
    options: dict[str, list[str]]

    def kept(self, given: Sequence[Override], resumes: bool = False) -> list[Override]:
        """The words that hold beside those of a command, which replaces its own.

        resumes: whether it goes on with the study, so that they include what was swept. Raises
        ConfigError for GPUs that the command's strategy would not use.
        """
        keys = {_key(each) for each in given}
        chosen = {key: _option(each) for each in given if (key := _key(each)) in self.options}
        choices = {group: each[0] for group, each in self.options.items() if each} | chosen

        def holds(word: Override) -> bool:
            key, group = _key(word), _key(word).partition(".")[0]
            if key in keys or is_any_of(key, OF_COMMAND if resumes else LEFT_OUT):
                return False
            if word.is_sweep_override():
                return resumes
            if key != group and group in chosen and chosen[group] not in self.options[group]:
                return False
            text = word.input_line or ""
            own = conf_files.is_own(text)  # one of some options: of a study of any of these
            if resumes or not own or conf_files.fits(text, choices.get(group)):
                return True
            if conf_files.names_gpus(text):
                raise conf_files.other_gpus(key_and_value(text)[1])
            return False

        return [word for word in [*self.words, *(self.of_hydra if resumes else ())] if holds(word)]

    def paths(self, given: Sequence[Override]) -> dict[str, str]:
        """Paths that are relative to where they were typed, and not replaced by the command."""
        keys, found = {_key(each) for each in given}, {}
        said = {_key(word): word.value() for word in self.words}
        for key in PATHS:
            path = said.get(key, select(self.tree, key))
            replaced = path == ABSENT or keys & {key, key.partition(".")[0]}
            if replaced or not isinstance(path, str) or "${" in path:
                continue
            if not os.path.isabs(os.path.expanduser(path)):
                # Of a run it is absolute there: a resume may have been typed in another folder.
                found[key] = str(self.typed_in / str(select(self.job, key)))
        return found

    @property
    def of_study(self) -> bool:
        return (self.folder / SWEEP).exists()


def expanded(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with the words that its like= and its study.resume= stand for.

    Raises ConfigError.
    """
    found = _expanded([*map(_from_home, arguments)], KEY)
    if RESUMED not in map(key_of, found) or flags_of(found).multirun:
        return found
    return _expanded(found, RESUMED)


def _from_home(word: str) -> str:
    """A word whose folder begins with ~, which a shell leaves alone behind a `=`, expanded."""
    key, value = key_and_value(word)
    if key not in (KEY, RESUMED, "resume") or not value.startswith("~"):
        return word
    return f"{key}={as_value(os.path.expanduser(value))}"


def _expanded(arguments: Sequence[str], name: str) -> list[str]:
    """The arguments with the words that one of the two keys stands for."""
    own = [number for number, word in enumerate(arguments) if key_of(word) == name]
    if not own:
        return list(arguments)
    resumes = name == RESUMED
    before, after = (
        [word for word in words if resumes or key_of(word) != KEY]
        for words in (arguments[: own[0]], arguments[own[0] :])
    )
    rest = [*before, *after]
    folder = parsed([arguments[own[-1]]])[0].value()
    if folder is None:
        return rest
    flags, stored = flags_of(rest), read(Path(str(folder)), name)
    given = parsed(flags.overrides)
    kept, relocated = stored.kept(given, resumes), stored.paths(given)
    trusted = any(_key(each) == "trust" and each.value() is True for each in given)
    if not trusted and (odd := next(_refused(stored, kept, relocated, flags), None)):
        wrong = f"it has {odd}, which is not in conf/"
        do = "add trust=true if you made it, or name another"
        raise ConfigError(name, folder, wrong, untrusted.WITHOUT_TRUST, do)
    keys = {_key(each) for each in given}
    words = [word.input_line or "" for word in kept if _key(word) not in relocated]
    words += [f"{key}={as_value(path)}" for key, path in relocated.items()]
    if not resumes and STUDIES in map(key_of, words) and not flags.multirun:
        words += [word for word in ONE_RUN if key_of(word) not in {*keys, *map(key_of, words)}]
    of_study = stored.of_study or STUDIES in map(key_of, words)
    unsaved = of_study and select(stored.tree, "checkpoint.every") is None
    if unsaved and key_of(SAVES) not in keys and not (resumes or flags.multirun):
        words = [word for word in words if key_of(word) != key_of(SAVES)] + [SAVES]
    if places := list(dict.fromkeys(stored.places)):
        mine = search_path.listed(rest)
        before, after = (
            [word for word in words if key_of(word) != search_path.SEARCHED]
            for words in (before, after)
        )
        words.append(f"{search_path.SEARCHED}=[{','.join(map(as_text, [*places, *mine]))}]")
    return [*["-m"] * resumes, *before, *words, *after]


def needs_trust(folder: Path) -> bool:
    """Return whether like=FOLDER, or study.resume=FOLDER, needs trust=true. Raises ConfigError."""
    stored, nothing = read(folder), Namespace(config_dir=None, overrides=[])
    words, paths = stored.kept((), resumes=True), stored.paths(())
    return next(_refused(stored, words, paths, nothing), None) is not None


def read(folder: Path, name: str = KEY) -> Stored:
    """What is stored in the folder of a study or a run. Raises ConfigError of the key `name`."""
    try:
        return _read(folder)
    except Exception as error:  # anybody may have written it, and any value may be of any kind
        nothing = not (folder / ".hydra").is_dir() and not (folder / SWEEP).exists()
        unread = f"what it holds cannot be read ({error_text(error)})"
        wrong = "no study and no run is there" if nothing else unread
        allowed = "the folder of a study or a run, below outputs/, is allowed"
        raise ConfigError(name, folder, wrong, allowed, "correct it") from error


def _read(folder: Path) -> Stored:
    if (folder / SWEEP).exists():
        tree = job = untrusted.parse(read_text(folder / SWEEP))
    else:
        names = ("config.yaml", "hydra.yaml")
        job, hydra = (untrusted.parse(read_text(folder / ".hydra" / name)) for name in names)
        tree = {**job, **hydra}
        tree["hydra"]["overrides"]["task"] = overrides_of(folder)  # those of its resumes, too
        if (frozen := folder / "config.yaml").exists():  # its paths are absolute
            job = untrusted.parse(read_text(frozen))
    settings = tree["hydra"]
    words, of_hydra = (
        parsed(map(str, settings["overrides"].get(kind) or ())) for kind in ("task", "hydra")
    )
    params = (settings.get("sweeper") or {}).get("params") or {}
    runtime = settings["runtime"]
    options = {
        group: [option] if isinstance(option, str) else []
        for group, option in runtime["choices"].items()
    }
    for word in (*parsed(f"{key}={value}" for key, value in params.items()), *words):
        if (group := _key(word)) not in options:
            continue
        if isinstance(word.value(), ChoiceSweep):
            options[group] += word.sweep_string_iterator()
        elif isinstance(option := _option(word), str):  # another one than composed by a resume
            options[group] = [option]
    typed_in = Path(runtime["cwd"])
    return Stored(
        folder, words, of_hydra, tree, job, typed_in, list(_places(runtime, typed_in)), options
    )


def _places(runtime: Mapping[str, Any], typed_in: Path) -> Iterator[str]:
    """The places of options that the command or the environment named, folders absolute."""
    for source in runtime["config_sources"]:
        provider, path = str(source["provider"]), str(source["path"])
        named = ("command-line", search_path.VARIABLE, f"{search_path.SEARCHED} in ")
        if provider.startswith(named):
            yield f"file://{typed_in / path}" if source["schema"] == "file" else f"pkg://{path}"


def _refused(
    stored: Stored, kept: Sequence[Override], paths: Mapping[str, str], flags: Namespace
) -> Iterator[str]:
    """What only trust=true uses: of the places of options, and of words and paths that are kept."""
    known = search_path.of_users(flags)
    yield from (f"options in {place}" for place in stored.places if place not in known)
    yield from (f"{key}={path}" for key, path in untrusted.unknown(paths))
    for word in kept:
        key, values, text = _key(word), _values(word), word.input_line or ""
        plain = re.fullmatch(r"(~|\+{1,2})?\w[\w.]*(=.*)?", text, re.DOTALL)
        names = [
            name for value in values for name in (value if isinstance(value, list) else [value])
        ]
        chooses = key in (*GROUPS, STUDIES) and all(
            isinstance(name, str) and rules.NAME.fullmatch(name) for name in names
        )
        fetches = key.rpartition(".")[2] in untrusted.PRETRAINED and any(values)
        odd = any(list(untrusted.unknown(value, place=key)) for value in values)
        # Of Hydra's own section and of mappings any value may do anything.
        deep = re.match(r"hydra\b", key) or any(isinstance(each, dict) for each in values)
        if not plain or deep or fetches or (odd and not chooses):
            yield text


def _key(word: Override) -> str:
    return key_of(word.input_line or "")


def _values(word: Override) -> list[Any]:
    """The values of a word: of a sweep each, but for numbers of a range or an interval, and for
    options of a glob.
    """
    value = word.value()
    if isinstance(value, ChoiceSweep):
        return [getattr(each, "text", each) for each in value.list]  # of what is quoted
    return [] if word.is_sweep_override() else [value]


def _option(word: Override) -> Any:
    """The option that a word chooses from a group; None of several."""
    return None if word.is_sweep_override() else word.value()
