"""report.html in a real browser: it renders, asks nobody for anything and can be used by anyone."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ninefold.report.render.heat import panels
from ninefold.report.render.page import page
from ninefold.report.render.plots import fitting
from tests.report.sample_report import AMPS, report_of, sample

# Text's contrast with what is behind it, for all that is shown: what is below WCAG's AA.
PALE = """() => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const known = {};
  const rgba = color => known[color] ??= (pen.clearRect(0, 0, 1, 1), pen.fillStyle = color,
    pen.fillRect(0, 0, 1, 1), [...pen.getImageData(0, 0, 1, 1).data]);
  const light = rgb => { const [r, g, b] = rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = element => { for (; element; element = element.parentElement) {
    const back = rgba(getComputedStyle(element).backgroundColor); if (back[3] == 255) return back; }
    return rgba("Canvas"); };
  const pale = []; let seen = 0;
  for (const element of document.body.querySelectorAll("*")) {
    if (![...element.childNodes].some(n => n.nodeType == 3 && n.textContent.trim())) continue;
    if (!element.checkVisibility() || element.closest("title, script")) continue;
    const style = getComputedStyle(element);
    const ink = rgba(element.closest("svg") ? style.fill : style.color);
    const [low, high] = [light(ink), light(behind(element))].sort((a, b) => a - b);
    const large = parseFloat(style.fontSize) >= 24;
    seen++;
    if ((high + 0.05) / (low + 0.05) < (large ? 3 : 4.5)) pale.push(element.outerHTML.slice(0, 90));
  }
  const property = name => rgba(getComputedStyle(document.body).getPropertyValue(name));
  for (const phase of ["data", "transfer", "forward", "backward", "optimizer"]) {
    const [low, high] = [light(property("--ink")), light(property("--phase-" + phase))].sort(
      (a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) pale.push(phase);
  }
  return [seen, pale];
}"""
# Headings that are cut, and texts of a plot that lie over each other.
CUT = """() => [...document.querySelectorAll(".heat th, .matrix th")]
  .filter(head => head.checkVisibility() && head.scrollWidth > head.clientWidth + 1)
  .map(head => head.textContent)"""
OVERLAID = """() => [...document.querySelectorAll(".plot svg")].flatMap(plot => {
  const texts = [...plot.querySelectorAll("text")].map(it => [it.getBoundingClientRect(), it]);
  return texts.flatMap(([a, one], i) => texts.slice(i + 1)
    .filter(([b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
    .map(([, other]) => `${one.textContent} / ${other.textContent}`)); })"""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass
class Visit:
    """A page that is open, what its console said and what it asked the network for."""

    page: Page
    said: list[str]
    asked: list[str]

    def shown(self, switch: int = 0) -> list[str]:
        """The titles of the panels that one of the switches leaves to be seen."""
        box = self.page.locator(".switched").nth(switch)
        return [h.inner_text() for h in box.locator("> .panel > h4").all() if h.is_visible()]


class Reader:
    """Opens reports as files in the one browser of these tests."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder, self.count = browser, folder, 0

    def open(self, report: dict[str, Any] | str, width: int = 1280, **how: Any) -> Visit:
        self.count += 1
        path = self.folder / f"{self.count}.html"
        path.write_text(
            report if isinstance(report, str) else page(report_of(report)), encoding="utf-8"
        )
        opened = self.browser.new_page(viewport={"width": width, "height": 900}, **how)
        visit = Visit(opened, [], [])
        opened.on("console", lambda message: visit.said.append(message.text))
        opened.on("pageerror", lambda error: visit.said.append(str(error)))
        opened.on("request", lambda request: visit.asked.append(request.url))
        opened.goto(path.as_uri())
        visit.asked.remove(path.as_uri())
        return visit


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "no Chromium: the page's tests need one; on Debian run apt-get install chromium"
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--disable-component-update", "--no-first-run"]  # fmt: skip
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=flags)
        yield running
        running.close()


@pytest.fixture(scope="module")
def reader(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(browser, tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def usual() -> str:
    return page(report_of(sample()))


def test_it_renders_without_an_error_and_asks_the_network_for_nothing(
    reader: Reader, usual: str
) -> None:
    visit = reader.open(usual)
    assert visit.page.locator("h1").inner_text() == "cifar10_cpu"
    assert "of them in the figures" in visit.page.locator(".facts").inner_text()
    assert visit.page.locator(".plot svg:visible").count() == 4  # rounds, phases, speed-up, curves
    assert all(box["height"] > 100 for plot in visit.page.locator(".plot svg:visible").all()
               if (box := plot.bounding_box()))  # fmt: skip
    assert (visit.said, visit.asked) == ([], [])
    visit.page.evaluate("new Image().src = 'https://example.org/'")
    visit.page.evaluate("fetch('https://example.org/').catch(() => 0)")
    assert [said for said in visit.said if "Content Security Policy" in said], visit.said
    assert len(usual.encode()) < 1_000_000


def test_the_same_report_gives_the_same_bytes() -> None:
    report = report_of(sample(("none", "ddp"), ("fp32",), seeds=2, epochs=2))
    assert page(report) == page(report)


def test_the_switch_works_by_mouse_and_by_arrow_keys(reader: Reader, usual: str) -> None:
    visit = reader.open(usual)
    assert visit.shown() == ["Seconds per epoch, s"]
    visit.page.get_by_text("Peak memory", exact=True).click()
    assert visit.shown() == ["Peak memory, MiB"]
    visit.page.keyboard.press("ArrowRight")
    assert visit.shown() == ["Energy per epoch, J"]
    assert visit.page.get_by_text("Energy per epoch was not measured here.").is_visible()
    for _ in range(2):
        visit.page.keyboard.press("ArrowLeft")
    assert visit.shown() == ["Test accuracy, %"]
    outline = "getComputedStyle(document.activeElement.nextElementSibling).outlineStyle"
    assert visit.page.evaluate(outline) == "solid"
    visit.page.get_by_text("Accuracy", exact=True).click()
    assert visit.shown(1) == ["Accuracy, difference in points"]
    assert visit.shown() == ["Test accuracy, %"]


def test_a_phone_scrolls_the_tables_but_not_the_page(reader: Reader, usual: str) -> None:
    visit = reader.open(usual, width=360)
    assert visit.page.evaluate(SIDEWAYS) == 0
    matrix = visit.page.locator(".scroll:has(.matrix):visible")
    assert matrix.evaluate("box => box.scrollWidth > box.clientWidth")
    assert visit.page.locator(".scroll:has(.matrix):visible + .hint").is_visible()
    assert visit.page.locator(".plot .narrow:visible").count() == 4
    assert visit.page.locator(".plot .wide:visible").count() == 0


def test_dark_mode_changes_the_paper_and_the_plots_ink(reader: Reader, usual: str) -> None:
    inks, papers = set(), set()
    for scheme in ("light", "dark"):
        opened = reader.open(usual, color_scheme=scheme).page
        papers.add(opened.evaluate("getComputedStyle(document.body).backgroundColor"))
        text = opened.locator(".plot .wide text").first
        inks.add(text.evaluate("text => getComputedStyle(text).fill"))
    assert len(papers) == len(inks) == 2


def test_a_contrast_theme_leaves_what_is_chosen_and_the_colors_of_phases(
    reader: Reader, usual: str
) -> None:
    opened = reader.open(usual, forced_colors="active").page
    chosen, other = (
        opened.locator(f".switch input{state} + span").first.evaluate(
            "pill => getComputedStyle(pill).backgroundColor"
        )
        for state in (":checked", ":not(:checked)")
    )
    assert chosen != other
    phases = opened.locator(".swatch").evaluate_all(
        "all => all.map(swatch => getComputedStyle(swatch).backgroundColor)"
    )
    assert len(set(phases)) == 5


def test_an_interval_ends_where_its_measure_does() -> None:
    report = sample(("none",), ("fp32",), seeds=2, epochs=1)
    [cell] = report["groups"][0]["cells"]
    cell["measures"]["seconds"].update(low=-3.0)
    cell["measures"]["accuracy"].update(high=112.0)
    [group] = report_of(report).groups
    found = {panel.key: panel for panel in panels(group)}
    fields = {key: panel.rows[0][1][0] for key, panel in found.items()}
    assert fields["seconds"].interval.startswith("0.00 to ")
    assert fields["accuracy"].interval.endswith(" to 100.00")
    assert found["accuracy"].span.endswith(" to 100.00 %")
    strip = fields["seconds"].strip
    assert strip is not None
    assert strip.low == 5.0
    assert "interval 0.00 to " in strip.about


def test_names_and_conditions_of_ones_own_can_be_read_on_a_phone(reader: Reader) -> None:
    report = sample(("none", "dp"), ("fp32", "autocast"), seeds=2, epochs=2)
    [group] = report["groups"]
    group["rounds"] = [
        {"round": number, "attempt": 0, "seed": number, "drift": 0.2 + number % 2 / 10,
         "drifted": True, "counted": True} for number in range(8)
    ]  # fmt: skip
    bare = [{**cell, "phases": None, "speedup": None} for cell in group["cells"]]
    title = "convnet on cifar10, batch 64, 8 epochs, dataset.augment.some_rather_long_key=1e-05"
    trial = {**group, "title": title, "curves": [], "rounds": [], "cells": bare}
    report["groups"] += [trial] * 8
    text = json.dumps(report).replace("autocast", "autocast_channels_last")
    opened = reader.open(json.loads(text.replace('"dp', '"fully_sharded_parallel')), width=360).page
    assert opened.evaluate(CUT) == []
    assert opened.evaluate(OVERLAID) == []
    free = "box => box.clientWidth - box.querySelector('tbody th').offsetWidth"
    assert opened.locator("#conditions .scroll").evaluate(free) > 150


def test_names_that_are_cut_keep_what_tells_them_apart() -> None:
    names = [f"{parallel}-{amp}" for parallel in ("sharded_parallel", "sharded_state")
             for amp in ("fp32", "autocast_channels_last")]  # fmt: skip
    cut = {fitting(name) for name in names}
    assert len(cut) == 4
    assert max(map(len, cut)) == 13
    assert fitting("none-autocast") == "none-autocast"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(reader: Reader, usual: str, scheme: str) -> None:
    visit = reader.open(usual, color_scheme=scheme)
    seen, pale = visit.page.evaluate(PALE)
    assert seen > 500
    assert pale == []


def test_print_holds_everything_on_white(reader: Reader, usual: str) -> None:
    visit = reader.open(usual, color_scheme="dark")
    visit.page.emulate_media(media="print")
    assert len(visit.shown()) == 7
    assert visit.page.get_by_text("44_ddp_scaler_seed4").is_visible()  # in what is folded away
    assert not visit.page.locator(".switch").first.is_visible()
    red, *_ = visit.page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert red > 240


def test_it_can_be_read_without_scripts(reader: Reader, usual: str) -> None:
    visit = reader.open(usual, java_script_enabled=False)
    visit.page.get_by_text("Images per second", exact=True).click()
    assert visit.shown() == ["Images per second, images/s"]
    visit.page.get_by_text("Every run", exact=True).click()
    assert visit.page.get_by_text("44_ddp_scaler_seed4").is_visible()
    assert not visit.page.locator(".copy").first.is_visible()


def test_text_from_outside_is_shown_and_does_nothing(reader: Reader) -> None:
    evil = "</title></script><script>hacked=1</script><img src=x onerror=hacked=1> $x^$ {{7*7}}"

    def spoil(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: spoil(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [spoil(item) for item in tree]
        # What is compared with, or is a key of something else, keeps its value before the evil.
        return tree + evil if isinstance(tree, str) and tree not in KEYS else tree

    report = sample(("none", "ddp"), ("fp32",), seeds=2, epochs=2)
    measures = {measure["key"] for measure in report["groups"][0]["measures"]}
    KEYS = {"less", "more", "none", "ddp", "fp32", "none-fp32", "ddp-fp32", *measures}  # noqa: N806
    visit = reader.open(spoil(copy.deepcopy(report)))
    cells = spoil(copy.deepcopy(report))
    for cell in cells["groups"][0]["cells"]:
        cell["cell"] = evil
    named = reader.open(cells)
    for opened in (visit, named):
        opened.page.wait_for_timeout(50)
        assert opened.page.evaluate("window.hacked") is None
        assert opened.page.locator("img").count() == 0
        assert opened.page.locator("script").count() == 1
        assert (opened.said, opened.asked) == ([], [])
        assert opened.page.title() == f"cifar10_cpu{evil}"


def shapes() -> dict[str, dict[str, Any]]:
    """Reports that are unlike the usual one, by what they are."""
    small: dict[str, Any] = {"seeds": 2, "epochs": 2}
    cells = [f"{parallel}-{amp}" for parallel in ("none", "ddp") for amp in ("fp32", "autocast")]
    two = sample(("none", "ddp"), ("fp32", "autocast"), **small)
    two["groups"].append(copy.deepcopy(two["groups"][0]))
    two["groups"][1].update(title="convnet on cifar10, batch 128, 2 epochs", part=1)
    bare = sample(("none", "ddp"), ("fp32", "autocast"), **small)
    search = sample(("none",), ("fp32",), seeds=1, epochs=1)
    for group in (bare["groups"][0], search["groups"][0]):
        group.update(
            pairs={"seconds": [], "accuracy": []}, safety=[], controls=[], steady=[], floor=0.0,
            numerics=None,
            curves=[], rounds=[],
        )  # fmt: skip
        for cell in group["cells"]:
            cell.update(phases=None, speedup=None)
    [trial] = search["groups"]
    search["groups"] = [{**trial, "title": f"trial {number}"} for number in range(12)]
    long = sample(("none", "dp"), ("fp32", "autocast"), **small)
    long["notes"][0]["text"] = "averyveryverylongword" * 40
    long["runs"][0].update(status="failed", error="error: " + "x" * 900)
    return {
        "one cell": sample(("none",), ("fp32",), seeds=1, epochs=1),
        "all failed": sample(("none", "ddp"), ("fp32", "autocast"), failed=cells, **small),
        "one failed": sample(("none", "ddp"), ("fp32", "autocast"), failed=cells[3:], **small),
        "no baseline": sample(("none", "ddp"), ("fp32", "autocast"), failed=cells[:1], **small),
        "two groups": two,
        "nothing but times": bare,
        "a search": search,
        "no runs": {**two, "groups": [], "runs": [], "notes": []},
        "long words": long,
        "five precisions": sample(amps=(*AMPS, "tf32", "bf16"), **small),
    }


@pytest.mark.slow
def test_every_shape_of_report_renders_and_fits_a_phone(reader: Reader) -> None:
    for name, report in shapes().items():
        visit = reader.open(report, width=360)
        assert (visit.said, visit.asked) == ([], []), name
        assert visit.page.evaluate(SIDEWAYS) == 0, name
        text = visit.page.locator("body").inner_text()
        assert report["answer"]["sentence"] in text, name
        assert not {"None", "nan", "Undefined"} & set(text.split()), name
        if name == "a search":
            assert "12 conditions were run. 8 of them are shown above" in text
            assert visit.page.get_by_role("row").filter(has_text="trial 11").count() == 1
        if name == "one failed":
            assert visit.page.locator(".heat:visible .none").inner_text() == "failed"
            assert visit.page.get_by_text("no GPU; found cpu").first.is_visible()
        visit.page.close()
