"""The strategy's options as they travel to the server's process, and the run folder that it writes."""

import json

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from fedcal import FedCalError, Scaler
from fedcal.cli.federate import privacy_options
from fedcal.federate import launch, task
from fedcal.federate.task import strategy_options
from fedcal.methods import get_method
from transport.flower.help import config_of, distance, grid_of


def test_privacy_is_checked_before_anything_is_started():
    options = privacy_options(4.0, 1e-5, "distributed", 5, get_method("fedcal-plus"))
    assert strategy_options({"privacy": options, "timeout": 1.0})["privacy"].nodes == 5
    assert strategy_options({"timeout": 1.0}) == {"timeout": 1.0}
    for bad in ((0.0, 1e-5, "central"), (1.0, 2.0, "central"), (1.0, 1e-5, "cloud")):
        with pytest.raises(FedCalError):
            privacy_options(*bad, 5, get_method("fed-ts"))
    with pytest.raises(FedCalError, match="no private form"):
        privacy_options(1.0, 1e-5, "central", 5, get_method("fedcal"))


@pytest.mark.filterwarnings("ignore:privacy")  # whatever the noise makes of the fit
@pytest.mark.parametrize("options", [{}, {"privacy": {"epsilon": 300.0}}])
def test_a_server_that_is_killed_while_it_writes_the_report_goes_on(tmp_path, monkeypatch, options):
    """Its checkpoint was gone by then, and nodes refused the federation that it began instead."""
    config, options = config_of("digits", "fed-ts", rounds=1), {"timeout": 1.0, "patience": 0.0, **options}
    grid, words = grid_of(config), json.dumps(config.to_dict())

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(task, "write_run", killed)
        with pytest.raises(KeyboardInterrupt):
            task.serve(grid, words, options, str(tmp_path))
    assert not (tmp_path / "federation.json").exists()
    began, reports, report = grid.sent, [], task.CalibratedStrategy.report
    monkeypatch.setattr(task.CalibratedStrategy, "report", lambda self: reports.append(1) or report(self))
    again = task.serve(grid, words, options, str(tmp_path))
    assert len(reports) <= 2  # not one for each client
    assert grid.sent == began + 3  # nodes measure again, and nothing else
    assert distance(Scaler.load(tmp_path / "scaler.safetensors").params, again.scaler.params) == 0
    assert (tmp_path / "federation.json").exists() and not (tmp_path / "checkpoint").exists()
    assert (tmp_path / "report.html").exists() == ("privacy" not in options)


@pytest.mark.parametrize("options", [{}, {"privacy": {"epsilon": 4.0}}])
def test_a_run_that_is_done_is_not_started_again(tmp_path, monkeypatch, options):
    """A private run has no report.html: --resume trained and asked nodes all over again."""
    plan = launch.plan(config_of("digits", "fed-ts").resolve(), tmp_path, options)
    (tmp_path / "federation.json").write_text("{}")

    def started(*_):
        raise AssertionError("it was started again")

    monkeypatch.setattr(launch, "federation", started)
    launch.federate(plan, 1.0, resume=True)
