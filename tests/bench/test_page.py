"""The pages of bench show what their commands print."""

import re
from typing import Any

import pytest

from tests.bench.toy import ROOT

OUTPUT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def rows(page: str) -> list[list[tuple[str, str]]]:
    """The tables in outputs: in each row the name and the command."""
    lines = [re.findall(r"^(.*\S)  +(\S.*)$", text, re.MULTILINE) for text in OUTPUT.findall(page)]
    return [[(row.split(" ")[0], command) for row, command in table] for table in lines]


@pytest.mark.slow
def test_the_page_shows_the_tables_that_its_commands_print(tmp_path):
    from benchmarks.pages import rebuilt  # which imports scikit-learn

    def fixed(page: str) -> list[list[Any]]:
        """A comparison's rows, and of a trial's, which changes a machine adds to, two names."""
        comparison, trial, *_ = rows(page)
        return [comparison, [name for name, _ in trial[:2]]]

    folder = ROOT / "docs" / "how-to"
    page = "".join((folder / name).read_text() for name in ("bench.md", "bench-questions.md"))
    assert [len(table) for table in fixed(page)] == [3, 2]
    assert fixed("".join(rebuilt(page, tmp_path, tmp_path))) == fixed(page)
