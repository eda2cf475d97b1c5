"""A federation by files, over any channel: the server requests, every site replies, until the server has its scaler.

    server   start     request-0001.safetensors
    site     reply     SITE-0001.safetensors, and SITE.state/FEDERATION.safetensors, which never leaves
    server   receive   request-0002.safetensors …, and in the end scaler.safetensors
    site     finish    SITE-scaler.safetensors: the global scaler and the site's personal part

Nothing is kept in memory between commands, and no file is written unless all is well: a command that was killed half-way is
given again.
"""

from fedcal.transport.files.client import finish, read_request, reply
from fedcal.transport.files.server import ServerFolder, merge, receive, start, status

__all__ = ["ServerFolder", "finish", "merge", "read_request", "receive", "reply", "start", "status"]
