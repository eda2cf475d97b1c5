"""Users' own tables for the simulator: rows are counted as in all other tables."""

from __future__ import annotations

import re

import pytest

from fedcal import FedCalError
from fedcal.data.own_files import read_own


def test_a_missing_feature_is_named_by_its_row_below_the_header(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("a,b,label\n1,2,0\n3,nan,1\n5,6,0\n")
    with pytest.raises(FedCalError, match=re.escape(f"{path}: row 2 below the header: feature 2 is nan")):
        read_own(path)
