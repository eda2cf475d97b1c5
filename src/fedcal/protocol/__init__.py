"""The protocol: a method is a `Server` and a `Client` that do no I/O; everything else is a transport.

    server = Server(method, n_classes=10, seed=0)
    clients = {name: Client(method, logits, labels) for name, (logits, labels) in samples.items()}
    while (request := server.request) is not None:
        server.receive({name: client.reply(request) for name, client in clients.items()})
    scaler = server.scaler

`wire` turns requests and replies into bytes for transports that need them.
"""

from fedcal.protocol import wire
from fedcal.protocol.client import Client, LostState
from fedcal.protocol.ledger import Ledger
from fedcal.protocol.messages import Plan, Reply, Request
from fedcal.protocol.policy import Policy
from fedcal.protocol.privacy import Privacy
from fedcal.protocol.scaler import Scaler
from fedcal.protocol.server import Server

__all__ = ["Client", "Ledger", "LostState", "Plan", "Policy", "Privacy", "Reply", "Request", "Scaler", "Server", "wire"]
