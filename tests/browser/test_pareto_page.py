"""The Pareto page in a real browser: it draws, in light and dark, at phone width, without a network."""

import re
from pathlib import Path

import pytest

from tests.browser.conftest import Browser
from tokenmill.workloads.curve_page import curve_page
from tokenmill.workloads.curves import CurvePoint, published_points

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("processes")]

POINTS = [
    CurvePoint("plain", "measured", c, tput, speed, tput / 5, ttft, None, 1e6 / tput, 5e6 / tput, 40 / tput)
    for c, tput, speed, ttft in (
        (1, 100.0, 50.0, 0.05),
        (4, 350.0, 44.0, 0.1),
        (16, 340.0, 20.0, 0.2),
        (64, 900.0, 9.0, 2.0),
    )
]


@pytest.fixture
def page(tmp_path: Path) -> str:
    path = tmp_path / "pareto.html"
    about = {"note": "</script><b>not markup</b>"}
    path.write_text(curve_page(POINTS, title="A <test> page", about=about, ttft_bound_s=1.0), encoding="utf-8")
    return path.as_uri()


def _is_dark(color: tuple[int, int, int]) -> bool:
    return sum(color) < 200


def test_page_draws_in_light_and_dark(browser: Browser, page: str) -> None:
    light = browser.screenshot(page, "light")
    dark = browser.screenshot(page, "dark", dark=True)
    background = light.at(2, 2), dark.at(2, 2)
    assert not _is_dark(background[0]) and _is_dark(background[1])
    for image in (light, dark):
        assert image.colors()[9, 105, 218] > 100  # the curve's blue: line and points
        common = image.colors().most_common(1)[0][1]
        assert common < 0.995 * image.width * image.height


def test_frontier_table_and_controls(browser: Browser, page: str) -> None:
    text = browser.dump(page)
    assert "<title>A &lt;test&gt; page</title>" in text
    assert re.search(r'<body data-drawn="2">', text)  # the frontier, and the points beaten or beyond the bound
    body = text.split("<tbody>")[1]
    rows = re.findall(r"<tr( class=\"dim\")?>", body.split("</tbody>")[0])
    assert rows == ["", "", ' class="dim"', ' class="dim"']  # 16 is beaten, 64 has a TTFT of 2 s
    assert "<b>not markup</b>" not in body.split('<pre id="about">')[0]
    assert "<canvas" in text and "tokens/s per device, total" in text


def test_page_fits_a_phone(browser: Browser, page: str) -> None:
    image = browser.screenshot(page, "phone", width=500, height=900)
    assert image.width == 500 and image.colors()[9, 105, 218] > 100


def test_page_asks_no_network(page: str) -> None:
    text = Path(page.removeprefix("file://")).read_text()
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest", text.split('id="data"')[0])
    assert "Permission is hereby granted" in text  # the plot library's licence goes with it


def test_two_scenarios_are_never_on_one_axis(browser: Browser, tmp_path: Path) -> None:
    """Cached input counts in agentic figures, which are 10 to 20 x the others."""
    path = tmp_path / "both.html"
    points = published_points("V4-Pro")
    assert {point.scenario for point in points} >= {"fixed", "agentic"}
    path.write_text(curve_page(points, title="x", about={}, ttft_bound_s=None), encoding="utf-8")
    text = browser.dump(path.as_uri())
    shown = text.split("<tbody>")[1].split("</tbody>")[0].count("<tr")
    assert shown == sum(1 for point in points if point.scenario == points[0].scenario) < len(points)
    assert not re.search(r'id="scenarioLabel" hidden', text)
