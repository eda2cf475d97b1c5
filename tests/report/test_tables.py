from __future__ import annotations

import io

from rich.console import Console

from fedcal.report import latex, markdown, tables, terminal
from fedcal.report.tables import COLUMNS, lowest, rows


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
    g = digits["methods"]["fedcal-plus"]["global"]
    row = next(r for r in rows(digits) if r.method == "fedcal-plus")
    assert row.cells[column("Global ECE %")].endswith(f"[{100 * g['ece_low']:.1f}, {100 * g['ece_high']:.1f}]")
    assert row.cells[column("Floor %")] == f"{100 * g['ece_floor']:.1f}"
    worst = digits["methods"]["fedcal-plus"]["local"]["worst_ece"]
    assert row.cells[column("Local ECE % mean / worst")].endswith(f"/ {100 * worst:.1f}")


def test_best_leaves_out_the_method_that_sees_pooled_data(digits):
    digits["methods"]["val-ts"]["global"]["ece"] = 0.0
    digits["methods"]["ens"]["global"]["ece"] = 0.001
    for method in digits["methods"].values():
        method["global"]["ece_against"]["ens"] = [0.03, 0.01, 0.05]
    assert lowest(digits) == tables.best(digits) == "ens"
    assert [r.method for r in rows(digits) if r.best] == ["ens"]
    assert markdown(digits).count("**") == 2
    assert latex(digits).count(r"\textbf{0.1 [") == 1
    assert tables.note(digits).startswith("Bold: the lowest global ECE")


def test_nothing_is_bold_where_the_lowest_is_not_proven(digits):
    digits["methods"]["ens"]["global"]["ece"] = 0.001
    for name, method in digits["methods"].items():  # fedcal-plus alone may be as good
        method["global"]["ece_against"]["ens"] = [0.03, -0.01 if name == "fedcal-plus" else 0.01, 0.05]
    assert tables.unproven(digits) == ["fedcal-plus"] and tables.best(digits) is None
    assert not any(r.best for r in rows(digits))
    assert "**" not in markdown(digits) and "textbf" not in latex(digits)
    assert "Lowest global ECE: ens, but these samples do not prove that it is better than fedcal-plus" in tables.note(
        digits
    )


def test_marks_follow_the_intervals_where_no_difference_was_measured(digits):
    for method in digits["methods"].values():
        method["global"].update(ece=0.1, ece_low=0.08, ece_high=0.12, ece_against={})
    digits["methods"]["ens"]["global"].update(ece=0.02, ece_low=0.01, ece_high=0.03)
    assert tables.best(digits) == "ens"
    digits["methods"]["fedcal-plus"]["global"].update(ece=0.04, ece_low=0.02, ece_high=0.06)
    assert tables.best(digits) is None and tables.unproven(digits) == ["fedcal-plus"]


def test_top3_needs_four_classes(digits, heart):
    assert "Top-3" in markdown(digits) and "Top-3" in latex(digits)
    assert not any("Top-3" in text for text in (markdown(heart), latex(heart), shown(terminal(heart))))


def test_what_a_client_sends_is_all_rounds(digits):
    cost = digits["methods"]["fed-ts"]["cost"]
    assert cost["bytes_up_total"] == cost["rounds"] * cost["bytes_up"] > cost["bytes_up"]
    row = next(r for r in rows(digits) if r.method == "fed-ts")
    assert row.cells[column("Sent in all")] == f"{cost['bytes_up_total']} B"
    assert "all rounds" in tables.note(digits)


def test_the_note_names_the_reference_only_where_it_was_run(digits, heart):
    assert "val-ts, which looks at pooled calibration data" in tables.note(digits)
    assert "val-ts" not in tables.note(heart)


def test_undefined_values_are_dashes(heart):
    scores = heart["methods"]["ens"]["global"]
    scores.update(dict.fromkeys(scores.keys() - {"n", "ece_against"}, None))
    cells = next(r for r in rows(heart) if r.method == "ens").cells
    titles = [c.title for c in tables.columns(heart)]
    assert cells[titles.index("Global ECE %")] == cells[titles.index("NLL")] == "–"
    assert " & -- & " in latex(heart)
    assert "ens" in shown(terminal(heart))


def test_odd_names_are_escaped(heart):
    heart["methods"]["a_b|c&[bold]"] = heart["methods"].pop("ens")
    assert r"a\_b\|c&\[bold\]" in markdown(heart)
    assert r"a\_b\textbar{}c\&[bold]" in latex(heart)
    assert "a_b|c&[bold]" in shown(terminal(heart))


def test_latex_is_a_booktabs_table(heart):
    lines = latex(heart).splitlines()
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert rule in lines
    body = [x for x in lines if x.endswith(r"\\")]
    assert len(body) == 1 + len(heart["methods"])
    assert {x.count("&") for x in body} == {len(tables.columns(heart))}
    assert not any("%" in x.replace(r"\%", "") for x in lines)


def test_terminal_fits_80_columns_uncut(digits):
    assert "…" not in shown(terminal(digits), width=80)


def test_digits_follow_the_test_set(heart, many):
    assert (tables.digits(heart), tables.digits(many)) == (1, 2)
