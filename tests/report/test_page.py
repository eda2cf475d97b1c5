from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from fedcal.base.store import write_json
from fedcal.report import save_all, write
from fedcal.report.page import render
from fedcal.report.results import Run


class Outline(HTMLParser):
    """Open tags must close; remembers ids, references and images without a text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.unnamed = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        attributes = dict(attrs)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.unnamed += tag == "svg" and not attributes.get("aria-label")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def html(digits_run):
    return render(digits_run)


@pytest.fixture
def odd_run(run_dir, heart):
    """Names that would break a page, and no rounds."""
    heart["methods"]["<b>&"] = heart["methods"].pop("ens")
    del heart["methods"]["fed-ts"]
    heart["config"]["data"] = "<script>"
    write_json(run_dir / "results.json", heart)
    (run_dir / "rounds.jsonl").write_text("")
    return run_dir


def test_the_same_run_gives_the_same_bytes(odd_run):
    before = {path.name for path in odd_run.iterdir()}
    first = write(odd_run).read_bytes()
    assert write(odd_run).read_bytes() == first
    assert {path.name for path in odd_run.iterdir()} == before | {"report.html"}


def test_names_are_escaped_and_no_rounds_means_no_training_section(odd_run):
    html = write(odd_run).read_text(encoding="utf-8")
    assert "<script" not in html and "<b>&<" not in html
    assert "&lt;b&gt;&amp;" in html
    assert "<summary>Training</summary>" not in html


def test_the_page_needs_nothing_from_outside(html):
    addresses = re.findall(r'(\S+)="?https?://', html)
    assert set(addresses) <= {"xmlns:xlink", "xmlns"}
    assert not re.search(r"<script|<link|@import|<iframe|url\((?!#)", html)


def test_the_page_is_well_formed_and_named(html, digits):
    outline = Outline(html)
    assert outline.open == []
    assert outline.unnamed == 0
    assert len(outline.ids) == len(set(outline.ids))
    used = set(re.findall(r"url\(#([^)]+)\)|xlink:href=\"#([^\"]+)\"", html))
    assert {a or b for a, b in used} <= set(outline.ids)
    for name in digits["methods"]:
        assert f'<th scope="row">{name}</th>' in html


def test_the_story_comes_first_and_the_rest_is_folded_away(html):
    story, details = html.split("<h2>Details</h2>")
    assert html.count("<h1") == 1 and story.count("<figure") == 3 + 2  # panels; accuracy and ECE at the clients
    assert re.findall(r"<h2>(.*?)</h2>", story)[-1] == "What to do next" and "scalers/fedcal-plus.safetensors" in story
    assert re.sub(r"<details>.*?</details>", "", details, flags=re.DOTALL).count("<") == 4  # the closing tags
    for text in ("Settings", "All methods in numbers", "Reliability diagrams of all methods", "Glossary"):
        assert f"<summary>{text}</summary>" in details


def test_figures_take_their_colours_from_the_theme(html):
    figures = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert "var(--accent)" in figures
    assert set(re.findall(r"#[0-9a-f]{6}\b(?!\"|\))", figures)) <= {"#fefefe"}


def test_many_clients_and_classes(many, rounds):
    html = render(Run(many, rounds))
    assert Outline(html).open == []
    assert "the numbers are counts" not in html
    for client in many["data"]["clients"]:
        assert html.count(f'<th scope="row">{client}</th>') == 2  # before and after; all methods
    skew = next(svg for svg in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL) if "Heat map" in svg)
    assert skew.count("<text") < 60, "a label for every client, class or cell does not fit"


def test_figure_files_have_plain_names(run_dir, tmp_path, heart):
    paths = save_all(run_dir, tmp_path / "figures", "svg")
    expected = {f"reliability-{name}" for name in heart["methods"]} | {"clients-local", "clients-own", "ece", "skew"}
    expected |= {f"training-{name}" for name in ("loss", "accuracy", "ece")}
    assert {path.name for path in paths} == {f"{name}.svg" for name in expected}
    assert "Training loss" in next(path for path in paths if path.stem == "training-loss").read_text()
