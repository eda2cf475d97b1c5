"""Commands of a federation by files: `fedcal server` and `fedcal client`. They parse, call and print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcal.base.limits import MOST_BYTES
from fedcal.cli.options import (
    ADVANCED,
    Alpha,
    Classes,
    Coverage,
    Kind,
    MaxBytes,
    Seed,
    Spec,
    agreed_classes,
    kind_of,
    parse_classes,
    sets_options,
)
from fedcal.errors import FedCalError, counted, printable
from fedcal.methods import DEFAULT

if TYPE_CHECKING:
    from fedcal.transport.files import ServerFolder

server_app = typer.Typer(help="Run the server of a federation that exchanges files.", no_args_is_help=True)
client_app = typer.Typer(help="Take part as a site in a federation that exchanges files.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The site's .npz, .csv or .parquet.")]
Name = Annotated[
    str | None,
    typer.Option(
        "--name", help="The site's name; if the file has several sites, which one to use. (default: the file's name)"
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        help="Folder for what the site keeps between replies; never send it. (default: NAME.state next to FILE)",
        rich_help_panel=ADVANCED,
    ),
]


@server_app.command("start")
def server_start(
    folder: Folder,
    classes: Annotated[str, typer.Option(metavar="K|A,B,...", help="The number of classes, or their labels in order.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, separated by commas.")],
    method: Spec = DEFAULT,
    alpha: Alpha = None,
    coverage: Coverage = None,
    seed: Seed = 0,
) -> None:
    """Start a federation: write the first request, which goes to every site."""
    from fedcal.methods import get_method, spec_of
    from fedcal.transport.files import start

    names = parse_classes(classes) or []
    spec = spec_of(get_method(method, **sets_options(alpha, coverage)))
    federation = start(folder, spec, names[0] if len(names) == 1 else names, sites.split(","), seed)
    _print_next(federation)
    print(f"What each site sends: {federation.server.plan.method.leaves}.")


@server_app.command("receive")
def server_receive(
    folder: Folder,
    replies: Annotated[
        list[Path] | None, typer.Argument(metavar="REPLY...", help="The replies of all sites to this round's request.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Continue without this site; may be repeated. An exact fit starts again with the others.",
        ),
    ] = None,
) -> None:
    """Process a round's replies: write the next request, or the scaler when the fit is done."""
    from fedcal.transport.files import receive

    federation = receive(folder, replies or [], without or [])
    if without:
        names = ", ".join(without)
        if federation.server.fit.received:
            print(f"Continuing without {names}.")
        else:
            print(f"The fit starts again without {names}: replies to earlier requests can no longer be used.")
    _print_next(federation)


@server_app.command("status")
def server_status(folder: Folder) -> None:
    """Show the state of a federation, and write its request (or scaler) again if the file was lost."""
    from fedcal.transport.files import status

    _print_next(status(folder))


@server_app.command("merge")
def server_merge(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The server's scaler.safetensors.")],
    parts: Annotated[
        list[Path],
        typer.Argument(metavar="PART...", help="Scaler files from `fedcal client finish`, sent by the sites."),
    ],
    out_file: Annotated[Path, typer.Option("--out", help="The file to write.")],
) -> None:
    """Merge sites' personal scalers into one file. Ask the sites first: a personal scaler reveals a label distribution."""
    from fedcal.transport.files import merge

    sites = ", ".join(merge(scaler, parts, out_file))
    print(printable(f"{out_file} holds the global scaler and the personal scalers of {sites}."))


@client_app.command("reply")
def client_reply(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request file from the server.")],
    file: File,
    site: Name = None,
    state: State = None,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="The reply file to write. (default: next to the request, named by site and round)"),
    ] = None,
    probs: Kind = None,
    classes: Classes = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Limits on what this site reveals, as JSON or TOML (docs/deploy.md).",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    allow_pooling: Annotated[
        bool,
        typer.Option(
            "--allow-pooling", help="Allow a method that sends every logit and label.", rich_help_panel=ADVANCED
        ),
    ] = False,
    min_count: Annotated[
        int | None,
        typer.Option(
            help="Send no sums over fewer samples than this. (default: 5)", show_default=False, rich_help_panel=ADVANCED
        ),
    ] = None,
    join: Annotated[
        bool,
        typer.Option(
            "--join",
            help="Join this federation although the site takes part in another one.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Reply to a request from the server, using the site's samples, if the site's policy allows it."""
    from fedcal.base.store import check_outputs
    from fedcal.data.logit_files import read_site
    from fedcal.protocol import Policy
    from fedcal.transport.files import read_request, reply

    check_outputs({"--state": state, "--out": out_file}, [request, file])
    rules = Policy.load(policy) if policy else Policy()
    rules = replace(rules, allow_pooling=rules.allow_pooling or allow_pooling)
    rules = rules if min_count is None else replace(rules, min_count=min_count)
    known = agreed_classes(classes, read_request(request)[0].classes)
    name, logits, labels, were_probs = read_site(file, kind_of(probs), known, site, max_bytes)
    if labels is None:
        raise FedCalError(f"{file}: no labels: add an array `labels`, or a column `label`")
    path = reply(request, (logits, labels), name, _state(state, file, name), out_file, were_probs, rules, join)
    few = f", without {name}'s samples: {len(labels)} are fewer than the policy's min_count, {rules.min_count}"
    print(printable(f"{path} is for the server{few if len(labels) < rules.min_count else ''}."))


@client_app.command("finish")
def client_finish(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The server's scaler.safetensors.")],
    file: File,
    out_file: Annotated[Path, typer.Option("--out", help="The scaler file to write.")],
    site: Name = None,
    state: State = None,
    probs: Kind = None,
    classes: Classes = None,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Add the site's personal scaler to the global one. Sites that took no part in the fit can do this too."""
    from fedcal.base.store import check_outputs
    from fedcal.data.logit_files import read_site
    from fedcal.protocol import Scaler
    from fedcal.transport.files import finish

    check_outputs({"--state": state, "--out": out_file}, [scaler, file])
    known = agreed_classes(classes, Scaler.load(scaler).classes)
    name, logits, labels, were_probs = read_site(file, kind_of(probs), known, site, max_bytes)
    took_part = finish(scaler, (logits, labels), name, _state(state, file, name), out_file, were_probs)
    without_state = "" if took_part else " (made without a state folder, as for a site that took no part)"
    print(printable(f"{out_file} is {name}'s scaler{without_state}."))


def _print_next(federation: ServerFolder) -> None:
    request = federation.server.request
    if request is None:
        print(printable(f"Done after {counted(federation.server.ledger.rounds, 'round')}: {federation.output}"))
    else:
        print(printable(f"Round {request.round}: {federation.output} is for {', '.join(federation.sites)}."))


def _state(given: Path | None, file: Path, name: str) -> Path:
    from fedcal.protocol.checks import check_client_name

    return given or file.with_name(f"{check_client_name(name)}.state")
