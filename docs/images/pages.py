"""Photograph pages in a headless Chromium: python docs/images/pages.py runs/demo/report.html heart.html monitor.html

Writes demo-page.png, evaluate-page.png, evaluate-sites.png and monitor-page.png. `fedcal evaluate` writes heart.html, as
docs/evaluate.md says; `fedcal.report.monitor.write_page` writes monitor.html, of the first verdict in docs/monitor.md.
"""

import io
import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))
from browser import Browser  # noqa: E402

demo, heart, monitor = (Path(name).resolve().as_uri() for name in sys.argv[1:4])
SECTION = "document.querySelectorAll('section')[{}].getBoundingClientRect().{}"


def take(browser: Browser, page: str, name: str, width: int, sections: tuple[int, int]) -> None:
    """Photograph from the top of one section (-1: of the page) to the end of another."""
    browser.view(width)
    browser.visit(page)
    browser.value("document.documentElement.style.overflow = 'hidden'")  # no scroll bar
    first, last = sections
    top = 0 if first < 0 else browser.value(SECTION.format(first, "top")) - 24
    bottom = browser.value(SECTION.format(last, "bottom")) + 24
    browser.view(width, height=int(bottom) + 1)
    picture = Image.open(io.BytesIO(browser.picture())).convert("RGB").crop((0, int(top), width, int(bottom)))
    picture.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(HERE / name, optimize=True)


with Browser() as browser:
    take(browser, demo, "demo-page.png", 1280, (-1, 1))
    take(browser, heart, "evaluate-page.png", 1280, (-1, 0))
    take(browser, heart, "evaluate-sites.png", 1280, (1, 1))
    take(browser, monitor, "monitor-page.png", 1280, (-1, 1))
