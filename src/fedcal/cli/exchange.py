"""Commands of a federation by files: `fedcal server` and `fedcal client`. They parse and call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedcal.cli.logits import Classes, Kind, Seed, Spec, kind_of, parse_classes
from fedcal.errors import FedCalError
from fedcal.methods import DEFAULT

server_app = typer.Typer(help="The server's half of a federation by files.", no_args_is_help=True)
client_app = typer.Typer(help="A site's half of a federation by files.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The site's .npz, .csv or .parquet.")]
Name = Annotated[
    str | None, typer.Option("--name", help="The site's name, or which of the file's sites. (default: the file's)")
]
State = Annotated[
    Path | None,
    typer.Option(help="What the site remembers; it never leaves. (default: NAME.state.safetensors beside its file)"),
]


@server_app.command("start")
def server_start(
    folder: Folder,
    classes: Annotated[str, typer.Option(metavar="K | A,B,…", help="How many classes, or their labels in order.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas between them.")],
    method: Spec = DEFAULT,
    seed: Seed = 0,
) -> None:
    """Begin a federation: writes the first question, for every site."""
    from fedcal.transport.files import start

    names = parse_classes(classes) or []
    server = start(folder, method, names[0] if len(names) == 1 else names, sites.split(","), seed)
    print(
        f"Round 1: {server.current()} is for {', '.join(server.sites)}. What leaves a site: {server.state.method.leaves}."
    )


@server_app.command("add")
def server_add(
    folder: Folder,
    answers: Annotated[list[Path], typer.Argument(metavar="ANSWER...", help="This round's answer of every site.")],
    without: Annotated[
        list[str] | None, typer.Option(metavar="SITE", help="Go on without this site, from now on; may be repeated.")
    ] = None,
) -> None:
    """Add up a round's answers: writes the next question, or the scaler when there is no more to ask."""
    from fedcal.transport.files import add

    server = add(folder, answers, without or [])
    for site in without or []:
        print(f"Going on without {site}; what it sent in earlier rounds stays in.")
    _say(server)


@server_app.command("status")
def server_status(folder: Folder) -> None:
    """Say where a federation stands, and write its question (or scaler) anew if that was lost."""
    from fedcal.transport.files import ask, replay

    server = replay(folder)
    if not server.current().exists():
        ask(server)
    _say(server)


@server_app.command("merge")
def server_merge(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The server's scaler.safetensors.")],
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Scalers that sites have finished and sent.")],
    out_file: Annotated[Path, typer.Option("--out", help="The file to write.")],
) -> None:
    """Put sites' own parts into one scaler file. Only for sites that wish so: their part reveals their label distribution."""
    from fedcal.transport.files import merge

    print(f"{out_file} holds the global scaler and the own parts of {', '.join(merge(scaler, parts, out_file))}.")


@client_app.command("answer")
def client_answer(
    question: Annotated[Path, typer.Argument(metavar="QUESTION", help="What the server sent.")],
    file: File,
    site: Name = None,
    state: State = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The answer. (default: NAME-ROUND.safetensors beside the question)")
    ] = None,
    probs: Kind = None,
    classes: Classes = None,
) -> None:
    """Answer a question of the server's from the site's own samples."""
    from fedcal.data.logit_files import read_site
    from fedcal.transport.files import answer, classes_of

    known = parse_classes(classes) or classes_of(question)
    name, logits, labels, _ = read_site(file, kind_of(probs), known, site)
    if labels is None:
        raise FedCalError(f"{file}: no labels: add an array `labels`, or a column `label`")
    path = answer(question, (logits, labels), name, _state(state, file, name), out_file)
    print(f"{path} is for the server.")


@client_app.command("finish")
def client_finish(
    scaler: Annotated[Path, typer.Argument(metavar="SCALER", help="The server's scaler.safetensors.")],
    file: File,
    out_file: Annotated[Path, typer.Option("--out", help="The site's scaler.")],
    site: Name = None,
    state: State = None,
    probs: Kind = None,
    classes: Classes = None,
) -> None:
    """The site's own scaler: the global one, and what the site adds for itself. Also for a site that took no part."""
    from fedcal.data.logit_files import read_site
    from fedcal.transport.files import classes_of, finish

    known = parse_classes(classes) or classes_of(scaler)
    name, logits, labels, were_probs = read_site(file, kind_of(probs), known, site)
    took_part = finish(scaler, (logits, labels), name, _state(state, file, name), out_file, were_probs)
    print(
        f"{out_file} is {name}'s own" + ("." if took_part else "; there is no state, as of a site that took no part.")
    )


def _say(server: Any) -> None:
    from fedcal.errors import counted

    if server.done:
        print(f"Done after {counted(server.round - 1, 'round')}: {server.current()}")
    else:
        print(f"Round {server.round}: {server.current()} is for {', '.join(server.sites)}.")


def _state(given: Path | None, file: Path, name: str) -> Path:
    return given or file.with_name(f"{name}.state.safetensors")
