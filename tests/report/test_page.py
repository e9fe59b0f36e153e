"""report.html in a real browser: it renders, asks nobody for anything and can be used by anyone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ninefold.report.answer.tree import Report
from ninefold.report.data.recording import read_recording
from ninefold.report.render.templates import page
from tests.report import test_report
from tests.report.test_report import built, each_text, failure, recorded, recording, result, sweep

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
    ...all(".word, .chips dt").filter(it => !/[a-z]{2}/.test(it.textContent)).map(() => "no word"),
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
PAPER = "+getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"
TOO_WIDE = """() => [...document.querySelectorAll(".scroll")]
  .filter(box => box.scrollWidth > box.clientWidth).map(box => box.ariaLabel)"""


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

    def open(
        self, html: str, width: int = 1280, height: int = 800, unfold: bool = True,
        **how: Any,
    ) -> Visit:  # fmt: skip
        self.count += 1
        path = self.folder / f"{self.count}.html"
        path.write_text(html, encoding="utf-8")
        opened = self.browser.new_page(viewport={"width": width, "height": height}, **how)
        visit = Visit(opened, [], [])
        opened.on("console", lambda message: visit.said.append(message.text))
        opened.on("pageerror", lambda error: visit.said.append(str(error)))
        opened.on("request", lambda request: visit.asked.append(request.url))
        opened.goto(path.as_uri())
        visit.asked.remove(path.as_uri())
        if unfold:
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


@pytest.fixture(scope="module")
def usual() -> str:
    return page(recording("nine_way"))


def bottom(visit: Visit, query: str) -> float:
    box = visit.page.locator(query).first.bounding_box()
    assert box is not None, query
    return box["y"] + box["height"]


def test_it_renders_without_an_error_and_asks_the_network_for_nothing(
    reader: Reader, usual: str
) -> None:
    visit = reader.open(usual)
    assert visit.page.locator("h1").inner_text() == "nine_way"
    assert visit.page.locator("#answer .plot circle:visible").count() == 6
    assert visit.page.locator("#phases .bar:visible").count() == 6
    assert visit.page.locator("#curves polyline:visible").count() == 6 * 5 + 5
    assert (visit.said, visit.asked) == ([], [])
    visit.page.evaluate("new Image().src = 'https://example.org/'")
    visit.page.evaluate("fetch('https://example.org/').catch(() => 0)")
    assert [said for said in visit.said if "Content Security Policy" in said], visit.said
    assert len(usual.encode()) < 150_000


def test_the_answer_its_picture_and_its_table_come_first_in_this_order(
    reader: Reader, usual: str
) -> None:
    visit = reader.open(usual)
    ends = [bottom(visit, query) for query in (".question", ".lead", ".chips", "#answer .plot svg")]
    assert ends == sorted(ends)
    assert ends[-1] < 800, "the picture is seen without scrolling"
    assert visit.page.locator("h2").all_inner_texts()[:4] == [
        "Train with it", "Results", "Why", "Keep in mind",
    ]  # fmt: skip
    assert visit.page.locator(".named th").all_inner_texts() == ["none, fp32"]
    assert visit.page.locator(".out .more").first.inner_text() == "scaler not needed"
    assert visit.page.evaluate(TOO_WIDE) == []
    phone = reader.open(usual, width=390, height=844)
    assert bottom(phone, "#answer .plot svg") < 844


def test_an_answer_that_is_not_decided_says_what_would_make_it_surer(reader: Reader) -> None:
    shown = reader.open(page(recording("camvid_cpu", "*_turns"))).page
    assert shown.locator("#answer h2").all_inner_texts() == ["To be surer"]
    assert "study.time_budget=" in shown.locator("#surer").inner_text()
    assert shown.locator(".named").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(reader: Reader, usual: str, scheme: str) -> None:
    visit = reader.open(usual, color_scheme=scheme)
    seen, pale = visit.page.evaluate(PALE)
    assert seen > 200
    assert pale == []
    assert (visit.page.evaluate(PAPER) < 100) == (scheme == "dark")


def test_print_holds_everything_on_white(reader: Reader, usual: str) -> None:
    visit = reader.open(usual, unfold=False, color_scheme="dark")
    visit.page.emulate_media(media="print")
    assert visit.page.get_by_text("timing/0/none-fp32").is_visible()  # in what is folded away
    assert visit.page.evaluate(PAPER) > 240


def test_details_are_folded_and_open_without_scripts(reader: Reader, usual: str) -> None:
    visit = reader.open(usual, unfold=False, java_script_enabled=False)
    assert not visit.page.get_by_text("timing/0/none-fp32").is_visible()
    visit.page.get_by_text("Runs", exact=True).click()
    assert visit.page.get_by_text("timing/0/none-fp32").is_visible()
    assert "<script" not in usual


def test_text_from_outside_is_shown_and_does_nothing(reader: Reader) -> None:
    evil = "</title></script><script>hacked=1</script><img src=x onerror=hacked=1> $x^$ {{7*7}}"
    kept = {"less", "more", "seconds", "accuracy", "memory", "throughput", "named", "good", "open"}
    kept |= {"even", "bad"}
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
    for path in sorted(test_report.ROOT.glob("experiments/*/20*")):
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
    yield (
        "long words",
        each_text(usual, lambda text: text + "averyverylongword" * 9 * (" " in text)),
    )


@pytest.mark.slow
def test_every_shape_of_report_renders_and_fits_a_phone(reader: Reader, tmp_path: Path) -> None:
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
            assert "12 conditions were run. 8 of them are shown above" in text
        visit.page.close()
