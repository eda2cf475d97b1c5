"""Secure aggregation without I/O: nodes send masked sums, and the server learns their total and nothing else.

SecAgg+ (Bell et al. 2020) with every node of a group a neighbour of every other one, which is the protocol of Bonawitz et
al. (2017). Flower has SecAgg+ too, but for its legacy API only (`SecAggPlusWorkflow`, `secaggplus_mod`): the strategies of
its message API cannot call it. Its masks come from NumPy's `RandomState`, which has 32 bits of seed; its sums overflow
unnoticed at 64 nodes; values beyond ±8 are clipped unnoticed. So the five stages are written here as objects that do no
I/O, on the primitives of `cryptography`: X25519, HKDF, ChaCha20 and ChaCha20-Poly1305.

    server                                          every node of the group
    Group.ask()        ── keys ──▶                  makes two key pairs, sends the public halves
                       ── shares: public keys ──▶   splits its secrets, seals a share for every other node
                       ── mask: sealed shares ──▶   opens its shares, sends its masked vector
    Group.receive()    ── agree: who is left ──▶       tells every other node, under their key, who that is
                       ── unmask: what they told ──▶   if enough say the same, sends one kind of share about every node
    Group.total

`Group` is the server's side and `SecureNode` a node's side. `transport/flower/secure.py` carries their messages.
"""

from fedcal.secure.fixed import MOST_NODES
from fedcal.secure.group import Group, divide
from fedcal.secure.node import SecureNode
from fedcal.secure.shamir import FEWEST_NODES, threshold
from fedcal.secure.vector import Layout, Total

__all__ = ["FEWEST_NODES", "MOST_NODES", "Group", "Layout", "SecureNode", "Total", "divide", "threshold"]
