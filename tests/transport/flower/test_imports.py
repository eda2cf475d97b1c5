"""A node's reply costs a process: what it imports is what it costs. Slow libraries stay out of that path."""

import json
import subprocess
import sys

import pytest

from fedcal import Privacy
from fedcal.transport.flower.node import STATE
from fedcal.transport.flower.records import DATA, MODEL, REPLY, REQUEST, data_of
from fedcal.transport.flower.secure_node import SECRETS
from transport.flower.help import client_app, config_of, flower, grid_of

SLOW = {
    "torch",
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
}
ACCOUNTANT = {"dp_accounting", "scipy"}  # tells how large noise must be: only nodes that add noise need it

IN_PROTOCOL = """
import json, sys
from pathlib import Path
from fedcal.protocol import Client, wire
import numpy as np
rng = np.random.default_rng(0)
loaded = set()
for path in sorted(Path(sys.argv[1]).glob("*-reply-*.request")):
    plan, request = wire.unpack_request(path.read_bytes())
    Client(plan.method, rng.normal(size=(50, plan.n_classes)), rng.integers(plan.n_classes, size=50)).reply(request)
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
for path in sorted(Path(sys.argv[1]).glob("*.request")):
    about = json.loads(path.with_suffix(".about").read_text())
    grid = LocalGrid(app, [{"name": "client-1"}])
    if path.with_suffix(".state").exists():
        grid.contexts[1].state["fedcal.state"] = ConfigRecord({"data": path.with_suffix(".state").read_bytes()})
    if path.with_suffix(".secrets").exists():
        secrets = path.with_suffix(".secrets").read_text()
        grid.contexts[1].state["fedcal.secrets"] = ConfigRecord({"members": secrets})
    content = RecordDict({"fedcal.request": ConfigRecord({**about, "data": path.read_bytes()})})
    (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    if reply.has_error():
        raise SystemExit(f"{path.name}: {reply.error.reason}")
    path.with_suffix(".reply").write_bytes(reply.content["fedcal.reply"]["data"])
print(json.dumps(sorted(set(sys.modules) - flowers)))
"""

CASES = {
    "fed-ts": {},
    "fed-bias": {},
    "fedcal-plus": {},
    "private": {"privacy": Privacy(4.0, 1e-5, where="central")},
    "secure": {"secure": True},
    "private and secure": {"privacy": Privacy(4.0, 1e-5, where="distributed", nodes=3), "secure": True},
}


def record(folder, case):
    """One node's messages without the model, its state and secrets before each, and its replies."""
    method = case if case.startswith("fed") else "fed-bias"
    config = config_of("digits", method, 3, rounds=1, model="logistic")
    seen = iter(range(10**6))

    def recording(message, context):
        found = message.content.config_records.get(REQUEST)
        state, secrets = (context.state.config_records.get(name) for name in (STATE, SECRETS))
        wanted = found is not None and found["phase"] in ("reply", "measure") and MODEL not in message.content
        if not wanted or context.node_config["name"] != "client-1":
            return client_app(message, context)
        name = folder / f"{next(seen):03d}-{found['phase']}-"
        name.with_suffix(".request").write_bytes(data_of(found))
        if state is not None:
            name.with_suffix(".state").write_bytes(data_of(state))
        name.with_suffix(".about").write_text(json.dumps({key: value for key, value in found.items() if key != DATA}))
        if secrets is not None:
            name.with_suffix(".secrets").write_text(secrets["members"])
        reply = client_app(message, context)
        name.with_suffix(".expected").write_bytes(data_of(reply.content[REPLY]))
        return reply

    flower(config, grid_of(config, recording), training=1, **CASES[case])
    return folder


def run(script, argument):
    found = subprocess.run([sys.executable, "-c", script, str(argument)], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return {name.partition(".")[0] for name in json.loads(found.stdout)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:privacy")  # so few samples may give the identity
def test_a_nodes_replies_need_neither_them_nor_the_data_nor_the_model(case, tmp_path):
    """Of the node's logits, from its state alone, to every request and to the last one, which measures.

    The same bytes as in the run, but for masks and noise.
    """
    folder = record(tmp_path, case)
    asked = sorted(folder.glob("*.request"))
    assert len(asked) > 2 and any("measure" in path.name for path in asked)
    needed = run(AT_NODE, folder)
    assert not needed & (SLOW - ACCOUNTANT if case == "private and secure" else SLOW | ACCOUNTANT)
    if not CASES[case]:
        assert not run(IN_PROTOCOL, folder) & (SLOW | ACCOUNTANT)
        for path in asked:
            assert path.with_suffix(".reply").read_bytes() == path.with_suffix(".expected").read_bytes(), path.name
