"""What `fedcal federate` starts: Flower's own commands, as a user would type them on real machines (`--dry-run`).

Flower's options changed with its way to talk: up to 1.34 by gRPC, at three addresses of the SuperLink; since 1.40 by HTTP,
at one.
"""

from __future__ import annotations

import importlib.metadata
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcal.errors import FedCalError
from fedcal.simulate.config import Config

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # seconds; Flower's own is 1
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",  # one thread per process: sums are the same bytes on every machine
}
HOST = "127.0.0.1"
DATABASE = "state.db"
OLDEST = (1, 26)  # with connections in FLWR_HOME/config.toml
APPS_BY_HTTP, CONTROL_BY_HTTP, FLEET_BY_HTTP = (1, 35), (1, 37), (1, 40)  # since when apps, `flwr` and nodes use HTTP


def flower_version() -> tuple[int, int]:
    """Return the installed Flower's version.

    Raises:
        FedCalError: where it is too old for `fedcal federate`.
    """
    text = importlib.metadata.version("flwr")
    major, minor = (int(part) for part in text.split(".")[:2])
    if (major, minor) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise FedCalError(
            f"fedcal federate needs Flower {oldest} or newer, not {text}: pip install -U 'fedcal[flower]'"
        )
    return major, minor


@dataclass(frozen=True)
class Plan:
    """A federation's files, all under `folder`, and the commands that start it."""

    config: Config
    folder: Path
    names: list[str]  # the clients
    ports: tuple[int, int, int]  # of the SuperLink: for `flwr` and whoever uses HTTP, for nodes, for its ServerApp
    node_ports: list[int]
    insecure: bool
    options: dict[str, Any]  # of the strategy
    database: bool = False  # nodes reconnect to a SuperLink that was killed; rounds take twice as long
    entrance: str = ""  # the address that nodes connect to, if it is not the SuperLink's
    policy: Path | None = None  # a file of what nodes tell at most

    @property
    def flower(self) -> Path:
        """Flower's own files: logs, keys, its home, what nodes keep."""
        return self.folder / "flower"

    @property
    def keys(self) -> Path:
        """Certificates and keys: private, and gone when the processes are."""
        return self.flower / "keys"

    @property
    def temporary(self) -> Path:
        return self.flower / "tmp"

    @property
    def address(self) -> str:
        """Where `flwr` finds the SuperLink."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def fleet(self) -> str:
        """Where nodes find it."""
        return self.address if self.version >= FLEET_BY_HTTP else f"{HOST}:{self.ports[1]}"

    @cached_property
    def version(self) -> tuple[int, int]:
        return flower_version()

    def superlink(self) -> list[str]:
        command, by_http = ["flower-superlink"], self.version >= CONTROL_BY_HTTP
        if self.version >= APPS_BY_HTTP:
            command += ["--host", HOST, "--port", str(self.ports[0 if by_http else 2])]
        else:
            command += ["--serverappio-api-address", f"{HOST}:{self.ports[2]}"]
        if not by_http:
            command += ["--control-api-address", self.address]
        if self.version < FLEET_BY_HTTP:
            command += ["--fleet-api-address", self.fleet]
        if self.database:
            command += ["--database", str(self.flower / DATABASE)]
        if self.insecure:
            return [*command, "--insecure"]
        files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
        for option, name in files.items():
            command += [f"--ssl-{option}", str(self.keys / name)]
        return [*command, "--enable-supernode-auth"]

    def register(self, number: int) -> list[str]:
        return ["flwr", "supernode", "register", f"{self.key(number)}.pub", "fedcal"]

    def supernode(self, number: int) -> list[str]:
        about = {"name": self.names[number], "fedcal-state": str(self.flower / "state")}
        about |= {"fedcal-policy": str(self.policy)} if self.policy else {}
        words = " ".join(f'{key}="{value}"' for key, value in about.items())
        port = str(self.node_ports[number])
        by_http = self.version >= APPS_BY_HTTP
        own = ["--host", HOST, "--port", port] if by_http else ["--clientappio-api-address", f"{HOST}:{port}"]
        command = [
            "flower-supernode", "--superlink", self.entrance or self.fleet, *own,
            "--node-config", f"partition-id={number} num-partitions={len(self.names)} {words}",
        ]  # fmt: skip
        if self.insecure:
            return [*command, "--insecure"]
        trusted = ["--root-certificates", str(self.keys / "ca.crt")]
        return [*command, *trusted, "--auth-supernode-private-key", str(self.key(number))]

    def run(self) -> list[str]:
        return ["flwr", "run", str(self.flower / "app"), "fedcal", "--stream"]

    def key(self, number: int) -> Path:
        return self.keys / f"node-{number}"

    def commands(self) -> list[str]:
        """Return all commands in their order, as lines of a shell script."""
        numbers = range(len(self.names))
        registered = [] if self.insecure else [shlex.join(self.register(i)) for i in numbers]
        nodes = [shlex.join(self.supernode(i)) + " &" for i in numbers]
        exports = [f"export {name}={value}" for name, value in self.environment().items()]
        return [*exports, shlex.join(self.superlink()) + " &", *registered, *nodes, shlex.join(self.run())]

    def environment(self) -> dict[str, str]:
        return {"FLWR_HOME": str(self.flower / "home"), **ENVIRONMENT}
