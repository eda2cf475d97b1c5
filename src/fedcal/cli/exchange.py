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
    kind_of,
    parse_classes,
    sets_options,
)
from fedcal.errors import FedCalError, counted, printable
from fedcal.methods import DEFAULT

if TYPE_CHECKING:
    from fedcal.transport.files import ServerFolder

server_app = typer.Typer(help="The server of a federation by files.", no_args_is_help=True)
client_app = typer.Typer(help="A site of a federation by files.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The site's .npz, .csv or .parquet.")]
Name = Annotated[
    str | None, typer.Option("--name", help="The site's name, or which of the file's sites. (default: the file's)")
]
State = Annotated[
    Path | None,
    typer.Option(
        help="Folder of what the site keeps between replies; it never leaves. (default: NAME.state beside its file)",
        rich_help_panel=ADVANCED,
    ),
]


@server_app.command("start")
def server_start(
    folder: Folder,
    classes: Annotated[str, typer.Option(metavar="K|A,B,...", help="How many classes, or their labels in order.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas between them.")],
    method: Spec = DEFAULT,
    alpha: Alpha = None,
    coverage: Coverage = None,
    seed: Seed = 0,
) -> None:
    """Begin a federation: write the first request, for every site."""
    from fedcal.methods import get_method, spec_of
    from fedcal.transport.files import start

    names = parse_classes(classes) or []
    spec = spec_of(get_method(method, **sets_options(alpha, coverage)))
    federation = start(folder, spec, names[0] if len(names) == 1 else names, sites.split(","), seed)
    _print_next(federation)
    print(f"What leaves a site: {federation.server.plan.method.leaves}.")


@server_app.command("receive")
def server_receive(
    folder: Folder,
    replies: Annotated[
        list[Path] | None, typer.Argument(metavar="REPLY...", help="The reply of every site to this round's request.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Go on without this site; may be repeated. An exact fit begins again with the others.",
        ),
    ] = None,
) -> None:
    """Take a round's replies: write the next request, or the scaler when the fit is done."""
    from fedcal.transport.files import receive

    federation = receive(folder, replies or [], without or [])
    if without:
        names = ", ".join(without)
        if federation.server.fit.received:
            print(f"Going on without {names}.")
        else:
            print(f"The fit begins again without {names}: replies to earlier requests are of no use any more.")
    _print_next(federation)


@server_app.command("status")
def server_status(folder: Folder) -> None:
    """Say where a federation stands, and write its request (or scaler) again if that was lost."""
    from fedcal.transport.files import status

    _print_next(status(folder))


@server_app.command("merge")
def server_merge(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The server's scaler.safetensors.")],
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Scalers that sites have finished and sent.")],
    out_file: Annotated[Path, typer.Option("--out", help="The file to write.")],
) -> None:
    """Put sites' personal parts into one scaler file, where sites agree: such a part reveals their label distribution."""
    from fedcal.transport.files import merge

    sites = ", ".join(merge(scaler, parts, out_file))
    print(printable(f"{out_file} holds the global scaler and the personal parts of {sites}."))


@client_app.command("reply")
def client_reply(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What the server sent.")],
    file: File,
    site: Name = None,
    state: State = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The reply. (default: beside the request, named by site and round)")
    ] = None,
    probs: Kind = None,
    classes: Classes = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What this site reveals at most, as JSON or TOML (docs/deploy.md).",
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
            help="Samples that a reply is about at least. (default: 5)", show_default=False, rich_help_panel=ADVANCED
        ),
    ] = None,
    join: Annotated[
        bool,
        typer.Option(
            "--join",
            help="Join this federation too, where the site takes part in another one.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Reply to a request of the server's from the site's own samples, as far as the site's policy allows."""
    from fedcal.base.store import check_outputs
    from fedcal.data.logit_files import read_site
    from fedcal.protocol import Policy
    from fedcal.transport.files import read_request, reply

    check_outputs({"--state": state, "--out": out_file}, [request, file])
    rules = Policy.load(policy) if policy else Policy()
    rules = replace(rules, allow_pooling=rules.allow_pooling or allow_pooling)
    rules = rules if min_count is None else replace(rules, min_count=min_count)
    known = parse_classes(classes) or list(read_request(request)[0].classes) or None
    name, logits, labels, were_probs = read_site(file, kind_of(probs), known, site, max_bytes)
    if labels is None:
        raise FedCalError(f"{file}: no labels: add an array `labels`, or a column `label`")
    path = reply(request, (logits, labels), name, _state(state, file, name), out_file, were_probs, rules, join)
    print(printable(f"{path} is for the server."))


@client_app.command("finish")
def client_finish(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The server's scaler.safetensors.")],
    file: File,
    out_file: Annotated[Path, typer.Option("--out", help="The site's scaler.")],
    site: Name = None,
    state: State = None,
    probs: Kind = None,
    classes: Classes = None,
    max_bytes: MaxBytes = MOST_BYTES,
) -> None:
    """Write the site's scaler: the global one, and its personal part. Also for a site that took no part."""
    from fedcal.base.store import check_outputs
    from fedcal.data.logit_files import read_site
    from fedcal.protocol import Scaler
    from fedcal.transport.files import finish

    check_outputs({"--state": state, "--out": out_file}, [scaler, file])
    known = parse_classes(classes) or list(Scaler.load(scaler).classes) or None
    name, logits, labels, were_probs = read_site(file, kind_of(probs), known, site, max_bytes)
    took_part = finish(scaler, (logits, labels), name, _state(state, file, name), out_file, were_probs)
    without_state = "" if took_part else "; there is no state, as of a site that took no part"
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
