"""A real federation on this machine: SuperLink, SuperNodes and the run as processes on loopback.

`plan` says what will be started, `prepare` writes the files that this needs, `federation` starts SuperLink and SuperNodes,
and `federate` does all of it and waits for the run.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import FedAvg

from fedcal.base.checks import check_value
from fedcal.base.store import make_folder, read_json, write_bytes, write_json
from fedcal.data import DATASETS, load
from fedcal.data.partition import dealt_names
from fedcal.errors import FedCalError
from fedcal.federate import app as app_package
from fedcal.federate.keys import write_certificates, write_node_key
from fedcal.federate.plan import DATABASE, HOST, Plan, flower_version
from fedcal.federate.processes import Processes, clear_away
from fedcal.federate.task import spec_of_run, strategy_options
from fedcal.learn.own import is_own
from fedcal.methods import get_method
from fedcal.protocol import Policy
from fedcal.simulate.config import Config
from fedcal.simulate.runs import FILES
from fedcal.transport.flower.strategy import CalibratedStrategy

COMING_UP = 60.0  # seconds that a SuperLink has to come up, and to register a key


def plan(
    config: Config, folder: Path, options: dict[str, Any], insecure: bool = False, policy: Path | None = None
) -> Plan:
    """Plan a federation of the config's clients, on free ports. Nothing is written yet.

    Args:
        config: of the run.
        folder: the run folder.
        options: of the strategy.
        insecure: neither TLS nor node keys.
        policy: a file of what nodes tell at most.

    Returns:
        The plan.

    Raises:
        FedCalError: where the config or an option is not as it should be, or Flower is too old.
    """
    flower_version()
    config = config.resolve()
    about = DATASETS.get(config.data)
    if about is None or is_own(config.model or ""):
        raise FedCalError(
            "fedcal federate trains fedcal's models on its data sets: for your own, see examples/quickstart"
        )
    if policy:
        Policy.load(policy).check_method(get_method(spec_of_run(config)))
    # Making a strategy checks the options, before anything is started.
    CalibratedStrategy(FedAvg(), spec_of_run(config), n_classes=len(about.classes), **strategy_options(options))
    check_value("timeout", options.get("timeout", 1), float, {"above": 0})
    if not about.embedded and not config.data_dir and "FEDCAL_DATA" not in os.environ:
        raise FedCalError(
            f"{config.data}: nodes are separate processes and need to know where its files are: pass --data-dir"
        )
    names = names_of(config)
    first, second, third, *node_ports = free_ports(len(names) + 3)
    rules = policy.absolute() if policy else None
    return Plan(config, folder.absolute(), names, (first, second, third), node_ports, insecure, options, policy=rules)


def names_of(config: Config) -> list[str]:
    """Return the names of a federation's clients."""
    if config.partition == "natural":
        return list(load(config.data, config.data_dir, config.seed, limit=config.limit).client_names)
    return list(dealt_names(config.clients or 20))


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


# --- files ---------------------------------------------------------------------------------------------------------------


def prepare(plan: Plan) -> None:
    """Write the files that the commands need: app and connection. Keys are written when the processes start."""
    here = plan.flower
    make_folder(plan.folder)
    make_folder(here, private=True)
    here.chmod(0o700)  # also where it was there already
    for old in here.glob(f"{DATABASE}*"):
        old.unlink()
    write_app(plan)
    write_json(plan.folder / "config.json", plan.config.to_dict())
    secure = f"root-certificates = {json.dumps(str(plan.keys / 'ca.crt'))}"
    connection = f'address = "{plan.address}"\n{"insecure = true" if plan.insecure else secure}\n'
    text = f'[superlink]\ndefault = "fedcal"\n\n[superlink.fedcal]\n{connection}'
    write_bytes(here / "home" / "config.toml", text.encode())


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


def write_keys(plan: Plan) -> None:
    """Write certificates and keys, for this user alone."""
    if not plan.insecure:
        write_certificates(plan.keys, HOST)
        for number in range(len(plan.names)):
            write_node_key(plan.key(number))


