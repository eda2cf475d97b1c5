"""The page and the tables of an evaluation: what they show is in the JSON; the same evaluation gives the same bytes."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

import fedcal
from fedcal import FedCalError
from fedcal.report import evaluation as pages
from fedcal.report.evaluation import render, write_page
from fedcal.report.evaluation_figures import plot_forest
from fedcal.report.evaluation_tables import as_latex, as_markdown, cell, save_tables
from scores import classes, draw


@pytest.fixture(scope="module")
def result():
    sites = {"a": draw(300, 1), "<b>": draw(300, 2, a=0.9), "c": draw(3, 3)}
    groups = {name: np.where(np.arange(len(y)) % 2, "odd", "even") for name, (_, y) in sites.items()}
    return fedcal.evaluate(sites, groups=groups, thresholds=(0.2,))


def numbers_in(value):
    """Every number of the JSON."""
    if isinstance(value, dict):
        return {x for part in value.values() for x in numbers_in(part)}
    if isinstance(value, list):
        return {x for part in value for x in numbers_in(part)}
    return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()


def test_the_page_shows_the_plots_and_nothing_that_runs(result):
    page = render(result, "3 sites")
    assert (
        result.verdict[0] in page
        and "<script" not in page
        and "<b>" not in re.sub(r"<b>[\d.–-]+(\xa0%)?</b>", "", page)
    )
    assert "Decision curve of all sites" in page and "Forest" not in page and "&lt;b&gt;" in page
    assert page.count("<svg") == 1 + 4 + 1 + 3  # all sites, forests, decisions, a site and two groups; two are hidden
    assert page == render(result, "3 sites")


def test_a_site_is_hidden_or_has_no_value(result):
    """A second site is hidden so that c, with three samples, cannot be subtracted; "one" has many samples, of one class."""
    assert render(result, "3 sites").count(">hidden</text>") == 4 * sum(
        bool(one.get("hidden")) for one in result.sites.values()
    )
    scores, labels = draw(300, 1)
    of_one = fedcal.evaluate({"a": (scores, labels), "one": (scores[labels == 1], labels[labels == 1])})
    page = render(of_one, "2 sites")
    assert ">no value</text>" in page and ">too few samples</text>" not in page


@pytest.mark.parametrize("name", [r"$\frac$", "$0-$50k", "income $"])
def test_names_are_no_formulas(name):
    sites = {name: draw(100, 1), "b": draw(100, 2)}
    page = render(fedcal.evaluate(sites, groups={site: np.resize([name, "x"], 100) for site in sites}), "2 sites")
    assert page.count(f">{name}</text>") == 4 * 2 + 2  # site and group: in four forest plots, and on their own


def test_names_in_letters_that_the_plots_font_lacks():
    page = render(fedcal.evaluate({"北京": draw(100, 1), "b": draw(100, 2)}), "2 sites")  # a warning is an error here
    assert page.count(">北京</text>") == 4 + 1


@pytest.mark.parametrize(("low", "high"), [(0.58, 1.75), (0.9, 1.1), (0.4, 2.4), (0.3, 1.7), (0.02, 3.0)])
def test_a_logarithmic_scale_has_several_ticks(low, high):
    axes = plot_forest([("a", {"value": 1.0, "low": low, "high": high})], "O/E ratio", 1.0, log=True).axes[0]
    ticks = [float(tick.get_text()) for tick in axes.get_xticklabels()]
    assert 2 <= len(ticks) <= 7 and all(low <= tick <= high for tick in ticks)


def test_every_figure_of_the_page_is_in_the_json(result):
    page, known = render(result, "3 sites"), numbers_in(result.to_json())
    text = re.sub(r"<(svg|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    shown = re.findall(r"-?\d+\.\d{2,3}\b", text)
    rounded = {f"{x:.{d}f}" for x in known for d in (2, 3)}
    assert len(shown) > 300 and [x for x in shown if x not in rounded] == []


def test_more_classes_and_before(tmp_path):
    before, after = fedcal.evaluate([classes(300, 3, scale=3)]), fedcal.evaluate([classes(300, 3)])
    write_page(tmp_path / "x.html", after, "a site", before)
    page = (tmp_path / "x.html").read_text()
    assert "before calibration" in page and "Each class against the rest" in page and "Decision curve" not in page


def test_a_group_named_like_a_site_has_its_own_plot_before_calibration():
    sites = {"a": draw(300, 1), "b": draw(300, 2)}
    groups = {name: np.resize(["a", "x"], 300) for name in sites}
    after, before = (fedcal.evaluate(sites, groups=groups) for _ in range(2))
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "plot_calibration", lambda one, name, earlier, top: drawn.append((one, earlier)))
        patch.setattr(pages, "inline", lambda *_: "")
        pages._sites(after, before, False)
    assert len(drawn) == 4 and all(one["n"] == earlier["n"] and one["ici"] == earlier["ici"] for one, earlier in drawn)


def test_tables(result, tmp_path):
    files = save_tables(result, tmp_path / "tables")
    assert [path.suffix for path in files] == [".md", ".tex", ".csv"]
    text = as_markdown(result)
    assert (
        f"| AUROC | {cell(result.pooled['auroc'])} |" in text and "Spread over sites" not in text
    )  # one site is shown
    assert r"| \<b> |" in text and r"\textless{}b\textgreater{} &" in as_latex(result)
    assert r"\toprule" in as_latex(result) and "All sites" in as_latex(result)
    rows = list(csv.DictReader(files[2].read_text().splitlines()))
    one = next(row for row in rows if (row["set"], row["measure"]) == ("pooled", "ici"))
    assert [float(one[end]) for end in ("value", "low", "high")] == list(result.pooled["ici"].values())
    assert {row["name"] for row in rows if row["set"] == "site"} == {"a", "<b>", "c"}
    with pytest.raises(FedCalError, match=r"not '\.pdf'"):
        save_tables(result, Path("x.pdf"))


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("n", [1, 4, 12])
def test_few_samples_hide_what_a_page_shows(n, k, tmp_path):
    """Of a page with hidden decisions, tests and counts the rest is written."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % k
    result = fedcal.evaluate([(rng.normal(size=(n, k)), labels)], min_count=5)
    write_page(tmp_path / "page.html", result, "few")
    page = (tmp_path / "page.html").read_text()
    assert "None samples" not in page and "n = None" not in page
