"""The documentation site builds strictly, its links lead somewhere, and a real browser has nothing to complain about."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser import CHROMIUM, Browser

pytest.importorskip("mkdocs", reason="needs the documentation's packages: pip install 'fedcal[docs]'")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does, in a process of its own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    found = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return folder


class Page(HTMLParser):
    """Addresses and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append((tag, value))
            if name in ("id", "name") and value:
                self.anchors.add(value)


def test_links_pictures_and_anchors_exist_and_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 40
    broken = []
    for path, page in pages.items():
        for tag, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if tag != "a":  # a script, style or picture of another host
                    broken.append(f"{path.name}: {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].anchors if target in pages else {unquote(parts.fragment)}
            if not target.is_file() or (tag == "a" and unquote(parts.fragment) not in known):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on a port of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_has_nothing_to_complain_about(site: Path, address: str) -> None:
    """Every page in light at 1280 pixels; on a phone, and in dark, those of each kind."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    with Browser() as browser:
        for width, dark in ((1280, False), (420, True)):
            browser.view(width, dark=dark)
            for page in pages:
                found = browser.visit(f"{address}/{page}")
                assert found["errors"] == [] and found["images"] == [], (page, width)
                assert found["wide"] <= 0, f"{page} is {found['wide']} pixels too wide for {width}"
                assert [url for url in found["requests"] if not url.startswith((address, "data:"))] == [], page
                shade = sum(int(part) for part in found["background"].strip("rgba()").split(",")[:3])
                assert (shade < 200) == dark, f"{page}: {found['background']}"


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_search_works_from_a_folder(site: Path) -> None:
    """Without a server, in a page of a subfolder: pages opened as files may not start the worker that searches."""
    look = """(() => {
      const input = document.querySelector(".md-search__input");
      input.focus();
      input.value = "temperature";
      input.dispatchEvent(new Event("keyup"));
      return document.querySelectorAll(".md-search-result__item").length;
    })()"""
    with Browser() as browser:
        browser.view(1280)
        found = browser.visit((site / "tutorials" / "paper.html").as_uri())
        assert found["errors"] == [] and all(url.startswith(("file:", "data:")) for url in found["requests"])
        until = time.monotonic() + 20
        while not (hits := browser.value(look)) and time.monotonic() < until:
            time.sleep(0.2)
        assert hits > 3
