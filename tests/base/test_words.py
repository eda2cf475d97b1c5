"""Reasons in plain words: no colour codes, no boxes."""

import pytest

from fedcal.base.words import last_words, plain

PANEL = """\x1b[31m╭─\x1b[0m\x1b[31m Error \x1b[0m\x1b[31m─────╮\x1b[0m
\x1b[31m│\x1b[0m No such file:   keys │
\x1b[31m╰───────────╯\x1b[0m

"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\x1b[92mINFO\x1b[0m :  all\twell\r\n", "INFO : all well"),
        ("\x1b]0;title\x07done", "done"),
        ("⠋ waiting ▉▉▉", "waiting"),
        ("Größe 5 µm", "Größe 5 µm"),
        ("a\x00b\u202ec", "a b c"),
    ],
)
def test_plain(text, words):
    assert plain(text) == words


def test_the_last_line_that_says_anything():
    assert last_words(PANEL, "empty") == "No such file: keys"
    assert last_words("╰──╯\n\n", "empty") == "empty" == last_words("", "empty")
