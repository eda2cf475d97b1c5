"""Progress of long commands: done, total, elapsed, left. On a terminal a moving bar; elsewhere a plain line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from fedcal.errors import counted, printable

if TYPE_CHECKING:
    from fedcal.protocol import Server
    from fedcal.simulate.federation import Federation
    from fedcal.simulate.runs import Stage

NAME, REST = 36, 45  # characters of the moving line: of a part's name at most, and of all but its name and its text
EVERY = 10.0  # seconds between two plain lines, at least
Value = TypeVar("Value")


class Parts:
    """A command's progress, one part after the other. A context manager; nothing is shown where it is quiet.

    Args:
        console: where to show it.
        quiet: show nothing.
        every: seconds between two plain lines.
        clock: gives the seconds.
    """

    def __init__(
        self, console: Console, quiet: bool, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.quiet, self.every, self.clock = console, quiet, every, clock
        columns = TextColumn("{task.description}"), Counted(), BarColumn(12), Times(), TextColumn("{task.fields[text]}")
        self.bar = Progress(*columns, console=console, disable=quiet or not console.is_terminal, get_time=clock)
        self.task, self.name, self.total, self.done = None, "", 0, 0
        self.first, self.began, self.said = 0, clock(), clock()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def begin(self, name: str, total: int | None = None, done: int = 0, text: str = "") -> None:
        """Begin the next part.

        Args:
            name: what is done, such as "training".
            total: steps that it has; None where nobody knows.
            done: steps that an earlier command has done.
            text: what this step is about.
        """
        if self.task is not None:
            self.bar.stop_task(self.task)
        self.name, self.total, self.done, self.first, self.began = name, total or 0, done, done, self.clock()
        self.task = self.bar.add_task(_cut(name, NAME), total=total, completed=done, text=self._live(text))

    def step(self, done: int, text: str = "", total: int | None = None, say: bool = False) -> None:
        """Say how far the part has come.

        Args:
            done: steps that are done.
            text: what the next one is about, or what came of the last one.
            total: steps that there are, where that is known only now.
            say: print a plain line even if the last one is not old.
        """
        assert self.task is not None, "no part has begun"
        self.done, self.total = done, total or self.total
        self.bar.update(self.task, completed=done, total=self.total or None, text=self._live(text))
        if not self.quiet and not self.console.is_terminal and (say or self.clock() - self.said >= self.every):
            self.said = self.clock()
            words = [" ".join(filter(None, (self.name, _count(done, self.total)))), text, self._times()]
            self.console.print(escape(printable("  ".join(word for word in words if word))), soft_wrap=True)

    def over(self, name: str, samples: Mapping[str, Value], size: Callable[[Value], int]) -> Mapping[str, Value]:
        """Begin a part, and return a mapping that counts what is taken out of it.

        Args:
            name: of the part.
            samples: what it goes through, client by client.
            size: of one of them, in steps.
        """
        sizes = {client: size(value) for client, value in samples.items()}
        self.begin(name, sum(sizes.values()))
        return Counting(samples, lambda before: self.step(sum(sizes[client] for client in before)))

    def _live(self, text: str) -> str:
        """A text as the moving line shows it: never so long that it pushes the numbers out."""
        return _cut(text, self.console.width - REST - len(self.name[:NAME]))

    def _times(self) -> str:
        spent, steps = self.clock() - self.began, self.done - self.first
        if not self.total or self.done >= self.total or steps <= 0:
            return f"{spent:.1f} s" if spent < EVERY else f"{spent:.0f} s"
        return f"{spent:.0f} s, about {spent / steps * (self.total - self.done):.0f} s left"


class Counting(Mapping[str, Value]):
    """A mapping that calls `on_next` with the names taken before, whenever one is taken for the first time."""

    def __init__(self, held: Mapping[str, Value], on_next: Callable[[list[str]], None]) -> None:
        self.held, self.on_next, self.taken = held, on_next, list[str]()

    def __getitem__(self, name: str) -> Value:
        value = self.held[name]
        if name not in self.taken:
            self.on_next(self.taken)
            self.taken.append(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def _cut(text: str, most: int) -> str:
    shown = printable(text)
    return escape(shown if len(shown) <= most else shown[: max(most - 1, 0)] + "…")


class Counted(ProgressColumn):
    """The steps that are done."""

    def render(self, task: Task) -> Text:
        return Text(_count(round(task.completed), round(task.total or 0)))


def _count(done: int, total: int) -> str:
    """3/30, or 3 where nobody knows how many there are; nothing for what is not counted, or has no step done."""
    return f"{done}/{total}" if total else f"{done or ''}"


class Times(ProgressColumn):
    """The time elapsed and, where it is known, the time left."""

    def render(self, task: Task) -> Text:
        elapsed, left = (task.finished_time if task.finished else task.elapsed) or 0, task.time_remaining
        return Text(_clock(elapsed) + (f", {_clock(left)} left" if left and not task.finished else ""))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class RunProgress(Parts):
    """Progress of `fedcal.run`; `start`, `round` and `stage` are its callbacks."""

    rounds = 0

    def start(self, state: Federation) -> None:
        """Say what is about to run."""
        config = state.config
        if not self.quiet:
            skewness = f"β = {config.beta}" if config.partition == "dirichlet" else config.partition
            self.console.print(
                f"[bold]{escape(printable(config.data))}[/bold]: {counted(len(state.clients), 'client')} ({skewness}, "
                f"G = {state.skew.G:.2f}), {escape(printable(str(config.model)))}, {counted(config.rounds, 'round')}"
                + (f", from round {state.round}" if state.round else "")
            )
            for remark in state.remarks:
                self.console.print(escape(printable(remark)), soft_wrap=True)
        self.rounds = config.rounds
        self.begin("round", config.rounds, state.round)

    def round(self, record: Mapping[str, Any]) -> None:
        """A training round is done."""
        number, metrics = record["round"], f"accuracy {record['accuracy']:.1%}  ECE {record['ece']:.1%}"
        text = metrics if self.console.is_terminal else f"loss {record['loss']:.3f}  {metrics}"
        regular = number % max(10, self.rounds // 10) == 0 or number == self.rounds
        self.step(number, text, say=regular)

    def stage(self, stage: Stage) -> None:
        """A step of what comes after training."""
        new = stage.name != self.name
        if new:
            self.begin(stage.name, stage.total, stage.done, stage.text)
        self.step(stage.done, stage.text, say=new and stage.total > 1)


@contextmanager
def fitting(parts: Parts, what: str, expected: int | None = None) -> Iterator[Callable[[Server], None]]:
    """Progress of one fit; gives what to call after every round.

    Args:
        parts: of the command.
        what: it is fitted on, such as "all samples".
        expected: rounds that it will take, where that is known: an exact fit stops when it is done.
    """
    parts.begin(f"fitting on {what}, round", expected)

    def on_round(server: Server) -> None:
        rounds = server.ledger.rounds
        parts.step(rounds, total=max(rounds, expected) if expected else None)

    yield on_round
    if not parts.quiet:
        parts.console.print(f"fitted on {what}: {counted(parts.done, 'round')}")
