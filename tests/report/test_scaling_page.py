"""The scaling section of the page, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninefold import report
from tests.report.test_page import OVERLAID, SIDEWAYS, UNNAMED, Reader, browser, reader
from tests.report.test_scaling import planted

__all__ = ["browser", "reader"]  # fixtures


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_it_fits_each_screen_and_asks_the_network_for_nothing(
    reader: Reader, tmp_path: Path, width: int, scheme: str
) -> None:
    report.write(planted(tmp_path, cores=2, counts="1,2,4,8"))
    html = (tmp_path / "report" / "report.html").read_text()
    visit = reader.open(html, width=width, color_scheme=scheme)
    assert (visit.said, visit.asked) == ([], [])
    assert visit.page.evaluate(SIDEWAYS) == 0
    assert visit.page.evaluate(OVERLAID) == []
    assert visit.page.locator("#answer .plot svg:visible").count() == 1
    assert visit.page.evaluate(UNNAMED) == []
    section = visit.page.locator("#scaling")
    assert section.get_by_role("row").filter(has_text="oversubscribed").count() == 2
