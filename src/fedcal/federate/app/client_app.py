"""A node. The data set and what trains are imported when they are needed: a reply about kept logits needs neither."""

import gc

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

gc.disable()  # PyTorch's import makes many objects and no garbage: looking for it takes a third of the time
from fedcal.transport.flower import calibration_mod  # noqa: E402

gc.enable()


def logits(arrays: ArrayRecord, context: Context, split: str):
    from fedcal.federate import task

    return task.logits(arrays, context, split)


app = ClientApp(mods=[calibration_mod(logits)])


@app.train()
def train(message: Message, context: Context) -> Message:
    from fedcal.federate import task

    return task.train(message, context)
