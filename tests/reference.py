"""What is generated from the schema: docs/reference/keys.md.

    python -m tests.reference

writes it anew; a test sees that it is up to date.
"""

from collections.abc import Mapping

from ninefold.config.conf_files import files_of
from ninefold.config.list_commands import about, default_of
from ninefold.config.options import option_keys
from ninefold.config.schema import COMMAND, GROUPS, SWEEP, Key, own_keys
from ninefold.places import ROOT
from ninefold.types import MAY_CHANGE, words

SIGNS = {
    " and of at most ": ", ≤ ", " and at most ": ", ≤ ", " and below ": ", < ",
    " of at least ": " ≥ ", " above ": " > ", "a whole number": "integer", "a num": "num",
    ", or null": ", null", "true, false": "bool",
    "[length] or any other shape of whole numbers ≥ 1": "another shape",
    "a list or a dict of shapes for several inputs": "a list or dict of them",
    "a section with a _target_ in it": "a _target_",
}  # fmt: skip
# Not on the page: other keys set them, or an option's own file does.
ELSEWHERE = {
    "parallel.device", "parallel.timeout", "parallel.max_processes", "dataset._recursive_",
    "task.classes", "task.ignore", "task.shape", "task.spacing",
}  # fmt: skip
PAGE = ROOT / "docs" / "reference" / "keys.md"


def table() -> str:
    """The text of docs/reference/keys.md."""
    train = {name: key.meaning for name, key in own_keys(False).items()}
    parts = [
        "# Keys",
        "The keys of `train.py` and `evaluate.py`, as `KEY=DEFAULT`, with what each accepts. One "
        "whose default is null accepts null, too. Keys marked *resume* may change when a run is "
        "resumed.",
        "## train.py",
        _rows(own_keys(False)),
        "## What a command takes over",
        _rows(COMMAND),
        "## Sweeps (`train.py -m`, `experiments=NAME`)",
        _rows(SWEEP),
        "## evaluate.py",
        "Groups that are not named are taken from the checkpoint; `loader`, `launch` and `threads` "
        "are as above.",
        _rows({n: key for n, key in own_keys(True).items() if train.get(n) != key.meaning}),
        "## Groups",
        "`GROUP=OPTION` chooses a file of `conf/GROUP/`, `GROUP.KEY=VALUE` sets its keys. A key "
        "without a default here has one in each option. Arguments of PyTorch's classes, such as "
        "`optimizer.momentum`, are keys, too; `+optimizer.eps=1e-6` adds one that an option does "
        "not name. `_target_` is the class or function to call.",
    ]
    for group, described in GROUPS.items():
        options = [f"- `{path.stem}`: {about(path)}".removesuffix(": ") for path in files_of(group)]
        resumes = " All may change on a resume." if MAY_CHANGE in described.marks else ""
        parts += [f"### {group}", f"{described.meaning}{resumes}", "\n".join(options)]
        if keys := {n: k for n, k in option_keys().items() if n.partition(".")[0] == group}:
            parts += ["Keys:", _rows({group: described, **keys})]
    return "\n\n".join(parts) + "\n"


def _rows(keys: Mapping[str, Key]) -> str:
    lines = []
    may_change = [name for name, key in keys.items() if MAY_CHANGE in key.marks]
    for name, key in keys.items():
        if key.is_section or name.endswith("._target_") or name in ELSEWHERE:
            continue
        default = default_of(key)
        accepted = _short(words(key.kind))
        if default == "null":
            accepted = accepted.removesuffix(", null").removesuffix(" or null")
        section = name.partition(".")[0]
        resumes = section not in GROUPS if section in may_change else name in may_change
        mark = " *resume*" if resumes else ""
        typed = f"{name}={default}" if default else name
        accepted = "" if accepted == "bool" and default else f" ({accepted})"
        said = f"{accepted}: {key.meaning}{mark}".replace("_target_", "`_target_`")
        lines.append(f"- `{typed}`{said}")
    return "\n".join(lines)


def _short(allowed: str) -> str:
    """What a key takes, with signs for words."""
    for long, sign in SIGNS.items():
        allowed = allowed.replace(long, sign)
    return allowed


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
