"""A real SuperLink and real SuperNodes on loopback, with TLS and node keys: equal to the simulator, and hard to break.

Few and small: each round costs seconds. What processes add nothing to is tested with a LocalGrid.
"""

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from benchmarks import kills
from fedcal import Scaler
from fedcal.base.arrays import tensors
from fedcal.base.store import read_json, read_tensors
from fedcal.cli.main import main
from fedcal.federate import launch
from fedcal.federate.app.client_app import app as client_app
from fedcal.federate.keys import write_node_key
from fedcal.federate.plan import FLEET_BY_HTTP
from fedcal.learn.local import predict
from fedcal.measure.tally import Tally
from fedcal.methods import spec_of
from fedcal.simulate.assemble import assemble
from transport.flower.help import config_of, distance, flower, grid_of, simulated

MEASURED = ("accuracy", "nll", "brier", "ece", "equal_mass_ece", "classwise_ece")
REFUSED = "Failed to initialize the connection to the SuperLink"  # says a SuperNode that the SuperLink does not let in
# Few messages of few arrays: each takes seconds.
CONFIG = config_of("digits", "avg-t", clients=2, model="logistic", rounds=1)
COMMAND = "federate --data digits --clients 2 --model logistic --rounds 1 --method avg-t --quiet --out"


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


def secrets():
    """What travels and nobody is to read: the scaler, and what the first node says of its test samples."""
    theirs, state = simulated(CONFIG), assemble(CONFIG.resolve())
    found = {name: value for name, value in theirs.scaler.params.items() if value.size}
    state.model.load_state_dict(tensors(theirs.model))
    tally = Tally.of(predict(state.model, state.clients[0].test_x), state.clients[0].test_y)
    found["histogram"] = tally.to_arrays()["reliability"][:2]
    return {name: value.tobytes() for name, value in found.items()}


def plaintext():
    """Every byte of the same run's messages, as they are before TLS."""
    try:
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    except ImportError:  # older Flowers
        from flwr.common.inflatable import get_all_nested_objects

    heard = bytearray()

    def hear(message):
        heard.extend(b"".join(part.deflate() for part in get_all_nested_objects(message).values()))

    def listening(message, context):
        hear(message)  # the app takes FedCal's records out
        reply = client_app(message, context)
        hear(reply)
        return reply

    flower(CONFIG, grid_of(CONFIG, listening), training=1)
    return heard


def run(folder, *more):
    with pytest.raises(SystemExit) as stop:
        main([*COMMAND.split(), str(folder), *more])
    assert stop.value.code == 0


@pytest.fixture
def ear(monkeypatch, tmp_path):
    """Nodes reach the SuperLink through a relay; two strangers try to get in, and must be refused by the end."""
    ears, start = [], launch.federation

    @contextmanager
    def federation(plan, keep_keys=False):
        ears.append(Ear(int(plan.fleet.rpartition(":")[2])))
        plan = replace(plan, entrance=f"{launch.HOST}:{ears[0].port}")
        two = replace(plan, node_ports=launch.free_ports(2))
        write_node_key(tmp_path / "key")
        strangers = {
            "unknown": two.supernode(0)[:-2],  # no key at all
            "wrong": [*two.supernode(1)[:-1], str(tmp_path / "key")],
        }
        with start(plan, keep_keys) as processes:
            for stranger in strangers:
                processes.start(stranger, strangers[stranger])
            modes = {path.stat().st_mode & 0o777 for path in plan.keys.iterdir()}
            assert modes == {0o600} and plan.keys.stat().st_mode & 0o777 == 0o700
            yield processes
            for stranger in strangers:
                assert processes.running[stranger].poll() not in (None, 0)
                said = (plan.flower / "logs" / f"{stranger}.log").read_text()
                assert plan.version < FLEET_BY_HTTP or REFUSED in said  # older ones say it in other words

    monkeypatch.setattr(launch, "federation", federation)
    return ears


