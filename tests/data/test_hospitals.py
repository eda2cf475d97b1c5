from __future__ import annotations

import torch

from fedcal.data import hospitals


def column(x: torch.Tensor, name: str) -> torch.Tensor:
    return x[:, hospitals.FEATURES.index(name)]


def test_patients_and_labels_of_each_hospital():
    x, y, hospital = hospitals.read()
    assert x.shape == (920, len(hospitals.FEATURES)) == (920, 22)
    assert hospital.bincount().tolist() == [303, 294, 123, 200]
    assert [int(y[hospital == h].sum()) for h in range(4)] == [139, 106, 115, 149]


def test_the_first_cleveland_patient():
    x, y, _ = hospitals.read()  # 63,1,1,145,233,1,2,150,0,2.3,3,0,6,0
    row = dict(zip(hospitals.FEATURES, x[0].tolist(), strict=True))
    assert (row["age"], row["trestbps"], row["chol"], row["thalach"]) == (63, 145, 233, 150)
    assert [row[f"cp={k}"] for k in (1, 2, 3, 4)] == [1, 0, 0, 0]
    assert [row[f"restecg={k}"] for k in (0, 1, 2)] == [0, 0, 1]
    assert [row[f"slope={k}"] for k in (1, 2, 3)] == [0, 0, 1]
    assert [row[f"thal={k}"] for k in (3, 6, 7)] == [0, 1, 0]
    assert y[0] == 0


def test_impossible_zeros_are_missing_and_true_zeros_stay():
    x, _, hospital = hospitals.read()
    assert column(x, "chol")[hospital == 2].isnan().all(), "no Swiss patient has a cholesterol reading"
    assert column(x, "chol").isnan().sum() == 23 + 123 + 7 + 49
    assert column(x, "trestbps").isnan().sum() == 1 + 2 + 56 + 1
    assert (column(x, "oldpeak") == 0).any() and (column(x, "ca") == 0).any()


def test_one_hot_columns_are_missing_together():
    x, _, _ = hospitals.read()
    thal = torch.stack([column(x, f"thal={k}") for k in (3, 6, 7)], 1)
    known = ~thal.isnan().any(1)
    assert torch.equal(thal.isnan().any(1), thal.isnan().all(1))
    assert (thal[known].sum(1) == 1).all() and int((~known).sum()) == 2 + 266 + 52 + 166
