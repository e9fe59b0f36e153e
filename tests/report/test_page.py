"""report.html in a real browser: it renders, and asks nobody for anything."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ninefold.answer.study_facts import OTHER, SAME, WITHIN
from ninefold.report.data.recording import read_recording
from ninefold.report.render.templates import page
from ninefold.report.tree import Report
from tests.report import made
from tests.report.made import built, each_text, failure, recorded, recording, result, sweep

# What those who do not see the page would miss.
UNNAMED = """() => {
  const all = query => [...document.querySelectorAll(query)];
  const levels = all("h1, h2, h3, h4").map(head => +head.tagName[1]);
  const ids = all("[id]:not(svg *)").map(it => it.id);
  return [
    ...levels.filter((level, i) => i && level > levels[i - 1] + 1).map(it => "skips to " + it),
    ...(levels.filter(level => level == 1).length == 1 ? [] : ["not one h1"]),
    ...all("th:not([scope])").map(it => "no scope: " + it.textContent),
    ...all("table tbody tr").filter(it => it.firstElementChild.tagName != "TH").map(() => "no row"),
    ...all("th").filter(it => !it.textContent.trim()).map(() => "empty heading"),
    ...all("svg:not([role=img][aria-label])").map(() => "unnamed picture"),
    ...all(".scroll:not([tabindex][aria-label])").map(() => "unnamed scrolling box"),
    ...all(".word").filter(it => !/[a-z]{2}/.test(it.textContent)).map(() => "no word"),
    ...ids.filter((id, i) => ids.indexOf(id) < i).map(id => "twice: " + id),
  ]; }"""
# Texts of a plot that lie over each other.
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


class Reader:
    """Opens reports as files in the one browser of these tests."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder, self.count = browser, folder, 0

    def open(self, html: str, width: int = 1280) -> Visit:
        self.count += 1
        path = self.folder / f"{self.count}.html"
        path.write_text(html, encoding="utf-8")
        opened = self.browser.new_page(viewport={"width": width, "height": 800})
        visit = Visit(opened, [], [])
        opened.on("console", lambda message: visit.said.append(message.text))
        opened.on("pageerror", lambda error: visit.said.append(str(error)))
        opened.on("request", lambda request: visit.asked.append(request.url))
        opened.goto(path.as_uri())
        visit.asked.remove(path.as_uri())
        opened.evaluate("document.querySelectorAll('details').forEach(it => it.open = true)")
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


def test_it_renders_without_an_error_and_asks_the_network_for_nothing(reader):
    usual = page(recording("nine_way"))
    visit = reader.open(usual)
    title = "convnet on digits, Intel(R) Xeon(R) Processor (2 cores), 2026-11-25"
    assert visit.page.locator("h1").inner_text() == title
    assert visit.page.locator("#answer .matrix td:visible").count() == 9
    assert visit.page.locator("#results .plot circle:visible").count() == 6 * 2
    assert visit.page.locator("#phases .bar:visible").count() == 6
    assert (visit.said, visit.asked) == ([], [])
    visit.page.evaluate("new Image().src = 'https://example.org/'")
    visit.page.evaluate("fetch('https://example.org/').catch(() => 0)")
    assert [said for said in visit.said if "Content Security Policy" in said], visit.said
    assert len(usual.encode()) < 150_000


# The configurations in a plot whose label is neither beside their mark nor above it, whose value is
# not beside it, or which have one of these over a band.
ROWS = """() => {
  const box = it => it.getBoundingClientRect();
  const middle = it => (box(it).top + box(it).bottom) / 2;
  const bands = [...document.querySelectorAll(".forest rect")].map(box);
  const over = it => bands.some(band => band.right > box(it).left && band.left < box(it).right
    && band.bottom > box(it).top && band.top < box(it).bottom);
  return [...document.querySelectorAll(".forest .label")].flatMap(label => {
    const chart = label.nextElementSibling, value = chart.nextElementSibling;
    const off = it => Math.abs(middle(chart) - middle(it)) > 12;
    const apart = off(value) || (off(label) && box(label).bottom > box(chart).top + 1);
    return apart || over(value) || over(label) ? [label.textContent] : []; }); }"""
