"""The README, the guides and the gallery: as short as they promise, and of what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
RECORDINGS = sorted(path.parent for path in ROOT.glob("experiments/*/20*/report.md"))


def prose(page: str) -> list[str]:
    """The words of a page besides its code and what that prints."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4}.*$", "", page, flags=re.MULTILINE).split()


def test_the_readme_has_the_two_commands() -> None:
    page = (ROOT / "README.md").read_text()
    assert {"make matrix", "make test"} <= {*re.findall(r"^ {4}(make \w+)", page, re.MULTILINE)}


def test_the_home_page_links_to_each_of_the_twelve_guides() -> None:
    home = (ROOT / "docs" / "index.md").read_text()
    assert len(GUIDES) == 12
    assert [path.name for path in GUIDES if f"(guides/{path.name})" not in home] == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_a_guide_asks_says_what_to_do_and_shows_what_a_command_prints(path: Path) -> None:
    page = path.read_text()
    assert re.match(r"# .*\?\n", page)
    heads = re.findall(r"^## (What to|See it|Work it|Good|The)", page, re.MULTILINE)
    assert heads[0] == "What to"
    assert {"See it", "Work it"} & {*heads}
    assert page.index("## What to") < page.index("<!-- output")
    assert len(prose(page)) <= 330


def test_the_gallery_has_each_recording_with_its_answer() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    for folder in RECORDINGS:
        (answer,) = re.findall(r"^\*\*(.*)\*\*$", (folder / "report.md").read_text(), re.MULTILINE)
        link = f"../{folder.relative_to(ROOT)}/report.md"
        assert f"[{answer}]({link})" in page
        assert f"[plot]({link})" in page
