"""A hospital's node."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcal.transport.flower import calibration_mod
from hospitals.task import build, fit, hospital


def logits(arrays: ArrayRecord, context: Context, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What FedCal asks of an app: the model's logits and the labels of a split."""
    model, mine = build(), hospital(context)
    model.load_state_dict(arrays.to_torch_state_dict())
    part = {"held-out": "cal", "train": "train", "test": "test"}[split]
    with torch.no_grad():
        return model(getattr(mine, f"{part}_x")), getattr(mine, f"{part}_y")


app = ClientApp(mods=[calibration_mod(logits)])


@app.train()
def train(message: Message, context: Context) -> Message:
    model, mine = build(), hospital(context)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    metrics = {"loss": fit(model, mine.train_x, mine.train_y), "num-examples": mine.n}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)