def clear(folder: Path) -> None:
    """Delete the files of an earlier run, and nothing else."""
    for name in (*FILES, "scaler.safetensors", "federation.json"):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoint", "flower", "scalers"):
        shutil.rmtree(folder / name, ignore_errors=True)


# --- processes -----------------------------------------------------------------------------------------------------------


@contextmanager
def federation(plan: Plan, keep_keys: bool = False) -> Iterator[Processes]:
    """Start SuperLink and SuperNodes and register the nodes; end all of them on the way out, whatever happened.

    Args:
        plan: whose files are prepared.
        keep_keys: leave certificates and keys in the folder.
    """
    private = [plan.temporary] if keep_keys else [plan.temporary, plan.keys]
    environment = {**plan.environment(), "TMPDIR": str(plan.temporary)}
    with Processes(plan.folder, plan.flower / "logs", environment, private) as processes:
        shutil.rmtree(plan.keys, ignore_errors=True)
        make_folder(plan.temporary, private=True)
        write_keys(plan)
        processes.start("superlink", plan.superlink())
        wait_until_up(plan, processes)
        for number, name in enumerate(plan.names):
            if not plan.insecure and processes.call("register", plan.register(number), COMING_UP):
                raise FedCalError(f"{name}'s key was not registered: {processes.tail('register')}")
            processes.start(f"node-{number}", plan.supernode(number))
        yield processes


def wait_until_up(plan: Plan, processes: Processes) -> None:
    """Wait until the SuperLink listens, for `flwr` and for nodes."""
    until = time.monotonic() + COMING_UP
    waiting = {plan.address, plan.fleet}
    while waiting and time.monotonic() < until and processes.running["superlink"].poll() is None:
        waiting = {address for address in waiting if not _listens(address)}
        time.sleep(0.1)
    if waiting:
        raise FedCalError(f"the SuperLink did not come up: {processes.tail('superlink')}")


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        return True
    except OSError:
        return False


def progress(folder: Path) -> tuple[str, int]:
    """Say how far a running federation has come.

    Args:
        folder: its run folder.

    Returns:
        What it does now (`starting`, `training`, `calibration`, `measuring` or `reporting`), and of training and calibration
        how many rounds are done.
    """
    if any((folder / name).exists() for name in ("scalers", "federation.json")):  # what is written first, and last
        return "reporting", 0
    try:
        log = read_json(folder / "checkpoint" / "log.json")
    except FedCalError:  # it has not begun
        return "starting", 0
    if log["measuring"]:
        return "measuring", 0
    done = Counter(one["phase"] for one in log["rounds"])
    phase = next((phase for phase in ("calibration", "training") if done[phase]), "starting")
    return phase, done[phase]


def federate(
    plan: Plan,
    timeout: float,
    resume: bool = False,
    keep_keys: bool = False,
    on_progress: Callable[[str, int], None] = lambda phase, done: None,
) -> None:
    """Start a federation, run it, and stop it. The run folder then holds scaler, results and report.

    Args:
        plan: of the federation.
        timeout: seconds that the run may take.
        resume: go on from the checkpoint in the run folder.
        keep_keys: leave certificates and keys in the folder.
        on_progress: called about once a second with what `progress` says.

    Raises:
        FedCalError: where the run did not finish.
    """
    clear_away(plan.folder, [plan.temporary, plan.keys])  # first of all: another one may be running there
    done = plan.folder / "federation.json"  # it is written last
    if resume and done.exists():
        return
    if not resume:
        clear(plan.folder)
    prepare(plan)
    with federation(plan, keep_keys) as processes:
        code = processes.call("run", plan.run(), timeout, lambda: on_progress(*progress(plan.folder)))
    if not done.exists():
        why = f"it took more than {timeout:.0f} s" if code == -1 else processes.tail("run")
        raise FedCalError(f"the federation did not finish ({why}): see {plan.flower / 'logs'}; continue with --resume")
