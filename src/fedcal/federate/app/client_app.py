"""A node."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedcal.federate import task
from fedcal.transport.flower import calibration_mod

app = ClientApp(mods=[calibration_mod(task.logits)])


@app.train()
def train(message: Message, context: Context) -> Message:
    return task.train(message, context)
