"""A node's reply costs a process: what it imports is what it costs. Slow libraries stay out of that path."""

import json
import subprocess
import sys

import pytest

from fedcal.transport.flower.client import STATE
from fedcal.transport.flower.records import MODEL, REPLY, REQUEST, data_of
from transport.flower.help import client_app, config_of, flower, grid_of

SLOW = {
    "scipy",
    "sklearn",
    "matplotlib",
    "pandas",
    "rich",
    "typer",
    "pooch",
    "jinja2",
    "pyarrow",
    "onnx",
    "dp_accounting",
}

IN_PROTOCOL = """
import json, sys
from pathlib import Path
from fedcal.protocol import Client, wire
import torch
plan, request = wire.unpack_request(Path(sys.argv[1]).read_bytes())
Client(plan.method, torch.randn(50, plan.n_classes), torch.randint(plan.n_classes, (50,))).reply(request)
print(json.dumps(sorted(sys.modules)))
"""

AT_NODE = """
import json, sys
from pathlib import Path
import flwr.app, flwr.clientapp, flwr.common, flwr.serverapp
flowers = set(sys.modules)
from flwr.app import ConfigRecord, Message, RecordDict
from fedcal.federate.app.client_app import app
from fedcal.transport.flower import LocalGrid
folder = Path(sys.argv[1])
record = {**json.loads((folder / "about.json").read_text()), "data": (folder / "request").read_bytes()}
grid = LocalGrid(app, [{"name": "client-1"}])
grid.contexts[1].state["fedcal.state"] = ConfigRecord({"data": (folder / "state").read_bytes()})
content = RecordDict({"fedcal.request": ConfigRecord(record)})
(reply,) = grid.send_and_receive([Message(content, 1, "train")])
if reply.has_error():
    raise SystemExit(reply.error.reason)
(folder / "reply").write_bytes(reply.content["fedcal.reply"]["data"])
print(json.dumps(sorted(set(sys.modules) - flowers)))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One node's request without the model, its state before, and its reply."""
    folder, config = tmp_path_factory.mktemp("message"), config_of("digits", "fed-ts", 2, rounds=1, model="logistic")

    def recording(message, context):
        found = message.content.config_records.get(REQUEST)
        last = context.state.config_records.get(STATE)
        about = {name: value for name, value in (found or {}).items() if name != "data"}
        wanted = found is not None and about["phase"] == "reply" and MODEL not in message.content
        if wanted and context.node_config["name"] == "client-1":
            (folder / "request").write_bytes(data_of(found))
            (folder / "state").write_bytes(data_of(last))
            (folder / "about.json").write_text(json.dumps(about))
        reply = client_app(message, context)
        if wanted and context.node_config["name"] == "client-1":
            (folder / "expected").write_bytes(data_of(reply.content[REPLY]))
        return reply

    flower(config, grid_of(config, recording), training=1)
    return folder


def run(script, argument):
    found = subprocess.run([sys.executable, "-c", script, str(argument)], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return {name.partition(".")[0] for name in json.loads(found.stdout)}


def test_a_reply_of_the_protocol_needs_no_slow_library(recorded):
    assert not run(IN_PROTOCOL, recorded / "request") & SLOW


def test_a_nodes_reply_needs_neither_them_nor_the_data_nor_the_model(recorded):
    """Of the node's logits, from its state alone; the same bytes as in the run."""
    assert not run(AT_NODE, recorded) & SLOW
    assert (recorded / "reply").read_bytes() == (recorded / "expected").read_bytes()
