"""`fedcal federate`: a real Flower federation on this machine. It parses and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedcal.cli.options import ADVANCED, Quiet, Seed, Spec
from fedcal.cli.start import when_stopped
from fedcal.errors import FedCalError, counted, printable
from fedcal.methods import DEFAULT

if TYPE_CHECKING:
    from fedcal.cli.progress import Parts
    from fedcal.methods import Method

out = Console()
PRIVACY = "Privacy"


def federate(
    out_dir: Annotated[
        Path, typer.Option("--out", help="Run folder: scaler, results, report; Flower's logs and keys.")
    ],
    data: Annotated[str, typer.Option(help="Data set (see `fedcal data list`).")] = "heart",
    method: Spec = DEFAULT,
    rounds: Annotated[int, typer.Option(help="Training rounds.")] = 3,
    clients: Annotated[
        int | None, typer.Option(help="Number of SuperNodes. (default: 3; for data with natural clients: all of them)")
    ] = None,
    beta: Annotated[float, typer.Option(help="Dirichlet concentration: lower is more skewed.")] = 0.5,
    model: Annotated[str | None, typer.Option(help="Model. (default: depends on the data)")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the data files.", rich_help_panel=ADVANCED)] = None,
    robust: Annotated[
        str | None,
        typer.Option(
            help="Average fedcal's nets by median or trimmed mean instead of the mean.", rich_help_panel=ADVANCED
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Differential privacy of each sample: ε (needs fedcal\\[privacy]).", rich_help_panel=PRIVACY),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Differential privacy: δ. (default: 1e-5)", rich_help_panel=PRIVACY)
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="Who adds the noise: central, local or distributed. (default: central; --secure: distributed)",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds that nodes have to reply in a round.", rich_help_panel=ADVANCED)
    ] = 120.0,
    limit: Annotated[
        float, typer.Option(help="Seconds that the whole run may take.", rich_help_panel=ADVANCED)
    ] = 3600.0,
    seed: Seed = 0,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Secure aggregation: the server sees only sums over at least three nodes.",
            rich_help_panel=PRIVACY,
        ),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use neither TLS nor node keys.", rich_help_panel=ADVANCED)
    ] = False,
    keep_keys: Annotated[
        bool, typer.Option("--keep-keys", help="Keep certificates and node keys in --out.", rich_help_panel=ADVANCED)
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Limits on what nodes reveal, as JSON or TOML (docs/deploy.md).",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and start nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run a real Flower federation on this machine: SuperLink, SuperNodes and run are processes on loopback.

    TLS certificates and node keys are made for it, unless --insecure. --dry-run prints the commands, as a template for real
    machines.
    """
    from fedcal.base.checks import check_value
    from fedcal.base.lock import locked
    from fedcal.cli.progress import Parts
    from fedcal.data import DATASETS
    from fedcal.federate import launch
    from fedcal.methods import get_method
    from fedcal.protocol.policy import private_rounds
    from fedcal.secure import divide, threshold
    from fedcal.simulate.config import Config
    from fedcal.simulate.runs import check_folder

    if epsilon is None and (noise is not None or delta is not None):
        raise FedCalError("--noise and --delta belong to --epsilon, without which there is no privacy: give it too")
    check_value("limit", limit, float, {"above": 0})
    natural = data in DATASETS and DATASETS[data].partition == "natural"
    count = clients if clients is not None or natural else 3
    settings: dict[str, Any] = {"clients": count, "clients_per_round": count, "beta": beta, "model": model}
    chosen = get_method(method)
    if chosen.name == "uncal" or chosen.needs_pooled_data:
        raise FedCalError(f"{chosen.name} cannot run on nodes: choose fed-ts, fedcal-plus or another method")
    methods = ("uncal", method)
    config = Config(data=data, rounds=rounds, method=methods, data_dir=data_dir, seed=seed, **settings).resolve()
    options: dict[str, Any] = {"robust": robust, "timeout": timeout, "secure": secure}
    groups = divide(launch.names_of(config)) if secure else []  # refuses too few nodes
    if epsilon is not None:
        # The server sees the total of every group: the nodes that are surely in it must have noise enough.
        honest = min((threshold(len(group)) for group in groups), default=None)
        options["privacy"] = privacy_options(
            epsilon, delta, noise or ("distributed" if secure else "central"), honest, chosen
        )
    plan = launch.plan(config, out_dir, options, insecure, policy)
    if dry_run:
        for line in plan.commands():
            print(line)
        return
    kept = f"finished rounds are kept in {out_dir}: continue with the same command and --resume"
    with locked(out_dir, "fedcal federate"), when_stopped(lambda: kept), Parts(out, quiet) as parts:
        check_folder(out_dir, config, resume, overwrite)
        if not quiet:
            names, logs = escape(", ".join(plan.names)), escape(str(plan.flower / "logs"))
            out.print(f"{len(plan.names)} nodes ({names}); logs in {logs}", soft_wrap=True)
        totals = {"training": rounds, "calibration": None if chosen.additive else chosen.rounds}
        # Other exact fits take a third of their bound or less: it would tell nothing.
        most = None if epsilon is None else private_rounds(chosen)
        launch.federate(plan, limit, resume, keep_keys, follow(parts, totals, most))
    if not quiet:
        tell(out_dir)


