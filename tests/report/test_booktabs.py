from __future__ import annotations

from fedcal.report.booktabs import Bold, escape_latex, latex_table


def test_a_table_line_by_line():
    text = latex_table(
        ["method", "ECE, %"], [["a_b", Bold("1.2 ± 0.1")], ["β = 0.5", None]], title="Test", note="100 %"
    )
    assert text.splitlines() == [
        "% Test",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"method & ECE, \% \\",
        r"\midrule",
        r"a\_b & \textbf{1.2 $\pm$ 0.1} \\",
        r"$\beta$ = 0.5 &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip{\footnotesize 100 \%}",
    ]
    assert text.endswith("\n")


def test_title_and_note_may_be_left_out():
    lines = latex_table(["x"], [[1], [2.5]]).splitlines()
    assert lines[0] == r"\begin{tabular}{l}" and lines[-1] == r"\end{tabular}"
    assert lines[4:6] == [r"1 \\", r"2.5 \\"]


def test_text_is_printed_as_it_is():
    assert escape_latex("<40 ≥65 a|b") == r"\textless{}40 $\ge$65 a\textbar{}b"
    for first in ("[40, 50)", "*"):  # after the end of the row above, they would be its argument
        assert f"{{}}{first} & 1 " in latex_table(["a", "b"], [[first, 1]])
    assert escape_latex("50 % of {a}_b & $c$ # ~^\\ – −") == (
        r"50 \% of \{a\}\_b \& \$c\$ \# \textasciitilde{}\textasciicircum{}\textbackslash{} -- $-$"
    )
