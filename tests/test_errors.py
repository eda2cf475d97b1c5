import pytest

from fedcal.errors import FedCalError, counted, error_context, reason_of


def test_one_and_many():
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert [counted(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]


def test_an_error_says_what_was_worked_on():
    with pytest.raises(FedCalError, match=r"^client a: too few samples$"), error_context("client a"):
        raise FedCalError("too few samples")
    with pytest.raises(KeyError), error_context("client a"):
        raise KeyError("another error stays what it is")


def test_another_library_s_reason_is_one_line():
    assert reason_of(ValueError("first\nsecond")) == "first"
    assert reason_of(MemoryError()) == "MemoryError"
