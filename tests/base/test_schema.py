"""Shapes of JSON: what fits, and the one line that says where something does not."""

from typing import Any

import pytest

from fedcal.base.schema import (
    COUNT,
    Anything,
    Exactly,
    ListOf,
    MapOf,
    Maybe,
    Number,
    Record,
    Shape,
    Text,
    Truth,
    Tuple,
    check,
)
from fedcal.errors import FedCalError

SHAPE = Record(
    {"n": COUNT, "rows": ListOf(Tuple((Text(5), Maybe(Number(0, 1))))), "kind": Exactly((2, "x"))},
    optional={"on": Truth(), "more": MapOf(Anything())},
)
GOOD: dict[str, Any] = {"n": 3, "rows": [["a", 0.5], ["b", None]], "kind": 2}


@pytest.mark.parametrize("more", [{}, {"on": True}, {"more": {"x": [1]}}, {"kind": "x"}])
def test_what_fits(more: dict[str, Any]) -> None:
    check(GOOD | more, SHAPE)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "f: the content should be an object, not []"),
        ({"n": 3}, "f: the content has no 'rows'"),
        (GOOD | {"odd": 1}, "f: the content should have no 'odd'"),
        (GOOD | {"n": True}, "f: n should be a whole number, not True"),
        (GOOD | {"n": 1.0}, "f: n should be a whole number, not 1.0"),
        (GOOD | {"n": -1}, "f: n should lie within 0 and"),
        (GOOD | {"n": float("nan")}, "f: n should be a whole number, not nan"),
        (GOOD | {"kind": 2.0}, "f: kind should be 2 or 'x', not 2.0"),
        (GOOD | {"rows": [["a", 0.5], ["b", 2]]}, "f: rows[1][1] should lie within 0 and 1, not 2"),
        (GOOD | {"rows": [["a"]]}, "f: rows[0] should have 2 entries, not 1"),
        (GOOD | {"rows": {}}, "f: rows should be a list, not {}"),
        (GOOD | {"rows": [["abcdef", 0]]}, "f: rows[0][0] should be a text of at most 5 characters"),
        (GOOD | {"rows": [["\x1b[2J", 0]]}, "f: rows[0][0] holds characters that cannot be shown"),
        (GOOD | {"on": 1}, "f: on should be true or false, not 1"),
        (GOOD | {"more": {"\x07": 1}}, "f: more has a name that cannot be shown"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, words: str) -> None:
    with pytest.raises(FedCalError) as error:
        check(value, SHAPE, "f")
    assert words in str(error.value) and str(error.value).isprintable()


def test_a_number_may_be_anything_finite() -> None:
    shape: Shape = Number()
    check(-1e300, shape)
    for odd in (float("inf"), "1", None, True, [1]):
        with pytest.raises(FedCalError):
            check(odd, shape)
