from __future__ import annotations

import copy
import io

from rich.console import Console

from fedcal.report import latex, markdown, tables, terminal
from fedcal.report.tables import COLUMNS, lowest, percent, rows, size


def column(title):
    return next(i for i, c in enumerate(COLUMNS) if c.title == title)


def shown(table, width=200):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_every_method_and_its_numbers_are_in_every_table(digits):
    texts = [shown(terminal(digits)), markdown(digits), latex(digits)]
    for name, method in digits["methods"].items():
        for text in texts:
            line = next(x for x in text.splitlines() if x.strip(" |").split(" ")[0] == name)
            for value in (method["global"]["accuracy"], method["global"]["ece"], method["own"]["ece"]):
                assert f"{100 * value:.1f}" in line
            assert f"{method['global']['nll']:.3f}" in line


def test_interval_floor_and_worst_client(digits):
    g = digits["methods"]["fedcal"]["global"]
    row = next(r for r in rows(digits) if r.method == "fedcal")
    assert row.cells[column("Global ECE %")].endswith(f"[{100 * g['ece_low']:.1f}, {100 * g['ece_high']:.1f}]")
    assert row.cells[column("Floor %")] == f"{100 * g['ece_floor']:.1f}"
    worst = digits["methods"]["fedcal"]["local"]["worst_ece"]
    assert row.cells[column("Local ECE % mean / worst")].endswith(f"/ {100 * worst:.1f}")


def test_best_leaves_out_the_method_that_sees_pooled_data(digits):
    changed = copy.deepcopy(digits)
    changed["methods"]["val-ts"]["global"]["ece"] = 0.0
    changed["methods"]["ens"]["global"]["ece"] = 0.001
    assert lowest(changed) == "ens"
    assert [r.method for r in rows(changed) if r.best] == ["ens"]
    assert markdown(changed).count("**") == 2
    assert latex(changed).count(r"\textbf{0.1 [") == 1


def test_the_note_names_the_reference_only_where_it_was_run(digits, heart):
    assert "val-ts looks at pooled calibration data" in tables.note(digits)
    assert "val-ts" not in tables.note(heart)


def test_undefined_values_are_dashes(heart):
    changed = copy.deepcopy(heart)
    scores = changed["methods"]["ens"]["global"]
    scores.update(dict.fromkeys(scores, None))
    cells = next(r for r in rows(changed) if r.method == "ens").cells
    assert cells[column("Top-3 %")] == cells[column("Global ECE %")] == cells[column("NLL")] == "–"
    assert " & -- & " in latex(changed)
    assert "ens" in shown(terminal(changed))


def test_odd_names_are_escaped(heart):
    changed = copy.deepcopy(heart)
    changed["methods"]["a_b|c&[bold]"] = changed["methods"].pop("ens")
    assert r"a\_b\|c&\[bold\]" in markdown(changed)
    assert r"a\_b|c\&[bold]" in latex(changed)
    assert "a_b|c&[bold]" in shown(terminal(changed))


def test_latex_is_a_booktabs_table(heart):
    lines = latex(heart).splitlines()
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert rule in lines
    body = [x for x in lines if x.endswith(r"\\")]
    assert len(body) == 1 + len(heart["methods"])
    assert {x.count("&") for x in body} == {len(COLUMNS)}
    assert not any("%" in x.replace(r"\%", "") for x in lines)


def test_terminal_fits_80_columns_uncut(digits):
    assert "…" not in shown(terminal(digits), width=80)


def test_digits_follow_the_test_set(digits, stress):
    assert (tables.digits(digits), tables.digits(stress)) == (1, 2)


def test_formats():
    assert [size(x) for x in (None, 0, 8, 999, 22_056, 1_234_567)] == [
        "–",
        "0 B",
        "8 B",
        "999 B",
        "22.1 kB",
        "1.2 MB",
    ]
    assert [percent(None), percent(0.1234), percent(0.1234, 2)] == ["–", "12.3", "12.34"]
