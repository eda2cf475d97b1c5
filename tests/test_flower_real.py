"""A real SuperLink and real SuperNodes on loopback, with TLS and node keys: equal to the simulator, and hard to break.

Few and small: each message to a node costs seconds. What processes add nothing to is tested with a LocalGrid.
"""

import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from fedcal import load_scaler
from fedcal.flower import launch
from fedcal.flower.keys import write_node_key
from fedcal.learn.local import predict
from fedcal.measure.tally import Tally
from fedcal.store import read_json, read_tensors
from flower_help import config_of, distance, simulated

REFUSED = (
    "Failed to initialize the connection to the SuperLink"  # what a SuperNode says whom the SuperLink does not let in
)


def check_equal(config, folder):
    """The run folder against the simulator: model, scaler, metrics."""
    state, metrics = simulated(config)
    name, found = load_scaler(folder / "scaler.safetensors")
    assert distance(dict(sorted(state.model.state_dict().items())), read_tensors(folder / "model.safetensors")[0]) == 0
    assert distance(dict(sorted(state.calibrations[name].params.items())), found.params) == 0
    results = read_json(folder / "results.json")["methods"][name]["global"]
    assert all(abs(results[key] - value) < 1e-12 for key, value in metrics.items())
    about = read_json(folder / "federation.json")
    assert about["faults"] == [] and about["measured_by"] == [client.name for client in state.clients]


class Ear:
    """A relay between the SuperNodes and the SuperLink that keeps every byte that passes."""

    def __init__(self, port):
        self.to, self.heard, self.listening = port, bytearray(), socket.create_server((launch.HOST, 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                here, _ = self.listening.accept()
                there = socket.create_connection((launch.HOST, self.to))
            except OSError:
                return
            for a, b in ((here, there), (there, here)):
                threading.Thread(target=self.pass_on, args=(a, b), daemon=True).start()

    def pass_on(self, a, b):
        try:
            while data := a.recv(65536):
                self.heard += data
                b.sendall(data)
        except OSError:
            pass
        finally:
            for one in (a, b):
                one.close()


def counts_of(config):
    """Label counts as they travel: how many of each class the first node gets right, of its test samples."""
    state, _ = simulated(config)
    logits = predict(state.model, state.clients[0].test_x)
    return Tally.of(logits, state.clients[0].test_y).to_tensors()["classes"][0].numpy().tobytes()


def test_equal_to_the_simulator_and_closed_to_strangers(tmp_path):
    """fed-ts, then Algorithm 1 on the same nodes. Label counts pass, and nobody can read them."""
    config, literal = (config_of("digits", method, clients=2) for method in ("fed-ts", "fedcal-literal"))
    plan = launch.plan(config, tmp_path / "run", {"timeout": 60.0})
    ear = Ear(plan.port)
    plan = replace(plan, entrance=f"{launch.HOST}:{ear.port}")
    launch.prepare(plan)
    write_node_key(tmp_path / "key")
    two = replace(plan, node_ports=launch.free_ports(2))
    strangers = {
        "unknown": two.supernode(0)[:-2],  # no key at all
        "wrong": [*two.supernode(1)[:-1], str(tmp_path / "key")],
    }
    with launch.federation(plan) as processes:
        for stranger in strangers:
            processes.start(stranger, strangers[stranger])
        assert processes.call("run", plan.run(), 300) == 0
        for stranger in strangers:
            assert processes.running[stranger].poll() not in (None, 0)
            assert REFUSED in (plan.flower / "logs" / f"{stranger}.log").read_text()
        check_equal(config, plan.folder)
        second = replace(plan, config=literal.resolve(), folder=tmp_path / "second")
        launch.write_app(second)
        assert processes.call("run", second.run(), 200) == 0
        check_equal(literal, second.folder)
    assert processes.running == {}
    assert len(ear.heard) > 1_000_000  # three rounds of models and more
    assert b"fedcal." not in ear.heard and counts_of(config) not in ear.heard


def test_killed_node_and_killed_server(tmp_path):
    """kill -9 of one of three SuperNodes in mid-round, then of the ServerApp: the run ends, and says who took part."""
    config = config_of("digits", "fedcal-literal", clients=3)
    plan = launch.plan(config, tmp_path / "run", {"timeout": 60.0, "patience": 10.0}, insecure=True)
    ear = Ear(plan.port)
    plan = replace(plan, entrance=f"{launch.HOST}:{ear.port}")
    launch.prepare(plan)
    training = plan.folder / "checkpoint" / "training.safetensors"
    with launch.federation(plan) as processes:
        processes.start("run", plan.run())
        wait_for(lambda: trained(training) >= 1)
        os.killpg(processes.running["node-2"].pid, signal.SIGKILL)  # its SuperExec and ClientApp with it
        wait_for(lambda: trained(training) >= 2)
        time.sleep(2)  # the next round's messages are out: nodes would wait for one that was cut off half-way
        os.kill(serverapp(plan), signal.SIGKILL)
        processes.stop("run")
        assert processes.call("again", plan.run(), 240) == 0
    about = read_json(plan.folder / "federation.json")
    assert about["measured_by"] == ["client-0", "client-1"]
    assert about["training_rounds"] == 3 and [len(r["took_part"]) for r in about["rounds"]] == [3, 2, 2, 2]
    assert about["faults"][0]["name"] == "client-2"
    _, scaler = load_scaler(plan.folder / "scaler.safetensors")
    assert all(bool(value.isfinite().all()) for value in scaler.params.values())
    assert not training.exists()
    assert b"fedcal.answer" in ear.heard  # without TLS everything can be read


def trained(path):
    return read_tensors(path)[1]["training"] if path.exists() else 0


def wait_for(condition, patience=180.0):
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


def serverapp(plan):
    """The ServerApp's process, of that federation."""
    home = f"FLWR_HOME={plan.flower / 'home'}\0".encode()
    for entry in Path("/proc").iterdir():
        try:
            if b"flwr-serverapp" in (entry / "cmdline").read_bytes() and home in (entry / "environ").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("there is no ServerApp")
