"""Live progress of a run in the terminal: round, loss, accuracy, ECE, time left. Plain lines where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedcal.errors import counted
from fedcal.protocol import Server
from fedcal.report.tables import size
from fedcal.simulate.federation import Federation


class RunProgress:
    """A context manager whose `start` and `round` are the callbacks of `fedcal.run`."""

    def __init__(self, console: Console, rounds: int, quiet: bool) -> None:
        self.console, self.rounds, self.quiet = console, rounds, quiet
        self.bar = Progress(
            TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console,
            disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=rounds)

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def start(self, state: Federation) -> None:
        """Say what is about to run."""
        config = state.config
        self.bar.update(self.task, completed=state.round)
        if not self.quiet:
            skewness = f"β = {config.beta}" if config.partition == "dirichlet" else config.partition
            self.console.print(
                f"[bold]{config.data}[/bold]: {len(state.clients)} clients ({skewness}, G = {state.skew.G:.2f}), "
                f"{config.model}, {counted(config.rounds, 'round')}"
                + (f", from round {state.round}" if state.round else "")
            )

    def round(self, record: dict[str, Any]) -> None:
        """A round is done."""
        text = f"loss {record['loss']:.3f}  accuracy {record['accuracy']:.1%}  ECE {record['ece']:.1%}"
        self.bar.update(self.task, completed=record["round"], description=text)
        if (
            not self.quiet
            and not self.console.is_terminal
            and (record["round"] % 10 == 0 or record["round"] == self.rounds)
        ):
            self.console.print(f"round {record['round']}/{self.rounds}  {text}  {record['seconds']:.1f} s")
        if record["round"] == self.rounds:
            self.bar.update(self.task, description=f"{text}  calibrating …")


@contextmanager
def fitting(console: Console, what: str, quiet: bool) -> Iterator[Callable[[Server], None]]:
    """Progress of a fit whose number of rounds is not known beforehand; gives what to call after every round."""
    live = console.is_terminal and not quiet
    status = console.status(f"fitting on {what} …")
    rounds = 0

    def on_round(server: Server) -> None:
        nonlocal rounds
        rounds = server.ledger.rounds
        status.update(f"fitting on {what}: round {rounds}, {size(server.ledger.total_up)} up per client")

    with status if live else nullcontext():
        yield on_round
    if not quiet:
        console.print(f"fitted on {what}: {counted(rounds, 'round')}")
