"""Predictions to evaluate: heart disease at four hospitals, each predicted by a model of the other three.

    python examples/evaluate_heart.py heart.csv
    fedcal evaluate heart.csv --group sex --group age --threshold 0.2 --report heart.html --json heart.json --tables heart.md

Leaving out one hospital at a time is how clinical models are validated: it shows what to expect at a hospital that took no
part. The model is a logistic regression, which a federation would fit to the same weights.
"""

from __future__ import annotations

import csv
import sys

import numpy as np
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedcal.data.hospitals import FEATURES, HOSPITALS, read


def main(path: str) -> None:
    """Write each patient's predicted probability, outcome, hospital, sex and age."""
    features, labels, hospital = (tensor.numpy() for tensor in read())
    probs = np.empty(len(labels))
    for left_out in range(len(HOSPITALS)):
        there = hospital == left_out
        model = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression(C=0.1))
        model.fit(features[~there], labels[~there])
        probs[there] = model.predict_proba(features[there])[:, 1]
    age, sex = (features[:, FEATURES.index(name)] for name in ("age", "sex"))
    groups = np.where(age < 45, "under 45", np.where(age < 60, "45 to 59", "60 and over"))
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["p", "label", "site", "sex", "age"])
        for i, p in enumerate(probs):
            name = "male" if sex[i] == 1 else "female"
            rows.writerow([f"{p:.6f}", labels[i], HOSPITALS[hospital[i]], name, groups[i]])


if __name__ == "__main__":
    main(*sys.argv[1:])
