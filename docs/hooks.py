"""What mkdocs does to the pages besides rendering them; named in mkdocs.yml.

- Pages link to files of the repository as GitHub takes it (`../experiments/...`). What they link to
  is added to the site, at the same place below its root. A recording has report.md alone: its page,
  to which the link leads here, and its plot are drawn now; a link named `plot` or `The plot ...`
  shows that.
- `<!-- help of ninefold NAME -->` becomes what the command prints.
- Each page is also written as plain markdown, at its address with .md: how-to/train.md beside
  how-to/train/. There `::: NAME` is the signature and the docstring.
- `Arguments` has mkdocstrings show our docstrings, whose entries are `name: meaning`, as lists.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import posixpath
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from ninefold import report

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")
# What of the repository pages may link to.
ADDED = ("experiments/", "ninefold/extensions/", "examples/")
HELP = re.compile(r"^<!-- help of (ninefold.*) -->$", re.MULTILINE)
SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
ENTRY = re.compile(r"^(?:\*\*)?([a-z_][\w, ]*): (?=\S)")
PLOT = re.compile(r"plot$|The plot ")
REPORT = re.compile(r"experiments/\w+/20[^/]*/report\.html")
scratch = TemporaryDirectory(prefix="ninefold-docs-")  # removed with this process
texts: dict[str, str] = {}  # of each page, by its address


def outside(link: str, page: str) -> str | None:
    """The path from the repository's root of what a page links to, if that is not in docs/."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    folder = posixpath.dirname(page)
    if not page.startswith(ADDED):
        folder = posixpath.join("docs", folder)
    path = posixpath.normpath(posixpath.join(folder, link))
    if path.startswith("experiments/"):
        path = re.sub(r"/report\.md$", "/report.html", path)
    return path.removeprefix("docs/") if page.startswith(ADDED) or path[:5] != "docs/" else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to, and what those link to."""
    waiting = [file for file in files if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        for _, _, link, _ in LINK.findall(page.content_string):
            path = outside(link, page.src_uri)
            if path is None or not path.startswith(ADDED) or files.get_file_from_path(path):
                continue
            if REPORT.fullmatch(path):
                folder, place = posixpath.dirname(path), str(drawn(posixpath.dirname(path)))
                for name in ("report.html", "figure.svg"):
                    options = (config.site_dir, config.use_directory_urls)
                    files.append(File(f"{folder}/{name}", place, *options))
            elif (ROOT / path).is_file():
                added = File(path, str(ROOT), config.site_dir, config.use_directory_urls)
                files.append(added)
                if path.endswith(".md"):
                    waiting.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links lead to where the site has what they name, and show what commands print."""
    here = page.file.src_uri
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]

    def lead(found: re.Match[str]) -> str:
        path = outside(found[3], here)
        if path is None:
            return found[0]
        place = posixpath.relpath(path, posixpath.dirname(here) or ".")
        text = found[2]
        if REPORT.fullmatch(path) and PLOT.match(text):
            text = f"![{text}]({posixpath.dirname(place)}/figure.svg)"
        return f"{found[1]}[{text}]({place}{found[4]})"

    markdown = LINK.sub(lead, markdown)
    markdown = HELP.sub(lambda found: f"```text\n{printed(found[1])}```", markdown)
    texts[here] = SHOWN.sub(lambda found: described(found[1]), markdown)
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Write each page as plain markdown."""
    for path, text in texts.items():
        file = Path(config.site_dir, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for page in Path(config.site_dir, "experiments").glob("*/*/report.html"):
        shutil.copy(ROOT / page.relative_to(config.site_dir).with_name("report.md"), page.parent)


@cache
def drawn(recording: str) -> Path:
    """A folder like the repository's root in which a recording has all that a report has."""
    root = Path(scratch.name)
    shutil.copytree(ROOT / recording, root / recording)
    with contextlib.chdir(root):  # to which the report says where it is
        report.write(Path(recording))
    return root


@cache
def printed(command: str) -> str:
    """What `ninefold NAME --help` prints."""
    env = {**os.environ, "COLUMNS": "100"}
    words = [sys.executable, "-m", *command.split(), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=ROOT, check=True)
    return done.stdout.replace("python -m ninefold", "ninefold")


def described(name: str) -> str:
    """A function or class as text."""
    module, _, last = name.rpartition(".")
    found: Any = getattr(import_module(module), last)
    # The annotations are texts, as nothing evaluates them.
    head = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{last}{inspect.signature(found)}")
    return f"## ninefold.{last}\n\n```python\n{head}\n```\n\n```text\n{inspect.getdoc(found)}\n```"


class Arguments(griffe.Extension):
    """Makes a list of the entries `name: meaning` of a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"(?<!`)__\w+__", r"`\g<0>`", obj.docstring.value)
            lines = inspect.cleandoc(text).splitlines()
            obj.docstring.value = "\n".join(listed(lines))


def listed(lines: list[str]) -> list[str]:
    """The lines with `name: meaning` as an item of a list; what follows it is indented already."""
    found: list[str] = []
    within = False  # an entry
    for line in lines:
        if entry := ENTRY.match(line):
            if not within:
                found.append("")
            names = ", ".join(f"`{name.strip()}`" for name in entry[1].split(","))
            found.append(f"- {names}: {line[entry.end() :]}")
            within = True
        else:
            within = within and line.startswith(" ")
            found.append(line)
    return found
