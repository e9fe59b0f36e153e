"""The documentation: links lead somewhere, tables are complete, pages are of today."""

import functools
import inspect
import re
import signal
from pathlib import Path

import pytest
import yaml

import ninefold
from ninefold.errors import KINDS
from tests.conftest import ROOT

DOCS = ROOT / "docs"
SITE = sorted(page for page in DOCS.rglob("*.md") if "internals" not in page.parts)
FOLDERS = ("experiments", "ninefold/extensions", "examples")
READMES = sorted(page for name in FOLDERS for page in ROOT.glob(f"{name}/*/README.md"))
PAGES = sorted(
    [
        *ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/log/*.md"), *READMES,
    ]
)  # fmt: skip


LINK = re.compile(r"\]\(([^)]+)\)")


@functools.cache
def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as they are derived for links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_leads_to_a_file_and_a_heading():
    found = [(page, link) for page in PAGES for link in LINK.findall(page.read_text())]
    for page, link in found:
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link:
            assert target.exists(), (page, link)
            assert not fragment or fragment in anchors(target), (page, link)


def test_every_exit_code_is_documented():
    table = (DOCS / "reference" / "exit-codes.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    closed = 128 + signal.SIGPIPE
    assert documented == {0, closed} | {kind.code for kind in KINDS.values()}


@pytest.mark.parametrize("name", ["compare", "fits", "load", "time_steps"])
def test_every_argument_of_a_function_is_in_its_docstring_which_the_site_shows(name):
    function = getattr(ninefold, name)
    lines = re.findall(r"^([a-z_, ]+): ", inspect.getdoc(function) or "", re.MULTILINE)
    described = {word for line in lines for word in line.split(", ")}
    text = (DOCS / "reference" / "python-api.md").read_text()
    assert f"\n::: {function.__module__}.{name}\n" in text
    as_of = {"fits": ninefold.compare, "turns": ninefold.time_steps}  # which describe the others
    others = {*inspect.signature(as_of[name]).parameters} if name in as_of else set()
    assert {*inspect.signature(function).parameters} - others <= described


def test_every_page_is_in_the_navigation_of_the_site_and_every_entry_of_it_is_a_page():
    def pages(entry: object) -> list[str]:
        if isinstance(entry, dict):
            entry = list(entry.values())
        return [entry] if isinstance(entry, str) else [p for e in entry for p in pages(e)]

    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    # The home page, to which the name of the site leads, and what is generated, for the search.
    found = [*pages(site["nav"]), "index.md", "reference/keys.md"]
    assert sorted(found) == sorted(page.relative_to(DOCS).as_posix() for page in SITE)


def test_a_page_of_the_site_has_one_title_and_tells_what_holds_today():
    for page in SITE:
        text = page.read_text()
        prose = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
        assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1, page
        assert text.startswith("# "), page
        # Where something was tried, and before what: benchmarks/log/.
        past = re.findall(r"was tried|since then|until 20\d\d|loaded machine|of ours", text)
        assert not past, page


def test_the_home_page_links_to_each_guide():
    home, guides = (DOCS / "index.md").read_text(), sorted((DOCS / "guides").glob("*.md"))
    assert len(guides) == 16
    assert [path.name for path in guides if f"(guides/{path.name})" not in home] == []


def test_the_gallery_has_each_recording_with_its_answer():
    page = (DOCS / "gallery.md").read_text()
    reports = [*ROOT.glob("experiments/*/20*/report.md")]
    assert reports
    for report in reports:
        (answer,) = re.findall(r"^\*\*(.*)\*\*$", report.read_text(), re.MULTILINE)
        link = f"../{report.relative_to(ROOT)}"
        assert f"[{answer}]({link})" in page
        assert f"[plot]({link})" in page
