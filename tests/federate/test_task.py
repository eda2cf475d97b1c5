"""The strategy's options as they travel to the server's process."""

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from fedcal import FedCalError
from fedcal.cli.federate import privacy_options
from fedcal.federate.task import strategy_options
from fedcal.methods import get_method


def test_privacy_is_checked_before_anything_is_started():
    options = privacy_options(4.0, 1e-5, "distributed", 5, get_method("fedcal-plus"))
    assert strategy_options({"privacy": options, "timeout": 1.0})["privacy"].nodes == 5
    assert strategy_options({"timeout": 1.0}) == {"timeout": 1.0}
    for bad in ((0.0, 1e-5, "central"), (1.0, 2.0, "central"), (1.0, 1e-5, "cloud")):
        with pytest.raises(FedCalError):
            privacy_options(*bad, 5, get_method("fed-ts"))
    with pytest.raises(FedCalError, match="no private form"):
        privacy_options(1.0, 1e-5, "central", 5, get_method("fedcal"))
