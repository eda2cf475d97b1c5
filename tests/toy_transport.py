"""A toy transport over pipes: every client is a process of its own. It uses nothing but the protocol's public names."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from fedcal.protocol import Client, Scaler, Server, wire


def serve_client(pipe: Connection, name: str, logits: Any, labels: Any) -> None:
    """A client's process: reply to requests until an empty message comes."""
    client = None
    while data := pipe.recv_bytes():
        plan, request = wire.unpack_request(data)
        client = client or Client(plan.method, logits, labels)
        pipe.send_bytes(wire.pack_reply(client.reply(request), name))


def calibrate(samples: dict[str, tuple[Any, Any]], method: str, n_classes: int) -> Scaler:
    """The server's process: requests out, replies in."""
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for name, (logits, labels) in samples.items():
        mine, theirs = spawn.Pipe()
        process = spawn.Process(target=serve_client, args=(theirs, name, logits, labels), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    server = Server(method, n_classes)
    while (request := server.request) is not None:
        data = wire.pack_request(server.plan, request)
        for pipe in pipes:
            pipe.send_bytes(data)
        server.receive(dict(wire.unpack_reply(pipe.recv_bytes()) for pipe in pipes))
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send_bytes(b"")
        process.join(timeout=60)
    return server.scaler
