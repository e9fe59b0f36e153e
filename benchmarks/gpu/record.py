"""What a part has found, kept in its folder, and the table of all parts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.check import AS_EXPECTED, NEEDS, NOT, NOT_MEASURED, Check, Figures, shown
from ninefold.errors import ConfigError
from ninefold.files import write_json
from ninefold.report.render.tables import grid

FILE, LOG = "figures.json", "log.txt"
NOT_DONE = "not done"
HEADER = ("check", "what", "value", "expected", "verdict")


@dataclass
class Record:
    """The checks of one part, in its folder.

    machine: what `inside.machine` says; the same for all of them. dry: of a dry run.
    checks: by name, the latest last.
    """

    folder: Path
    part: str
    machine: dict[str, Any]
    dry: bool
    checks: dict[str, dict[str, Any]]

    @classmethod
    def resumed(cls, folder: Path, part: str, machine: dict[str, Any], dry: bool) -> Record:
        """The record of `part` in `folder`, which may be empty.

        Raises ConfigError if it was made on other hardware, or if one is a dry run and one is not.
        """
        file = folder / part / FILE
        found = json.loads(file.read_text()) if file.exists() else None
        record = cls(file.parent, part, machine, dry, found["checks"] if found else {})
        if found and conditions(found["machine"], found["dry"]) != conditions(machine, dry):
            raise ConfigError(
                "output",
                folder,
                f"its figures of the part {part} were made elsewhere; "
                f"{conditions(found['machine'], found['dry'])}; choose another folder",
            )
        return record

    def done(self, check: Check) -> bool:
        return bool(self.checks.get(check.name, {}).get("done"))

    def add(self, check: Check, figures: Figures, seconds: float) -> None:
        """Add what a check has found, with its verdicts."""
        verdicts = [each.verdict(figures, self.machine["gpus"]) for each in check.expects]
        rows = [
            {
                "what": each.figure,
                "value": None if verdict.startswith(NEEDS) else figures.get(each.figure),
                "unit": each.unit,
                "expected": each.bound,
                "verdict": verdict,
            }
            for each, verdict in zip(check.expects, verdicts, strict=True)
        ]
        self._put(check, True, rows, figures, seconds)

    def leave_out(self, check: Check, verdict: str) -> None:
        """Add why a check found nothing; it will be tried again."""
        row = {"what": check.asks, "value": None, "unit": "", "expected": "", "verdict": verdict}
        self._put(check, False, [row], {}, 0.0)

    def _put(
        self, check: Check, done: bool, rows: list[Any], figures: Figures, seconds: float
    ) -> None:
        self.checks.pop(check.name, None)
        self.checks[check.name] = {
            "asks": check.asks,
            "done": done,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": self.machine["environment"]["commit"],
            "seconds": seconds,
            "rows": rows,
            "figures": figures,
        }
        content = {"dry": self.dry, "machine": self.machine, "checks": self.checks}
        write_json(self.folder / FILE, content)


def conditions(machine: dict[str, Any], dry: bool) -> str:
    """What figures were made on."""
    known = machine["environment"]
    devices = ", ".join(machine["gpu_names"]) or "no GPU"
    found = f"{devices}, {known['cpu']} with {known['cores']} cores"
    return f"a dry run, which measures nothing, on {found}" if dry else found


def versions(machine: dict[str, Any]) -> str:
    """The versions and the commit, in words."""
    known = machine["environment"]
    names = ("python", "torch", "cuda")
    found = [f"{name} {known['versions'][name]}" for name in names if known["versions"].get(name)]
    found += [f"driver {known['driver']}"] * bool(known["driver"])
    found += [f"commit {known['commit'][:12]}"] if known["commit"] else []
    found += ["with changes"] * bool(known["dirty"])
    return ", ".join([*found, known["time"][:10]])


def table(folder: Path, parts: Iterable[str]) -> tuple[str, int]:
    """The Markdown of what is recorded in `folder`, and how much of it is not as expected.

    Raises ConfigError if nothing is recorded there.
    """
    files = {part: folder / part / FILE for part in parts}
    found = {part: json.loads(file.read_text()) for part, file in files.items() if file.exists()}
    if not found:
        raise ConfigError(
            "output", folder, "nothing is recorded in it; no part was run; run one first"
        )
    rows = [
        (f"{part}/{name}", *cells(row))
        for part, record in found.items()
        for name, check in record["checks"].items()
        for row in check["rows"]
    ]
    counts = {
        word: sum(row[-1].startswith(word) for row in rows)
        for word in (AS_EXPECTED, NOT, NOT_MEASURED, NOT_DONE, NEEDS)
    }
    said = ", ".join(
        f"{count} {'not judged here' if word == NEEDS else word}"
        for word, count in counts.items()
        if count
    )
    made = dict.fromkeys(
        f"On {conditions(record['machine'], record['dry'])}; {versions(record['machine'])}."
        for record in found.values()
    )
    unexpected = sum(counts[word] for word in (NOT, NOT_MEASURED, NOT_DONE))
    return "\n\n".join([*made, grid(HEADER, rows), f"Expectations: {said}."]), unexpected


def cells(row: dict[str, Any]) -> Sequence[str]:
    """The columns of a row, without what ends a column in Markdown."""
    value = shown(row["value"], row["unit"])
    return [
        text.replace("|", "/").replace("\n", " ")
        for text in (row["what"], value, row["expected"], row["verdict"])
    ]
