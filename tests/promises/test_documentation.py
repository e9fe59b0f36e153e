"""The documentation: links lead somewhere, tables are complete."""

from __future__ import annotations

import ast
import inspect
import re
import signal
from pathlib import Path

import pytest

import ninefold
from ninefold.errors import KINDS
from tests.conftest import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("experiments/*/README.md")]
)


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as they are derived for links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" not in link:
            path, _, fragment = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not fragment or fragment in anchors(target), link


def test_every_exit_code_is_documented() -> None:
    table = (ROOT / "docs" / "reliability.md").read_text().partition("## Exit codes")[2]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    closed = 128 + signal.SIGPIPE
    assert documented == {0, closed} | {kind.code for kind in KINDS.values()}


def test_the_arguments_of_compare_are_documented_with_their_defaults() -> None:
    table = (ROOT / "docs" / "notebook.md").read_text().partition("| argument |")[2]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(.+?)`)? ?\|", table, re.MULTILINE)
    documented = {
        name: ast.literal_eval(default) if default else inspect.Parameter.empty
        for name, default in rows
    }
    taken = inspect.signature(ninefold.compare).parameters
    assert list(documented) == list(taken)
    assert documented == {name: parameter.default for name, parameter in taken.items()}


# Pages that follow from the code, that tell what changed, and the way for who works on it.
GENERAL = {"CHANGELOG.md", "CONTRIBUTING.md", "keys.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_heading_that_describes_cuda_says_whether_it_has_run_there(page: Path) -> None:
    if page.name in GENERAL or "experiments" in page.parts:
        return
    for section in re.split(r"^(?=#+ )", page.read_text(), flags=re.MULTILINE):
        text = re.sub(r"^    .*$|CUDA libraries", "", section, flags=re.MULTILINE)
        if re.search(r"\b(CUDA|NCCL|cuDNN|TF32)\b", text):
            assert re.search(r"\brun on a GPU\b|measured on a GPU|stand-in", text), text[:80]