def test_the_command(tmp_path, ear):
    """Equal to the simulator, bit for bit; strangers are refused, a relay learns nothing, and nothing is left behind.

    One run for all of it, with the oldest Flower too (`make oldest`).
    """
    folder, theirs = tmp_path / "run", simulated(CONFIG)
    run(folder)
    found = Scaler.load(folder / "scaler.safetensors")
    assert spec_of(found.method) == "avg-t" and distance(theirs.scaler.params, found.params) == 0
    assert distance(theirs.model, read_tensors(folder / "model.safetensors")[0]) == 0
    results = read_json(folder / "results.json")["methods"]["avg-t"]["global"]
    assert all(abs(results[key] - value) < 1e-12 for key, value in theirs.metrics.items() if key in MEASURED)
    about = read_json(folder / "federation.json")
    assert about["faults"] == [] and about["measured_by"] == theirs.clients
    assert about["training_rounds"] == 1 and about["calibration_rounds"] == theirs.rounds
    states = list((folder / "flower" / "state").iterdir())  # logits and labels: for nobody else
    modes = [path.stat().st_mode & 0o777 for path in (*states, states[0].parent)]
    assert modes == [0o600, 0o600, 0o700]
    assert not list(folder.rglob("*.key")) and not (folder / "flower" / "keys").exists()
    assert not kills.left_over(folder, set())
    assert len(ear[0].heard) > 20_000  # models and more
    open_text = plaintext()
    for name, secret in {"a record's name": b"fedcal.", **secrets()}.items():
        assert secret in open_text, name
        assert secret not in ear[0].heard, name
    written = (folder / "results.json").stat().st_mtime_ns
    run(folder, "--resume")  # nothing is left to do
    assert (folder / "results.json").stat().st_mtime_ns == written


def test_killed_node_server_and_superlink(tmp_path):
    """kill -9 of one of two SuperNodes and of the ServerApp in one round, then of the SuperLink in the next: the run is
    started again each time, ends, and says who took part."""
    config = config_of("digits", "fedcal-literal", clients=2, rounds=3, model="logistic")
    plan = launch.plan(config, tmp_path / "run", {"timeout": 240.0, "patience": 20.0}, insecure=True)
    ear = Ear(int(plan.fleet.rpartition(":")[2]))
    plan = replace(plan, entrance=f"{launch.HOST}:{ear.port}", database=True)
    launch.prepare(plan)
    training = plan.folder / "checkpoint" / "training.safetensors"
    with launch.federation(plan) as processes:
        processes.start("run", plan.run())
        wait_for(lambda: trained(training) >= 1)
        os.killpg(processes.running["node-1"].pid, signal.SIGKILL)
        time.sleep(2)  # the next round's messages are out: nodes would wait for one that was cut off half-way
        for process in serverapp(plan):
            os.kill(process, signal.SIGKILL)
        processes.stop("run")
        processes.start("again", plan.run())
        wait_for(lambda: trained(training) >= 2)
        time.sleep(1)
        os.killpg(processes.running["superlink"].pid, signal.SIGKILL)
        processes.stop("superlink")
        processes.stop("again")
        processes.start("superlink", plan.superlink())  # the node comes back by itself
        launch.wait_until_up(plan, processes)
        assert processes.call("last", plan.run(), 600) == 0
    about = read_json(plan.folder / "federation.json")
    assert about["measured_by"] == ["client-0"]
    assert about["training_rounds"] == 3 and [len(r["took_part"]) for r in about["rounds"]] == [2, 1, 1, 1]
    assert about["faults"][0]["name"] == "client-1"
    scaler = Scaler.load(plan.folder / "scaler.safetensors")
    assert all(bool(np.isfinite(value).all()) for value in scaler.params.values())
    assert not training.exists()
    assert b"fedcal.reply" in ear.heard  # without TLS everything can be read


def trained(path):
    return read_tensors(path)[1]["training"] if path.exists() else 0


def wait_for(condition, patience=600.0):  # a machine may be busy
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
