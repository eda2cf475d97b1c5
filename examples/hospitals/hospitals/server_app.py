"""The server: FedAvg, calibration around it, and what came of it."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcal.transport.flower import CalibratedStrategy
from hospitals.task import build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = CalibratedStrategy(
        FedAvg(fraction_evaluate=0.0), str(config["method"]), n_classes=2, nodes=4, folder=str(config["out"])
    )
    strategy.start(grid, ArrayRecord(build().state_dict()), int(config["rounds"]))
    print(strategy.before_and_after())
    print(f"scaler and report: {Path(str(config['out'])).resolve()}")
