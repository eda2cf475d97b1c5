"""A real federation on this machine: SuperLink, SuperNodes and the run as processes on loopback.

`plan` gives the commands, so that they can be copied to real machines (`--dry-run`); `federate` starts them, and stops them
in the end.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import FedAvg

from fedcal.base.store import write_bytes, write_json
from fedcal.data import DATASETS, load
from fedcal.errors import FedCalError
from fedcal.federate import app as app_package
from fedcal.federate.keys import write_certificates, write_node_key
from fedcal.federate.task import spec_of_run, strategy_options
from fedcal.federate.warm import write_commands
from fedcal.simulate.config import Config
from fedcal.simulate.runs import FILES
from fedcal.transport.flower.strategy import CalibratedStrategy

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
HOST = "127.0.0.1"
DATABASE = "state.db"
COMING_UP = 60.0  # seconds that a SuperLink has to come up, and to register a key


@dataclass(frozen=True)
class Plan:
    """A federation's files, all under `folder`, and the commands that start it."""

    config: Config
    folder: Path
    names: list[str]  # the clients
    port: int
    node_ports: list[int]
    insecure: bool
    options: dict[str, Any]  # of the strategy
    database: bool = False  # nodes reconnect to a SuperLink that was killed; rounds take twice as long
    entrance: str = ""  # the address that nodes connect to, if it is not the SuperLink's

    @property
    def flower(self) -> Path:
        """Flower's own files: keys, certificates, logs, its home."""
        return self.folder / "flower"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def superlink(self) -> list[str]:
        here = self.flower
        command = [
            "flower-superlink",
            "--host",
            HOST,
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
        ]
        if self.database:
            command += ["--database", str(here / DATABASE)]
        if self.insecure:
            return [*command, "--insecure"]
        return [
            *command, "--ssl-ca-certfile", str(here / "ca.crt"), "--ssl-certfile", str(here / "server.pem"),
            "--ssl-keyfile", str(here / "server.key"), "--enable-supernode-auth",
        ]  # fmt: skip

    def register(self, number: int) -> list[str]:
        return ["flwr", "supernode", "register", str(self.key(number)) + ".pub", "fedcal"]

    def supernode(self, number: int) -> list[str]:
        state = self.flower / "state"
        about = (
            f'partition-id={number} num-partitions={len(self.names)} name="{self.names[number]}" fedcal-state="{state}"'
        )
        command = [
            "flower-supernode", "--superlink", self.entrance or self.address,
            "--host", HOST, "--port", str(self.node_ports[number]), "--node-config", about,
        ]  # fmt: skip
        if self.insecure:
            return [*command, "--insecure"]
        key = ["--auth-supernode-private-key", str(self.key(number))]
        return [*command, "--root-certificates", str(self.flower / "ca.crt"), *key]

    def run(self) -> list[str]:
        return ["flwr", "run", str(self.flower / "app"), "fedcal", "--stream"]

    def key(self, number: int) -> Path:
        return self.flower / "keys" / f"node-{number}"

    def commands(self) -> list[str]:
        """Return all commands in their order, as lines of a shell script."""
        registered = [] if self.insecure else [self.register(i) for i in range(len(self.names))]
        nodes = [self.supernode(i) for i in range(len(self.names))]
        long = [shlex.join(self.superlink()) + " &", *map(shlex.join, registered)]
        long += [shlex.join(node) + " &" for node in nodes]
        return [*(f"export {k}={v}" for k, v in self.environment().items()), *long, shlex.join(self.run())]

    def environment(self) -> dict[str, str]:
        return {"FLWR_HOME": str(self.flower / "home"), **ENVIRONMENT}


