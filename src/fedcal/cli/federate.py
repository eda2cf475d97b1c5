"""`fedcal federate`: a real Flower federation on this machine. It parses and calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedcal.cli.logits import Seed, Spec
from fedcal.cli.start import when_stopped
from fedcal.errors import FedCalError
from fedcal.methods import DEFAULT, get_method

out = Console()


def federate(
    out_dir: Annotated[
        Path, typer.Option("--out", help="Run folder: scaler, results, report; Flower's logs and keys.")
    ],
    data: Annotated[str, typer.Option(help="Data set (see `fedcal data list`).")] = "heart",
    method: Spec = DEFAULT,
    rounds: Annotated[int, typer.Option(help="Training rounds.")] = 3,
    clients: Annotated[
        int | None, typer.Option(help="SuperNodes (default: 3; natural clients: as many as there are).")
    ] = None,
    beta: Annotated[float, typer.Option(help="Dirichlet concentration: lower is more skewed.")] = 0.5,
    model: Annotated[str | None, typer.Option(help="(default: as suits the data)")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the data files.")] = None,
    robust: Annotated[str | None, typer.Option(help="median or trimmed, in place of fedcal's mean.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that nodes have for a round.")] = 120.0,
    limit: Annotated[float, typer.Option(help="Seconds that the whole run may take.")] = 3600.0,
    seed: Seed = 0,
    secure: Annotated[
        bool, typer.Option("--secure", help="Secure aggregation: the server sees sums over at least three nodes only.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Neither TLS nor node keys.")] = False,
    keep_keys: Annotated[bool, typer.Option("--keep-keys", help="Leave certificates and node keys in --out.")] = False,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What nodes tell at most, as JSON or TOML (docs/deploy.md).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and start nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Run a real Flower federation on this machine: SuperLink, SuperNodes and the run as processes on loopback.

    With TLS and node keys, made for it, unless --insecure. --dry-run prints the commands, to be copied to real machines.
    """
    from fedcal.base.lock import locked
    from fedcal.data import DATASETS
    from fedcal.federate import launch
    from fedcal.secure import divide
    from fedcal.simulate.config import Config
    from fedcal.simulate.runs import check_folder

    natural = data in DATASETS and DATASETS[data].partition == "natural"
    count = clients if clients is not None or natural else 3
    settings: dict[str, Any] = {"clients": count, "clients_per_round": count, "beta": beta, "model": model}
    chosen = get_method(method)
    if chosen.name == "uncal" or chosen.needs_pooled_data:
        raise FedCalError(f"{chosen.name} is nothing that nodes do: choose fed-ts, fedcal-plus or another")
    methods = ("uncal", method)
    config = Config(data=data, rounds=rounds, method=methods, data_dir=data_dir, seed=seed, **settings).resolve()
    options = {"robust": robust, "timeout": timeout, "secure": secure}
    plan = launch.plan(config, out_dir, options, insecure, policy)
    if secure:
        divide(plan.names)  # refuses too few nodes
    if dry_run:
        for line in plan.commands():
            print(line)
        return
    kept = f"finished rounds are kept in {out_dir}: go on with the same command and --resume"
    with locked(out_dir, "fedcal federate"), when_stopped(kept):
        check_folder(out_dir, config, resume, overwrite)
        if not quiet:
            names, logs = escape(", ".join(plan.names)), escape(str(plan.flower / "logs"))
            out.print(f"{len(plan.names)} nodes ({names}); logs in {logs}", soft_wrap=True)
        launch.federate(plan, limit, resume, keep_keys)
    if not quiet:
        _tell(out_dir)


def _tell(folder: Path) -> None:
    """The outcome in a few lines."""
    from fedcal import report
    from fedcal.base.store import read_json
    from fedcal.errors import counted, printable

    about = read_json(folder / "federation.json")
    out.print(report.terminal(report.load(folder).results))
    training, calibration = (counted(about[f"{kind}_rounds"], f"{kind} round") for kind in ("training", "calibration"))
    print(f"{training} and {calibration}; {counted(len(about['measured_by']), 'node')} took part to the end")
    for fault in about["faults"]:
        print(printable(f"round {fault['round']} went on without {fault['name']}: {fault['reason']}"))
    out.print(f"\nReport: [bold]{escape(str(folder / 'report.html'))}[/bold]", soft_wrap=True)
