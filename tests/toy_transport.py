"""A toy transport over pipes: every client is a process of its own. It uses nothing but the protocol's public names."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from fedcal.protocol import Client, Scaler, Server, wire


def serve_client(pipe: Connection, name: str, logits: Any, labels: Any) -> None:
    """A client's process: reply to requests, of one federation after the other, until an empty message comes."""
    client, federation = None, ""
    while data := pipe.recv_bytes():
        plan, request = wire.unpack_request(data)
        if client is None or plan.federation != federation:
            client, federation = Client(plan.method, logits, labels), plan.federation
        pipe.send_bytes(wire.pack_reply(client.reply(request), name))


@contextmanager
def connected(samples: dict[str, tuple[Any, Any]]) -> Iterator[list[Connection]]:
    """Start every client's process, and give the server's ends of their pipes."""
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for name, (logits, labels) in samples.items():
        mine, theirs = spawn.Pipe()
        process = spawn.Process(target=serve_client, args=(theirs, name, logits, labels), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    yield pipes
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send_bytes(b"")
        process.join(timeout=60)


def calibrate(pipes: list[Connection], method: str, n_classes: int) -> Scaler:
    """The server's process: requests out, replies in."""
    server = Server(method, n_classes)
    while (request := server.request) is not None:
        data = wire.pack_request(server.plan, request)
        for pipe in pipes:
            pipe.send_bytes(data)
        server.receive(dict(wire.unpack_reply(pipe.recv_bytes()) for pipe in pipes))
    return server.scaler
