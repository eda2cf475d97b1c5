"""A federation by files, over any channel: the server asks, every site answers, until the server has its scaler.

    server   start    question-0001.safetensors
    site     answer   SITE-0001.safetensors, and SITE.state.safetensors, which never leaves
    server   add      question-0002.safetensors …, and in the end scaler.safetensors
    site     finish   SITE-scaler.safetensors: the global scaler and what the site makes of it for itself

The server keeps nothing in memory. Its folder holds federation.json and one file a round, the sum of the answers (or, of
methods that average, the new params); replaying these gives the server back. A command killed half-way is given again.
"""

from fedcal.transport.files.server import Server, add, ask, merge, replay, start
from fedcal.transport.files.site import answer, classes_of, finish

__all__ = ["Server", "add", "answer", "ask", "classes_of", "finish", "merge", "replay", "start"]
