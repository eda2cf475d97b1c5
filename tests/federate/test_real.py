"""A real SuperLink and real SuperNodes on loopback, with TLS and node keys: equal to the simulator, and hard to break.

Few and small: each round costs seconds. What processes add nothing to is tested with a LocalGrid.
"""

import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from benchmarks import kills
from fedcal import Scaler
from fedcal.base.store import read_json, read_tensors
from fedcal.cli.main import main
from fedcal.federate import launch
from fedcal.federate.app.client_app import app as client_app
from fedcal.federate.keys import write_node_key
from fedcal.learn.local import predict
from fedcal.measure.tally import Tally
from fedcal.methods import spec_of
from fedcal.methods.spec import file_name
from fedcal.simulate.federation import assemble
from transport.flower.help import config_of, distance, flower, grid_of, simulated

MEASURED = ("accuracy", "nll", "brier", "ece", "equal_mass_ece", "classwise_ece")
REFUSED = (
    "Failed to initialize the connection to the SuperLink"  # what a SuperNode says whom the SuperLink does not let in
)


# Flower starts a process for every message: one additive method, and one whose nodes keep a net (test_equal.py has all).
METHODS = ("fed-ts", "fedcal:rounds=1")


def small(data, method, clients=2):
    """Few arrays in a model: Flower sends each by requests of its own."""
    return config_of(data, method, clients, model="logistic", rounds=1)


def check_runs(processes, plan, data):
    """Every method on the same nodes, and the run's folder against the simulator: model, scaler, metrics. Bit for bit."""
    for method in METHODS:
        config = small(data, method, len(plan.names))
        run = replace(plan, config=config.resolve(), folder=plan.folder / file_name(method))
        launch.write_app(run)
        assert processes.call(file_name(method), run.run(), 240) == 0
        theirs = simulated(config)
        found = Scaler.load(run.folder / "scaler.safetensors")
        model = read_tensors(run.folder / "model.safetensors")[0]
        assert spec_of(found.method) == method and len(theirs.clients) == len(plan.names)
        assert distance(theirs.model, model) == 0
        assert distance(theirs.scaler.params, found.params) == 0
        results = read_json(run.folder / "results.json")["methods"][method]["global"]
        assert all(abs(results[key] - value) < 1e-12 for key, value in theirs.metrics.items() if key in MEASURED)
        about = read_json(run.folder / "federation.json")
        assert about["faults"] == [] and about["measured_by"] == theirs.clients
        assert about["training_rounds"] == 1 and about["calibration_rounds"] == theirs.rounds


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
            except OSError:
                return
            try:
                there = socket.create_connection((launch.HOST, self.to))
            except OSError:  # the SuperLink was killed
                here.close()
                continue
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


def secrets(data, clients):
    """What travels and nobody is to read, of the first node: label counts, of test and calibration samples, and scalers."""
    found = {}
    for method in METHODS:
        config = small(data, method, clients)
        theirs, first = simulated(config), assemble(config.resolve()).clients[0]
        found |= {f"{method}'s {name}": value.numpy() for name, value in theirs.scaler.params.items() if value.numel()}
    model = assemble(config.resolve()).model
    model.load_state_dict(theirs.model)
    found["hits by class"] = Tally.of(predict(model, first.test_x), first.test_y).to_tensors()["classes"][0].numpy()
    found["label counts"] = torch.bincount(first.cal_y, minlength=theirs.scaler.n_classes).double().numpy()
    return {name: value.tobytes() for name, value in found.items()}


