"""The layers of the report: imports go from rendering to answer to statistics to data only."""

from __future__ import annotations

import pytest

from tests.test_structure import MODULES, imported, ours

LAYERS = ("numbers", "data", "stats", "answer", "render")  # each may import those to its left
REPORT = {
    name.removeprefix("report/"): path
    for name, path in MODULES.items()
    if name.startswith("report/") and name not in ("report/__init__", "report/__main__")
}


@pytest.mark.parametrize("module", REPORT)
def test_a_layer_of_the_report_imports_only_itself_and_those_below(module: str) -> None:
    below = LAYERS[: LAYERS.index(module.split("/")[0]) + 1]
    for name in imported(REPORT[module]):
        package, *inside = (ours(name) or "").split("/")
        assert package != "report" or inside[0] in below, f"{module} imports {name}"
