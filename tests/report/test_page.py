from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser

import pytest

from fedcal.errors import FedCalError
from fedcal.report import load, save_all, write
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
def html(digits, rounds):
    return render(Run(digits, rounds))


@pytest.fixture(scope="module")
def odd_run(heart, write_run, tmp_path_factory):
    """Names that would break a page, and no rounds."""
    odd = copy.deepcopy(heart)
    odd["methods"]["<b>&"] = odd["methods"].pop("ens")
    del odd["methods"]["fedcal"]
    odd["config"]["data"] = "<script>"
    return write_run(tmp_path_factory.mktemp("odd"), odd, [])


def test_the_same_run_gives_the_same_bytes(odd_run):
    first = write(odd_run).read_bytes()
    assert write(odd_run).read_bytes() == first
    files = sorted(p.name for p in odd_run.iterdir())
    assert files == ["config.json", "report.html", "results.json", "rounds.jsonl"]


def test_names_are_escaped_and_no_rounds_means_no_training_section(odd_run):
    html = (odd_run / "report.html").read_text(encoding="utf-8")
    assert "<script" not in html and "<b>&<" not in html
    assert "&lt;b&gt;&amp;" in html
    assert "<h2>Training</h2>" not in html


def test_the_page_needs_nothing_from_outside(html):
    addresses = re.findall(r'(\S+)="?https?://', html)
    assert set(addresses) <= {"xmlns:xlink", "xmlns"}
    assert not re.search(r"<script|<link|@import|<iframe|url\((?!#)", html)
    assert len(html) < 1_500_000


def test_the_page_is_well_formed_and_named(html, digits):
    outline = Outline(html)
    assert outline.open == []
    assert outline.unnamed == 0
    assert len(outline.ids) == len(set(outline.ids))
    used = set(re.findall(r"url\(#([^)]+)\)|xlink:href=\"#([^\"]+)\"", html))
    assert {a or b for a, b in used} <= set(outline.ids)
    for name in digits["methods"]:
        assert f'<th scope="row">{name}</th>' in html


def test_figures_take_their_colours_from_the_theme(html):
    figures = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert "var(--accent)" in figures
    assert set(re.findall(r"#[0-9a-f]{6}\b(?!\"|\))", figures)) <= {"#fefefe"}


def test_size_with_many_clients_and_classes(stress, rounds):
    assert len(render(Run(stress, rounds))) < 400_000  # two methods of nine


def test_the_references_come_first(run_dir, digits):
    _change(run_dir, methods={name: digits["methods"][name] for name in ("ens", "val-ts", "fedcal", "uncal")})
    assert list(load(run_dir).results["methods"]) == ["uncal", "val-ts", "ens", "fedcal"]


def _change(run, **fields):
    path = run / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "results.json").unlink(), "results.json: no such file"),
        (lambda run: (run / "rounds.jsonl").unlink(), "rounds.jsonl: no such file"),
        (lambda run: (run / "results.json").write_text('{"schema": 1, "met'), "results.json: not valid JSON"),
        (lambda run: (run / "results.json").write_text("[1]"), "not a FedCal result"),
        (lambda run: (run / "results.json").write_bytes(b"\xff\xfe"), "results.json: cannot be read"),
        (lambda run: _change(run, schema=7), "results.json: schema 7, this fedcal reads 1: "),
        (lambda run: _change(run, methods={}), "'methods' is missing or empty"),
        (lambda run: _change(run, methods={"ens": {"global": {}}}), "methods.ens.global has no"),
        (
            lambda run: (run / "rounds.jsonl").write_text('{"round": 1'),
            "rounds.jsonl, line 1: not valid JSON",
        ),
        (lambda run: (run / "rounds.jsonl").write_text('{"round": 1}'), "rounds.jsonl, line 1: no loss"),
        (lambda run: (run / "rounds.jsonl").write_text("3"), "rounds.jsonl, line 1: not a round"),
    ],
)
def test_bad_files_are_named_in_one_line(run_dir, spoil, said):
    spoil(run_dir)
    with pytest.raises(FedCalError) as error:
        load(run_dir)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_figure_files_have_plain_names(run_dir, tmp_path):
    names = [path.name for path in save_all(run_dir, tmp_path / "figures", "svg")]
    assert {"training-loss.svg", "training-accuracy.svg", "training-ece.svg"} <= set(names)
    assert all(re.fullmatch(r"[a-z0-9-]+\.svg", name) for name in names)
