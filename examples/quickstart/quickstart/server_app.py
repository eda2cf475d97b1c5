"""The server."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg()
    arrays = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, initial_arrays=arrays, num_rounds=int(context.run_config["num-server-rounds"]))
    print(result.evaluate_metrics_clientapp)
