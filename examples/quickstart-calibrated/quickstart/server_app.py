"""The server."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcal.transport.flower import CalibratedStrategy
from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = CalibratedStrategy(FedAvg(), n_classes=10, folder="calibrated")
    arrays = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, initial_arrays=arrays, num_rounds=int(context.run_config["num-server-rounds"]))
    print(result.evaluate_metrics_clientapp)
    print(strategy.before_and_after())