def plaintext(data, clients):
    """Every byte of the same runs' messages, as they are before TLS."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    heard = bytearray()

    def hear(message):
        heard.extend(b"".join(part.deflate() for part in get_all_nested_objects(message).values()))

    def listening(message, context):
        hear(message)  # the app takes FedCal's records out
        reply = client_app(message, context)
        hear(reply)
        return reply

    for method in METHODS:
        config = small(data, method, clients)
        flower(config, grid_of(config, listening), training=1)
    return heard


def test_the_command(tmp_path):
    """With the oldest Flower too (`make oldest`), so it is short: one training round, one of calibration."""
    words = [
        "federate",
        "--data",
        "digits",
        "--clients",
        "2",
        "--model",
        "logistic",
        "--rounds",
        "1",
        "--method",
        "avg-t",
        "--quiet",
        "--out",
    ]
    with pytest.raises(SystemExit) as stop:
        main([*words, str(tmp_path)])
    assert stop.value.code == 0
    theirs = simulated(small("digits", "avg-t"))
    assert distance(theirs.model, read_tensors(tmp_path / "model.safetensors")[0]) == 0
    assert distance(theirs.scaler.params, Scaler.load(tmp_path / "scaler.safetensors").params) == 0
    states = list((tmp_path / "flower" / "state").iterdir())  # logits and labels: for nobody else
    modes = [path.stat().st_mode & 0o777 for path in (*states, states[0].parent)]
    assert modes == [0o600, 0o600, 0o700]
    assert not list(tmp_path.rglob("*.key")) and not (tmp_path / "flower" / "keys").exists()
    assert not kills.left_over(tmp_path, set())


def test_digits_equal_to_the_simulator_and_closed_to_strangers(tmp_path):
    """Strangers are refused meanwhile, and a relay learns nothing of what passes through it."""
    plan = launch.plan(small("digits", "fed-ts"), tmp_path, {"timeout": 60.0})
    ear = Ear(int(plan.fleet.rpartition(":")[2]))
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
        modes = {path.stat().st_mode & 0o777 for path in plan.keys.iterdir()}
        assert modes == {0o600} and plan.keys.stat().st_mode & 0o777 == 0o700
        check_runs(processes, plan, "digits")
        for stranger in strangers:
            assert processes.running[stranger].poll() not in (None, 0)
            assert REFUSED in (plan.flower / "logs" / f"{stranger}.log").read_text()
    assert processes.running == {} and not plan.keys.exists()
    assert len(ear.heard) > 100_000  # rounds of models and more
    open_text = plaintext("digits", 2)
    for name, secret in {"a record's name": b"fedcal.", **secrets("digits", 2)}.items():
        assert secret in open_text, name
        assert secret not in ear.heard, name


def test_killed_node_server_and_superlink(tmp_path):
    """kill -9 of one of three SuperNodes, then of the ServerApp, then of the SuperLink, each in mid-round: the run is started
    again each time, ends, and says who took part."""
    config = config_of("digits", "fedcal-literal", clients=3, rounds=4)
    plan = launch.plan(config, tmp_path / "run", {"timeout": 60.0, "patience": 15.0}, insecure=True)
    ear = Ear(int(plan.fleet.rpartition(":")[2]))
    plan = replace(plan, entrance=f"{launch.HOST}:{ear.port}", database=True)
    launch.prepare(plan)
    training = plan.folder / "checkpoint" / "training.safetensors"
    with launch.federation(plan) as processes:
        processes.start("run", plan.run())
        wait_for(lambda: trained(training) >= 1)
        os.killpg(processes.running["node-2"].pid, signal.SIGKILL)
        wait_for(lambda: trained(training) >= 2)
        time.sleep(2)  # the next round's messages are out: nodes would wait for one that was cut off half-way
        for process in serverapp(plan):
            os.kill(process, signal.SIGKILL)
        processes.stop("run")
        processes.start("again", plan.run())
        wait_for(lambda: trained(training) >= 3)
        time.sleep(1)
        os.killpg(processes.running["superlink"].pid, signal.SIGKILL)
        processes.stop("superlink")
        processes.stop("again")
        processes.start("superlink", plan.superlink())  # the nodes come back by themselves
        launch.wait_until_up(plan, processes)
        assert processes.call("last", plan.run(), 240) == 0
    about = read_json(plan.folder / "federation.json")
    assert about["measured_by"] == ["client-0", "client-1"]
    assert about["training_rounds"] == 4 and [len(r["took_part"]) for r in about["rounds"]] == [3, 2, 2, 2, 2]
    assert about["faults"][0]["name"] == "client-2"
    scaler = Scaler.load(plan.folder / "scaler.safetensors")
    assert all(bool(value.isfinite().all()) for value in scaler.params.values())
    assert not training.exists()
    assert b"fedcal.reply" in ear.heard  # without TLS everything can be read


def trained(path):
    return read_tensors(path)[1]["training"] if path.exists() else 0


def wait_for(condition, patience=180.0):
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)


def serverapp(plan):
    """The ServerApp's process, of that federation."""
    home, found = f"FLWR_HOME={plan.flower / 'home'}\0".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if b"flwr-serverapp" in (entry / "comm").read_bytes() and home in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    assert len(found) == 1
    return found
