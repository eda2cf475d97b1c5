"""Labels of any kind as columns: one rule for arrays, clients and files."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcal import FedCalError
from fedcal.base.labels import as_labels, check_classes, find_classes, rows_of_each, to_columns

WORDS = np.array(["cat", "dog", "owl"])
Y = np.array([0, 2, 1, 1])


class Series:
    """What NumPy sees of a pandas Series or DataFrame."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


@pytest.mark.parametrize(
    "values",
    [
        WORDS[Y],
        WORDS[Y].tolist(),
        WORDS[Y].astype(object),
        WORDS[Y].astype("S"),
        WORDS[Y].astype(np.dtypes.StringDType()),
        WORDS[Y][:, None],
        WORDS[Y][::-1][::-1],
        Series(WORDS[Y].astype(object)),
    ],
)
def test_words_of_every_kind(values):
    labels = as_labels(values)
    assert labels.dtype.kind == "U" and labels.tolist() == ["cat", "owl", "dog", "dog"]


@pytest.mark.parametrize("values", [Y.tolist(), Y * 1.0, torch.tensor(Y), Y.astype(">i2")[:, None], Series(Y)])
def test_numbers_of_every_kind(values):
    assert as_labels(values).tolist() == Y.tolist()
    assert find_classes([as_labels(values)], 3) is None


def test_the_rule():
    assert find_classes([Y, Y[:1]], 3) is None  # columns' numbers
    assert find_classes([np.array([True, False])], 2) is None
    assert find_classes([WORDS[[0]], WORDS[[2, 1]]], 3).tolist() == WORDS.tolist()  # sorted, over all clients
    assert find_classes([np.array([-1, 1])], 2).tolist() == [-1, 1]
    assert (
        find_classes([Y * 1.0 + 1], 3) is None
    )  # refused later: without a sample of one class they would look like columns
    assert find_classes([Y + 0.5], 3) is None  # refused later: no whole numbers
    assert find_classes([np.zeros(0)], 3) is None
    assert find_classes([Y], 3, ["owl", "cat", "dog"]).tolist() == ["owl", "cat", "dog"]
    with pytest.raises(
        FedCalError, match=r"2 different labels for 3 columns \(cat, dog\): use 0\.\.2, or give `classes`"
    ):
        find_classes([WORDS[:2]], 3)
    with pytest.raises(FedCalError, match="classes must be a list of 3 different labels"):
        check_classes(["a", "b", "b"], 3)


@given(st.permutations(["a", "b", "c", "d"]), st.lists(st.integers(0, 3)))
def test_columns_point_at_the_labels(classes, columns):
    labels = np.array([classes[k] for k in columns], dtype=str)
    assert to_columns(labels, classes).tolist() == columns


@given(st.lists(st.sampled_from("abc")))
def test_rows_of_each_label(values):
    labels = np.array(values, dtype=str)
    found = {label: rows.tolist() for label, rows in rows_of_each(labels).items()}
    assert found == {label: np.flatnonzero(labels == label).tolist() for label in sorted(set(values))}


def test_the_text_of_a_number_stands_for_it():
    assert to_columns(np.array(["1", "3"]), [1, 3]).tolist() == [0, 1]
    assert to_columns(np.array([3.0, 1.0]), ["1", "3"]).tolist() == [1, 0]
    assert to_columns(np.array(["True", "False"]), [False, True]).tolist() == [1, 0]
    assert to_columns(np.array([0, 1]), [False, True]).tolist() == [0, 1]
    with pytest.raises(FedCalError, match="unknown label 'cow': the classes are cat, dog, owl"):
        to_columns(np.array(["cow"]), WORDS)
