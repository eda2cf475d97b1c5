"""Grids: the nodes that an inner strategy may see, messages with a time limit, and nodes in one process."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedcal.base.words import plain
from fedcal.errors import FedCalError

try:  # since Flower 1.38
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    TaskIdentity = None

CLIENT_APP_RAISED, NODE_UNAVAILABLE = 2, 5  # Flower's codes: of a ClientApp that raised, of a node without heartbeats
ASKED_AGAIN = 3  # times at most that a strategy asks for the nodes unless it waits for more
LONGEST = 12 * 3600.0  # seconds that Flower keeps a message


class TooFewNodes(FedCalError):
    """Not enough nodes are there, and the time to wait for them is over."""


class PatientGrid(Grid):
    """A grid that shows the nodes of this round only, and limits how long a strategy waits for more of them.

    Flower's strategies ask for the nodes again and again until there are enough: they would wait for ever for a node that
    is gone. Here that ends in `TooFewNodes`.

    Args:
        grid: of the run.
        nodes: of all connected nodes, returns those of this round.
        patience: seconds.
    """

    def __init__(self, grid: Grid, nodes: Callable[[list[int]], list[int]], patience: float) -> None:
        self._grid, self._nodes, self._until = grid, nodes, time.monotonic() + patience
        self._times = 0

    def get_node_ids(self) -> Iterable[int]:
        ids = self._nodes(sorted(self._grid.get_node_ids()))
        self._times += 1
        if self._times > ASKED_AGAIN and time.monotonic() > self._until:
            raise TooFewNodes(f"{len(ids)} nodes are there, which is too few for the strategy")
        return ids

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self._grid.create_message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return ask(self._grid, list(messages), timeout or LONGEST)


def wait_for_nodes(grid: Grid, wanted: int, patience: float) -> list[int]:
    """Return the nodes that are there, once they are as many as wanted or patience is over.

    Raises:
        TooFewNodes: where there is none.
    """
    until = time.monotonic() + patience
    while len(nodes := sorted(grid.get_node_ids())) < wanted and time.monotonic() < until:
        time.sleep(0.5)
    if not nodes:
        raise TooFewNodes("no node is there: start SuperNodes, then run again")
    return nodes


def ask(grid: Grid, messages: list[Message], timeout: float, pause: float = 0.5) -> list[Message]:
    """Send messages and wait for the replies, with shorter pauses than Flower's three seconds.

    Args:
        grid: of the run.
        messages: to send.
        timeout: seconds to wait.
        pause: seconds between two looks for replies.

    Returns:
        The replies that came in time. Errors that Flower itself replies with, such as for a node that is gone, come from the
        node that they are about.
    """
    # Flower gives no id of a message that it does not take, and no ids at all where they are too large for it.
    pushed = zip(grid.push_messages(messages), messages, strict=False)
    nodes = {sent: message.metadata.dst_node_id for sent, message in pushed if sent}
    lost = [message for message in messages if message.metadata.dst_node_id not in nodes.values()]
    replies = [Message(Error(0, "Flower did not take the message"), reply_to=message) for message in lost]
    waiting, until = set(nodes), time.monotonic() + timeout
    while waiting and time.monotonic() < until:
        for reply in grid.pull_messages(waiting):
            about = reply.metadata.reply_to_message_id
            if reply.has_error() and about in nodes:
                reply.metadata.__dict__["_src_node_id"] = nodes[about]
            replies.append(reply)
            waiting.discard(about)
        if waiting:
            time.sleep(pause)
    return replies


def is_gone(reply: Message) -> bool:
    """Return whether the reply is Flower's, and says that the node has sent no heartbeat for too long."""
    return reply.has_error() and reply.error.code == NODE_UNAVAILABLE


def error_of(reply: Message) -> str:
    """Return what an error says, in one line.

    Args:
        reply: one that has an error.
    """
    return "no sign of life: Flower has given it up" if is_gone(reply) else plain(f"error: {reply.error.reason}")


class LocalGrid(Grid):
    """Nodes in this process: the app handles every message at once, with one context per node.

    For tests and for trying an app out; a round costs some hundredths of a second. What an app raises comes back as an
    error, as from a SuperNode.

    Args:
        app: the ClientApp.
        nodes: the config of each node.
        run_config: of the run.
    """

    def __init__(
        self,
        app: Callable[[Message, Context], Message],
        nodes: Iterable[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.app, self.sent, self._numbers = app, 0, itertools.count(1)
        run = secrets.randbits(63)
        self.contexts = {
            node: Context(run, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in enumerate(nodes, start=1)
        }
        self._replies: dict[str, Message] = {}
        if TaskIdentity is not None:  # the sender of messages; a real run sets it
            TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 0

    def set_run(self, run: Any) -> None:
        raise FedCalError("a LocalGrid belongs to no run")

    @property
    def run(self) -> Any:
        raise FedCalError("a LocalGrid belongs to no run")

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: Any = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            number = str(next(self._numbers))
            message.metadata.__dict__["_message_id"] = number
            ids.append(number)
            self.sent += 1
            reply = self._handle(message)
            if reply is not None:
                self._replies[number] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(number) for number in list(message_ids) if number in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _handle(self, message: Message) -> Message | None:
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return None
        at_node = Message(copy_content(message.content), message.metadata.dst_node_id, message.metadata.message_type)
        at_node.metadata.__dict__.update(message.metadata.__dict__)
        try:
            return self.app(at_node, context)
        except Exception as error:  # whatever an app raises is that node's fault
            return Message(Error(CLIENT_APP_RAISED, f"{type(error).__name__}: {error}"), reply_to=at_node)


def copy_content(content: RecordDict) -> RecordDict:
    """Copy records, so that no two nodes share them."""
    found = RecordDict()
    for name, record in content.items():
        kind: Any = type(record)
        found[name] = kind(dict(record))
    return found