def privacy_options(
    epsilon: float, delta: float | None, where: Any, nodes: int | None, method: Method
) -> dict[str, Any]:
    """The settings of a `Privacy` as JSON values, checked, for the strategy's options.

    Raises:
        FedCalError: one is out of its bounds, or the method has no private form.
    """
    from fedcal.protocol import Privacy

    privacy = Privacy(
        epsilon, Privacy.delta if delta is None else delta, where=where, nodes=nodes if where == "distributed" else None
    )
    privacy.check(method)
    privacy.check_sent()
    _ = privacy.mu  # whether there is such noise, and an accountant: before anything is started
    return asdict(privacy)


WORDS = {
    "starting": "starting nodes",
    "training": "training round",
    "calibration": "calibration round",
    "measuring": "measuring",
    "reporting": "writing the report",
}


def follow(parts: Parts, totals: dict[str, int | None], most: int | None = None) -> Callable[[str, int], None]:
    """Show what a federation does.

    Args:
        parts: of the command.
        totals: rounds of each phase, where that is known.
        most: calibration rounds at most, where that is near to how many there are.

    Returns:
        What to call with the phase and its rounds that are done.
    """
    parts.begin(WORDS["starting"])

    def on_progress(phase: str, done: int) -> None:
        if parts.name != WORDS[phase]:
            parts.begin(WORDS[phase], totals.get(phase))
        parts.step(done, f"of at most {most}" if most and phase == "calibration" else "")

    return on_progress


def tell(folder: Path) -> None:
    """The outcome in a few lines."""
    from fedcal import report
    from fedcal.base.store import read_json

    about = read_json(folder / "federation.json")
    if about["privacy"]:
        _tell_privately(about)
    else:
        out.print(report.terminal(report.load(folder).results))
    training, calibration = (counted(about[f"{kind}_rounds"], f"{kind} round") for kind in ("training", "calibration"))
    print(f"{training} and {calibration}; {counted(len(about['measured_by']), 'node')} took part to the end")
    for fault in about["faults"]:
        print(printable(f"round {fault['round']} went on without {fault['name']}: {fault['reason']}"))
    if not about["privacy"]:
        out.print(f"\nReport: [bold]{escape(str(folder / 'report.html'))}[/bold]", soft_wrap=True)


def _noised_metrics(found: dict[str, Any], noise: float) -> str:
    """Metrics of a private run; where noise hides the NLL, it hides the others too."""
    if found["nll"] is None:
        return "too few samples to tell: the noise is larger than what was measured"
    metrics = f"NLL {found['nll']:.3f} ± {noise:.3f}  ECE {found['ece']:.3f}  accuracy {found['accuracy']:.3f}"
    return f"{metrics}  (noised; ±: its standard deviation)"


def _tell_privately(about: dict[str, Any]) -> None:
    """What a private run may tell: noised metrics of all nodes together."""
    spent, metrics = about["privacy"], about["metrics"]
    guarantee = f"ε = {spent['of_epsilon']:.3g}, δ = {spent['delta']:g} of each {spent['unit']}"
    print(f"differential privacy, {spent['where']}: {guarantee}")
    if spent["fallback"]:
        print("no correction gained more than noise alone could: probabilities stay as they are")
    views = {"uncal": "before and after"} if spent["fallback"] else {"uncal": "before", "global": "after"}
    for view, title in views.items():
        print(f"{title:6s} {_noised_metrics(metrics[view], spent['nll_noise'])}")
