"""The pages in a real browser: on a desk and on a phone, light and dark, folded and unfolded."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fedcal
from browser import CHROMIUM, Browser
from fedcal.report import write
from fedcal.report.evaluation import write_page
from scores import classes, draw

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

# Everything that sticks out of the window without a scroll bar of its own.
WIDE = """(() => {
  const seen = [...document.querySelectorAll('body *')].filter(e => !e.closest('svg *, .scroll, figure.wide'));
  return seen.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className);
})()"""
# Pairs of texts of one figure that cover each other.
COLLIDING = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
    const boxes = texts.map(t => t.getBoundingClientRect());
    for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
      const [a, b] = [boxes[i], boxes[j]];
      const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (width > 2 && height > 0.4 * Math.min(a.height, b.height))
        found.push(texts[i].textContent + ' | ' + texts[j].textContent);
    }
  }
  return found;
})()"""
SMALLEST = """Math.min(...[...document.querySelectorAll('svg text')]
  .map(t => t.getBoundingClientRect().height).filter(h => h > 0))"""
UNFOLD = "document.querySelectorAll('details').forEach(d => { d.open = true })"
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory, digits_dir: Path) -> dict[str, Path]:
    """A run's page, an evaluation with groups and long names, and one of several classes, before and after."""
    folder = tmp_path_factory.mktemp("pages")
    sites = {"St. Elisabeth University Hospital": draw(300, 1), "north": draw(300, 2, a=3), "c": draw(90, 3, a=-3)}
    sites["few"] = draw(3, 4)
    groups = {name: np.where(np.arange(len(y)) % 2, "female", "male") for name, (_, y) in sites.items()}
    write_page(folder / "two.html", fedcal.evaluate(sites, groups=groups, thresholds=(0.2,)), "3 sites")
    before, after = ([classes(300, 3, scale=scale), classes(200, 3, scale=scale)] for scale in (3, 1))
    write_page(folder / "three.html", fedcal.evaluate(after), "2 sites", fedcal.evaluate(before))
    return {"run": write(digits_dir), "two": folder / "two.html", "three": folder / "three.html"}


def luminance(colour: str) -> float:
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / (3 * 255)


@pytest.mark.parametrize("name", ["run", "two", "three"])
@pytest.mark.parametrize("width", [1280, 420])
def test_a_page_fits_and_can_be_read(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    for dark in (False, True):
        browser.view(width, dark=dark)
        found = browser.visit(pages[name].resolve().as_uri())
        assert found["wide"] <= 0 and found["errors"] == []
        assert [url for url in found["requests"] if not url.startswith("data:")] == [pages[name].resolve().as_uri()]
        paper, ink = (luminance(colour) for colour in browser.value(COLOURS))
        assert (paper < 0.2 and ink > 0.8) if dark else (paper > 0.8 and ink < 0.2)
    assert browser.value("document.querySelector('h1').getBoundingClientRect().bottom") < 500, "the verdict comes first"
    browser.value(UNFOLD)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(WIDE) == []
    assert browser.value(COLLIDING) == []
    assert browser.value(SMALLEST) >= 8
    browser.value("document.querySelectorAll('svg text').forEach(t => { t.style.fontSize = '60px' })")
    assert browser.value(COLLIDING), "the check finds nothing, ever"


def test_tables_on_a_phone_need_no_sideways_scrolling(browser: Browser, pages: dict[str, Path]) -> None:
    browser.view(420)
    browser.visit(pages["two"].resolve().as_uri())
    browser.value(UNFOLD)
    wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert browser.value(wide) == 0
    labels = "getComputedStyle(document.querySelector('table.stack td'), '::before').content"
    assert browser.value(labels) not in ("none", "normal", '""')


@pytest.mark.parametrize("name", ["run", "two"])
def test_what_is_unfolded_is_printed(browser: Browser, pages: dict[str, Path], name: str) -> None:
    shown = "[...document.querySelectorAll('.folded, .folded table')].filter(e => e.getClientRects().length).length"
    browser.view(1280)
    browser.visit(pages[name].resolve().as_uri())
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.value(shown) == 0, "nor is there a heading without anything below it"
    browser.value(UNFOLD)
    assert browser.value(shown) > 1
    browser.call("Emulation.setEmulatedMedia", media="")
