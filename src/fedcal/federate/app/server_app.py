"""The server."""

import json

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedcal.federate import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    task.serve(grid, str(settings["config"]), json.loads(str(settings["options"])), str(settings["out"]))