# What is cut off, or hidden beyond the edge of its box.
CUT = """() => [...document.querySelectorAll("#results table, #results .word")]
  .filter(it => it.getBoundingClientRect().right > innerWidth).map(it => it.textContent)"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("study", ["nine_way", "landmarks3d"])
def test_results_and_plot_fit_the_width_with_labels_and_values_beside_bands(reader, study, width):
    visit = reader.open(page(recording(study)), width=width)
    assert visit.page.locator(".forest .label:visible").count() == 6
    assert visit.page.evaluate(ROWS) == []
    assert visit.page.evaluate(CUT) == []
    assert visit.page.evaluate(OVERLAID) == []
    assert visit.page.evaluate(SIDEWAYS) == 0


def test_each_folded_section_says_what_it_shows_and_small_print_has_two_sentences(reader):
    visit = reader.open(page(recording("nine_way")))
    summaries = visit.page.locator("summary").all_inner_texts()
    assert "A/A test passed: dp does the work of none" in summaries[0]
    assert [text for text in summaries if text.startswith("Every pair")] == [
        "Every pair 12 of 15 differ in time"
    ]
    assert [text for text in summaries if len(text.split()) < 4] == []
    for place in (".plot figcaption", "#results .about"):
        said = visit.page.locator(place).first.inner_text()
        assert len(re.findall(r"\.(?: |$)", said)) <= 3, said  # with the group's conditions
        assert len(said.split()) < 45, said


def test_what_is_open_is_gray_and_hollow(reader):
    visit = reader.open(page(recording("camvid_cpu", "*_turns")))
    found = visit.page.evaluate(
        """() => [...document.querySelectorAll(".forest .label")].map(label => {
          const dot = label.nextElementSibling.querySelector("circle");
          const color = it => getComputedStyle(it).stroke;
          return [label.querySelector(".more").textContent, color(dot.parentElement),
                  getComputedStyle(dot).fill]; })"""
    )
    gray, paper = "rgb(92, 97, 107)", "rgb(255, 255, 255)"
    assert found[0] == ["open", gray, paper]
    assert {(note, stroke) for note, stroke, _ in found[2:4]} == {("slower", "rgb(27, 29, 34)")}
    assert found[4][1:] == [gray, paper]  # what is left out is struck out, and as open


def test_text_from_outside_is_shown_and_does_nothing(reader):
    evil = "</title></script><script>hacked=1</script><img src=x onerror=hacked=1> $x^$ {{7*7}}"
    kept = {"less", "more", "seconds", "accuracy", "memory", "throughput", "named", "good", "open"}
    kept |= {"even", "bad", SAME, WITHIN, OTHER}
    usual = recording("regression")
    spoiled = page(each_text(usual, lambda text: text if text in kept else text + evil))
    for width in (1280, 360):
        opened = reader.open(spoiled, width=width)
        opened.page.wait_for_timeout(50)
        assert opened.page.evaluate("window.hacked") is None
        assert opened.page.locator("img, script").count() == 0
        assert (opened.said, opened.asked) == ([], [])
        assert opened.page.evaluate(SIDEWAYS) == 0
        assert opened.page.title() == f"{usual.title}{evil}"


def shapes(folder: Path) -> Iterator[tuple[str, Report]]:
    """Reports of many kinds, each with its name."""
    for path in sorted(made.ROOT.glob("experiments/*/20*")):
        yield path.parent.name, built(read_recording(path))
    two = [result(seed=seed) for seed in (0, 1)]
    slower = [result("ddp", seed=seed, train_seconds=30.0) for seed in (0, 1)]
    studies = {
        "one cell": two[:1],
        "all failed": [failure("none", "fp32"), failure("ddp", "fp32")],
        "one failed": [*two, *slower, failure("ddp", "autocast")],
        "no baseline": slower,
        "two groups": [*two, *slower, result(batch_size=128)],
        "a search": [result(batch_size=2**n, epochs=3) for n in range(12)],
    }
    for name, results in studies.items():
        yield name, built(recorded(sweep(folder / name, *results)))
    usual = recording("nine_way")
    yield "no runs", replace(usual, groups=[], runs=[], notes=[])
    ours, long = (SAME, WITHIN, OTHER), "averyverylongword" * 9
    yield (
        "long words",
        each_text(usual, lambda text: text + long * (" " in text and text not in ours)),
    )


@pytest.mark.slow
def test_every_shape_of_report_renders_and_fits_a_phone(reader, tmp_path):
    for name, report in shapes(tmp_path):
        visit = reader.open(page(report), width=360)
        assert (visit.said, visit.asked) == ([], []), name
        assert visit.page.evaluate(SIDEWAYS) == 0, name
        assert visit.page.evaluate(OVERLAID) == [], name
        assert visit.page.evaluate(UNNAMED) == [], name
        text = visit.page.locator("body").inner_text()
        assert report.answer.lead in text, name
        assert not {"None", "nan", "Undefined"} & set(text.split()) - {"None,"}, name
        if name == "a search":
            assert visit.page.locator("#answer tbody tr:visible").count() == 12
        visit.page.close()