def plan(config: Config, folder: Path, options: dict[str, Any], insecure: bool = False) -> Plan:
    """Plan a federation of the config's clients, on free ports. Nothing is written yet.

    Args:
        config: of the run.
        folder: the run folder.
        options: of the strategy.
        insecure: neither TLS nor node keys.

    Returns:
        The plan.

    Raises:
        FedCalError: where the config or an option is not as it should be.
    """
    config = config.resolve()
    about = DATASETS[config.data]
    CalibratedStrategy(
        FedAvg(), spec_of_run(config), n_classes=len(about.classes), **strategy_options(options)
    )  # it says what is wrong with the options
    if options.get("timeout", 1) <= 0:
        raise FedCalError(f"timeout must be above 0, not {options['timeout']}")
    if not about.embedded and not config.data_dir and "FEDCAL_DATA" not in os.environ:
        raise FedCalError(f"{config.data}: say where its files are, with --data-dir: nodes are processes of their own")
    if config.partition == "natural":
        names = list(load(config.data, config.data_dir, config.seed, limit=config.limit).client_names)
    else:
        count = config.clients or 20
        names = [f"client-{c:0{len(str(count - 1))}d}" for c in range(count)]
    port, *node_ports = free_ports(len(names) + 1)
    return Plan(config, folder.absolute(), names, port, node_ports, insecure, options)


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def write_app(plan: Plan) -> None:
    """Write the app's folder, from which Flower makes its bundle."""
    app, source = plan.flower / "app" / "fedcal_federation", Path(str(app_package.__file__)).parent
    for name in ("__init__.py", "client_app.py", "server_app.py"):
        write_bytes(app / name, (source / name).read_bytes())
    settings = {
        "config": json.dumps(plan.config.to_dict()),
        "options": json.dumps(plan.options),
        "out": str(plan.folder),
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    write_bytes(app.parent / "pyproject.toml", APP.format(config=lines).encode())


def prepare(plan: Plan) -> None:
    """Write the files that the commands need: app, connection, certificates and keys."""
    here = plan.flower
    for old in here.glob(f"{DATABASE}*"):
        old.unlink()
    write_app(plan)
    write_json(plan.folder / "config.json", plan.config.to_dict())
    secure = f"root-certificates = {json.dumps(str(here / 'ca.crt'))}"
    connection = f'address = "{plan.address}"\n{"insecure = true" if plan.insecure else secure}\n'
    write_bytes(
        here / "home" / "config.toml", f'[superlink]\ndefault = "fedcal"\n\n[superlink.fedcal]\n{connection}'.encode()
    )
    if not plan.insecure:
        shutil.rmtree(here / "keys", ignore_errors=True)
        (here / "server.key").unlink(missing_ok=True)
        write_certificates(here, HOST)
        for number in range(len(plan.names)):
            write_node_key(plan.key(number))


APP = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedcal-federation"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedcal"

[tool.flwr.app.components]
serverapp = "fedcal_federation.server_app:app"
clientapp = "fedcal_federation.client_app:app"

[tool.flwr.app.config]
{config}"""


class Processes:
    """The processes of one federation, each with a log."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.running = plan, dict[str, subprocess.Popen[bytes]]()
        # Flower starts its own commands by name: the warm ones come first, then those of this environment.
        folders = [str(plan.flower / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = {**os.environ, **plan.environment(), "PATH": os.pathsep.join(folders)}

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        log = self.plan.flower / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as file:
                process = subprocess.Popen(
                    [self._find(command[0]), *command[1:]], env=self.environment, stdout=file, stderr=file,
                    stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise FedCalError(
                f"{command[0]} cannot be started ({error.strerror}): pip install 'fedcal[flower]'"
            ) from None
        self.running[name] = process
        return process

    def call(self, name: str, command: list[str], timeout: float) -> int:
        """Start a command and wait for it; returns its exit status, or -1 where the time ran out."""
        process = self.start(name, command)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            self.stop(name)

    def stop(self, name: str) -> None:
        """End a process and what it started: by SIGTERM, then by SIGKILL."""
        process = self.running.pop(name, None)
        if process is None:
            return
        for how, patience in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(process.pid, how)
            except ProcessLookupError:
                break
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                continue

    def stop_all(self) -> None:
        for name in reversed(list(self.running)):
            self.stop(name)

    def _find(self, command: str) -> str:
        return shutil.which(command, path=self.environment["PATH"]) or command

    def tail(self, name: str) -> str:
        """Return the last line of a log, for an error message."""
        log = self.plan.flower / "logs" / f"{name}.log"
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
        return lines[-1].strip() if lines else "its log is empty"


@contextmanager
def federation(plan: Plan) -> Iterator[Processes]:
    """Start SuperLink and SuperNodes and register the nodes; stop all of them on the way out, whatever happened."""
    processes = Processes(plan)
    with tempfile.TemporaryDirectory(prefix="fedcal-") as short:  # a socket's path must be short
        try:
            line = Path(short) / "warm"
            write_commands(plan.flower / "bin", line)
            settings = json.dumps(plan.config.to_dict())
            processes.start("warm", [sys.executable, "-m", "fedcal.federate.warm", str(line), settings])
            processes.start("superlink", plan.superlink())
            wait_healthy(plan, processes)
            wait_warm(line, processes)
            for number, name in enumerate(plan.names):
                if not plan.insecure and processes.call("register", plan.register(number), COMING_UP):
                    raise FedCalError(f"{name}'s key was not registered: {processes.tail('register')}")
                processes.start(f"node-{number}", plan.supernode(number))
            yield processes
        finally:
            processes.stop_all()


def wait_healthy(plan: Plan, processes: Processes) -> None:
    """Wait until the SuperLink responds."""
    url = f"{'http' if plan.insecure else 'https'}://{plan.address}/health"
    trust = None if plan.insecure else ssl.create_default_context(cafile=plan.flower / "ca.crt")
    until = time.monotonic() + COMING_UP
    while time.monotonic() < until and processes.running["superlink"].poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2, context=trust):
                return
        except OSError:
            time.sleep(0.2)
    raise FedCalError(f"the SuperLink did not come up: {processes.tail('superlink')}")


def wait_warm(line: Path, processes: Processes) -> None:
    """Wait until processes can be forked; where they cannot, Flower's commands run as they are."""
    until = time.monotonic() + COMING_UP
    while not line.exists() and time.monotonic() < until and processes.running["warm"].poll() is None:
        time.sleep(0.1)


def federate(plan: Plan, timeout: float, resume: bool = False) -> None:
    """Start a federation, run it, and stop it. The run folder then holds scaler, results and report.

    Args:
        plan: of the federation.
        timeout: seconds that the run may take.
        resume: go on from the checkpoint in the run folder.

    Raises:
        FedCalError: where the run did not finish.
    """
    if not resume:
        clear(plan.folder)
    prepare(plan)
    with federation(plan) as processes:
        code = processes.call("run", plan.run(), timeout)
    done = (
        "federation.json" if plan.options.get("privacy") else "results.json"
    )  # private runs have no results by client
    if not (plan.folder / done).exists():
        why = f"it took more than {timeout:.0f} s" if code == -1 else processes.tail("run")
        raise FedCalError(f"the federation did not finish ({why}): see {plan.flower / 'logs'}; go on with --resume")


def clear(folder: Path) -> None:
    """Delete the files of an earlier run, and nothing else."""
    for name in (*FILES, "scaler.safetensors", "federation.json"):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoint", "flower", "scalers"):
        shutil.rmtree(folder / name, ignore_errors=True)
