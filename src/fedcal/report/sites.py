"""How good the probabilities of some sites are, as table rows and as JSON: for `fedcal calibrate` and `fedcal evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcal.base.store import finite
from fedcal.measure.tally import Tally
from fedcal.measure.views import POOLED
from fedcal.report.numbers import number, percent

COLUMNS = ["", "n", "ECE %", "95 %", "floor %", "class %", "NLL", "Brier", "acc. %"]
NOTE = (
    "95 %: interval of the ECE. Floor: the ECE that a perfectly calibrated model would show on as many samples. "
    "Class: ECE of each class, on average. Brier: summed over classes. Acc.: accuracy."
)


def table_row(name: str, tally: Tally) -> list[str]:
    """One row of a table with `COLUMNS`."""
    s = finite(tally.summary(interval=True))
    ece, low, high, floor, classwise, accuracy = (
        percent(s[key]) for key in ("ece", "ece_low", "ece_high", "ece_floor", "classwise_ece", "accuracy")
    )
    interval = f"{low}–{high}"
    return [name, str(tally.n), ece, interval, floor, classwise, number(s["nll"]), number(s["brier"]), accuracy]


def metrics_json(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """Every metric, of all clients together and of each client, and the worst client; undefined metrics are None."""
    rows = {name: {"n": tally.n, **finite(tally.summary(interval=True))} for name, tally in tallies.items()}
    whole = rows.pop(POOLED)
    worst = max(rows, key=lambda name: rows[name]["ece"])
    return {"pooled": whole, "clients": rows, "worst_client": worst, "worst_ece": rows[worst]["ece"]}
