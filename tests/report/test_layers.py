"""The layers of the report: imports go from rendering to answer to statistics to data only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPORT = Path(__file__).parents[2] / "ninefold" / "report"
LAYERS = ("numbers", "data", "stats", "answer", "render")  # each may import those to its left
MODULES = {
    path.relative_to(REPORT).with_suffix("").as_posix(): path for path in REPORT.rglob("*.py")
}


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """The names of ours that a file imports, as parts: ("report", "data", "runs", "Run")."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first == "ninefold":
                yield tuple(rest)


@pytest.mark.parametrize("module", [name for name in MODULES if name.split("/")[0] in LAYERS])
def test_a_layer_of_the_report_imports_only_itself_and_those_below(module: str) -> None:
    own = LAYERS.index(module.split("/")[0])
    for names in imported(MODULES[module]):
        if names[0] == "report":
            assert names[1] in LAYERS[: own + 1], f"{module} imports {'.'.join(names)}"


def test_every_module_of_the_report_is_in_a_layer() -> None:
    outside = {name for name in MODULES if name.split("/")[0] not in LAYERS}
    assert outside == {"__init__", "__main__"}
