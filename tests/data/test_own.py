"""A user's own arrays: what they may be, how they are split, and what is refused, in one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal.data import make_clients
from fedcal.data.own import fingerprint, is_own, own_dataset
from fedcal.data.own_files import names_a_file, read_own
from fedcal.errors import FedCalError
from own_models import patients, sentences

X, Y = np.arange(24.0).reshape(12, 2), np.arange(12) % 3


def without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (X, "data must be (x, y), (x, y, client) or a mapping"),
        ({"x": X}, "data has no 'y'"),
        ({"x": X, "y": Y, "clients": Y}, "unknown part of data 'clients': did you mean 'client'?"),
        ((X, Y[:5]), "x has 12 samples, but y has 5 labels: give as many"),
        ((X[:, 0], Y), "x must have shape (samples, …), not (12,)"),
        ((X[:, :0], Y), "x has no features: its shape is (12, 0)"),
        ((X[:0], Y[:0]), "x has no samples"),
        ((np.where(X == 7, np.nan, X), Y), "x holds nan in row 3 at (1,)"),
        ((np.where(X == 7, np.inf, X), Y), "x holds inf in row 3 at (1,)"),
        ((X * 1e300, Y), "x holds 1e+300 in row 0 at (1,)"),
        ((X.astype(object), Y), "x must be a numeric array"),
        ((X > 3, Y), "x must hold real numbers, not bool"),
        ((X, Y + 1), "labels must be 0, 1, … without gaps, or strings (none is 0)"),
        ((X, 2 * Y), "(none is 1)"),
        ((X, Y - 1), "(found -1)"),
        ((X, Y + 0.5), "(found 0.5)"),
        ((X, Y * 0), "all labels are 0: there is nothing to learn from a single class"),
        ((X, np.eye(3)[Y]), "y must have shape (samples,), not (12, 3); one-hot labels need argmax"),
        ((X, [None] * 12), "y must be"),
        ((X, np.array([str(7 + n % 5) for n in range(12)])), "numbers written as text, whose order is unclear"),
        ({"x": X, "y": Y, "classes": ["a", "b"]}, "unknown label 0: the classes are a, b"),
        ({"x": X, "y": Y, "classes": ["a", "a"]}, "classes must be a list of 2 different labels"),
        ({"x": X, "y": Y, "classes": "abc"}, "classes must be a list"),
        ((X, Y, Y[:4]), "client has 4 entries for 12 samples"),
        ((X, Y, [""] * 12), "client must not be empty"),
        ({"x": X, "y": Y, "test_x": X}, "data has one of test_x and test_y: give both, or neither"),
        ({"x": X, "y": Y, "test_x": X[:, :1], "test_y": Y}, "x has samples of shape (2,), but test_x of (1,)"),
        ({"x": X, "y": Y, "test_x": X[:0], "test_y": Y[:0]}, "test_x has no samples"),
        ({"x": X, "y": Y, "test_x": X.astype(int), "test_y": Y}, "x holds torch.float64, but test_x torch.int64"),
        ({"x": X, "y": Y, "test_x": X, "test_y": Y.astype(str)}, "both be numbers, or both strings"),
        ({"x": X, "y": Y, "test_x": X, "test_y": Y, "test_client": Y}, "data has test_client, but no client"),
        ({"x": X, "y": Y, "client": Y, "test_x": X, "test_y": Y}, "data has client, but no test_client"),
        (
            {"x": X, "y": Y, "client": Y, "test_x": X, "test_y": Y, "test_client": Y + 1},
            "client '3' has test samples, but no training samples",
        ),
        ({"x": X, "y": Y, "test_client": Y}, "data has test_client, but no test_x"),
        ((X[:3], Y[:3], Y[:3]), "3 samples are too few to hold some out for testing"),
        (((X + 2.0**63).astype(np.uint64), Y), "x holds 9223372036854775808, which is too large"),
        ((-X.astype(int), Y), "x holds whole numbers, which are token ids, and -23 is below 0"),
    ],
)  # fmt: skip
def test_bad_data_are_refused_in_one_line(data: Any, said: str) -> None:
    with pytest.raises(FedCalError) as error:
        own_dataset(data)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64, np.longdouble])
def test_types_that_pytorch_hardly_knows(kind: Any) -> None:
    usual = np.float64 if kind is np.longdouble else np.int64
    found, expected = own_dataset((X.astype(kind), Y)), own_dataset((X.astype(usual), Y))
    assert torch.equal(found.train_x, expected.train_x) and found.train_x.dtype == expected.train_x.dtype


def test_labels_are_numbers_or_sorted_strings_or_as_given() -> None:
    assert own_dataset((X, Y)).classes == ("0", "1", "2")
    words = np.array(["b", "c", "a"])[Y]
    named = own_dataset((X, words))
    assert named.classes == ("a", "b", "c")
    pairs = {(float(x[0]), int(y)) for x, y in zip(named.train_x, named.train_y, strict=True)}
    assert all("abc"[y] == words[int(x) // 2] for x, y in pairs)
    assert own_dataset({"x": X, "y": words, "classes": ["c", "d", "b", "a"]}).classes == ("c", "d", "b", "a")
    assert own_dataset({"x": X, "y": Y + 5, "classes": [5, 6, 7]}).classes == ("5", "6", "7")


def test_what_inputs_are_follows_from_their_type_or_from_the_user() -> None:
    tokens, images = sentences(60), np.zeros((12, 1, 4, 4), np.uint8)
    assert own_dataset(tokens).train_x.dtype == torch.int64 and not own_dataset(tokens).standardised
    assert own_dataset((images, Y)).standardised and own_dataset((X, Y)).standardised
    assert own_dataset(tokens, standardise=True).standardised
    assert own_dataset((X.astype(np.float16), Y)).train_x.dtype == torch.float32
    assert own_dataset((torch.from_numpy(X), Y.tolist())).train_x.dtype == torch.float64
    raw = make_clients(own_dataset((images, Y), standardise=False), n_clients=2)[0]
    assert raw.train_x.dtype == torch.float32
    kept = make_clients(own_dataset(tokens), partition="natural")
    assert [client.name for client in kept] == ["north", "south", "west"]
    assert all(client.train_x.dtype == torch.int64 for client in kept)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(24, 60), st.integers(2, 4), st.integers(1, 5), st.floats(0.05, 0.9), st.integers(0, 3), st.booleans()
)
def test_no_sample_is_lost_and_every_client_trains(
    n: int, classes: int, clients: int, fraction: float, seed: int, named: bool
) -> None:
    rng = np.random.default_rng(n)
    y = np.concatenate([np.arange(classes), rng.integers(classes, size=n)])
    x = np.arange(2.0 * len(y)).reshape(-1, 2)
    who = np.concatenate([np.arange(clients), rng.integers(clients, size=len(y))])[: len(y)]
    data = {"x": x, "y": y, "client": who if named else None}
    dataset = own_dataset(data, test_fraction=fraction, seed=seed)
    rows = torch.cat([dataset.train_x, dataset.test_x])[:, 0].sort().values
    assert torch.equal(rows, torch.from_numpy(x[:, 0]))
    if named:
        assert dataset.train_client is not None and dataset.test_client is not None
        assert set(dataset.train_client.tolist()) == set(range(len(dataset.client_names)))
        for x_, c in zip(dataset.test_x, dataset.test_client, strict=True):
            assert dataset.client_names[int(c)] == str(who[int(x_[0]) // 2])


def test_the_test_split_is_a_share_of_every_client_and_class() -> None:
    """Also of a thousand classes over a hundred clients, where hardly two samples are of one client and class."""
    rng = np.random.default_rng(0)
    many = own_dataset((rng.random((5000, 1)), np.arange(5000) % 1000, rng.integers(100, size=5000)))
    assert len(many.test_y) == pytest.approx(1000, abs=25)
    assert many.test_client is not None
    assert many.test_client.bincount(minlength=100).min() >= 5
    few = own_dataset((rng.random((5000, 1)), np.arange(5000) % 4), test_fraction=0.3)
    assert few.test_y.bincount().tolist() == pytest.approx([375] * 4, abs=1)
    one, other = (own_dataset((X, Y), seed=seed).test_x[:, 0].tolist() for seed in (0, 1))
    assert one != other and one == own_dataset((X, Y), seed=0).test_x[:, 0].tolist()


def test_the_fingerprint_is_of_the_data_and_of_nothing_else() -> None:
    name = own_dataset((X, Y), name="my data").name
    assert is_own(name) and name.startswith("my_data@")
    assert own_dataset((X.copy(), Y.tolist()), name="my data", seed=3).name == name
    assert own_dataset((np.asfortranarray(X), Y), name="my data").name == name
    changed = [
        {"x": X + 1e-9, "y": Y},
        {"x": X, "y": (Y + 1) % 3},
        {"x": X, "y": Y, "client": Y},
        {"x": X, "y": Y, "test_x": X, "test_y": Y},
        {"x": X.astype(np.float32), "y": Y},
        {"x": X.reshape(12, 1, 2), "y": Y},
        {"x": X, "y": Y, "classes": [0, 1, 2]},
    ]
    found = {fingerprint(data) for data in changed} | {fingerprint({"x": X, "y": Y})}
    assert len(found) == len(changed) + 1
    assert not is_own("digits") and not is_own("../x@0123456789abcdef") and not is_own("a@0123456789ABCDEF")


def test_files_give_what_arrays_give(tmp_path: Path) -> None:
    data = patients(50)
    np.savez(tmp_path / "my.npz", **data)
    lines = ["age,label,bmi,score,p,logit_3,client"]
    lines += [",".join([str(v[0]), y, *map(str, v[1:]), c]) for v, y, c in zip(*data.values(), strict=True)]
    (tmp_path / "my.csv").write_text("\n".join(lines))
    expected = own_dataset(data)
    for name in ("my.npz", "my.csv"):
        found = own_dataset(read_own(tmp_path / name))
        assert torch.equal(found.train_x, expected.train_x) and torch.equal(found.test_y, expected.test_y)
        assert found.client_names == ("a", "b", "c", "d") and found.classes == ("healthy", "ill")
    assert names_a_file("my.NPZ") and not names_a_file("digits")


def test_a_column_says_which_samples_are_for_testing(tmp_path: Path) -> None:
    file = tmp_path / "my.csv"
    file.write_text("a,label,split\n1,no,train\n2,yes,train\n3,no,test\n4,yes,train\n")
    dataset = own_dataset(read_own(file))
    assert dataset.test_x.tolist() == [[3.0]] and dataset.train_x[:, 0].tolist() == [1.0, 2.0, 4.0]
    file.write_text("a,label,split\n1,no,train\n2,yes,valid\n")
    with pytest.raises(FedCalError, match="column split: 'valid' is neither train nor test"):
        read_own(file)


def test_parquet_keeps_whole_numbers(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    tokens = sentences(30)
    columns = {f"t{i}": tokens["x"][:, i] for i in range(6)} | {"label": tokens["y"], "site": tokens["client"]}
    parquet.write_table(arrow.table(columns), tmp_path / "my.parquet")
    dataset = own_dataset(read_own(tmp_path / "my.parquet"))
    assert dataset.train_x.dtype == torch.int64 and dataset.client_names == ("north", "south", "west")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("my.npz", {"x": X, "labels": Y}, "unknown array 'labels'"),
        ("my.npz", {"x": np.array([{}], object), "y": Y}, "x holds Python objects"),
        ("my.csv", "label,client\n1,a\n", "there is no feature among them"),
        ("my.csv", "a,b\n1,2\n", "no labels: add a column `label`"),
        ("my.csv", "a,label\nred,1\n", "row 1 below the header, column a: 'red' is not a number"),
        ("my.csv", "a,label\n,1\n", "row 1 below the header, column a: the cell is empty"),
        ("my.csv", None, "no such file"),
        ("my.npz", None, "no such file"),
        ("my.npz", "text", "damaged"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, name: str, content: Any, said: str) -> None:
    path = tmp_path / name
    if isinstance(content, dict):
        np.savez(path, **content)  # type: ignore[arg-type]
    elif content is not None:
        path.write_text(content)
    with pytest.raises(FedCalError) as error:
        read_own(path)
    assert str(error.value).startswith(f"{path}: ") and said in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its message says, FEDCAL_MAX_BYTES is the limit: `fedcal run` has no --max-bytes."""
    np.savez(tmp_path / "my.npz", x=X, y=Y)
    for limit, said in (("100", "GiB of numbers.*raise FEDCAL_MAX_BYTES"), ("2GB", "must be a number of bytes")):
        monkeypatch.setenv("FEDCAL_MAX_BYTES", limit)
        with pytest.raises(FedCalError, match=said):
            read_own(tmp_path / "my.npz")
