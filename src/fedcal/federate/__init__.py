"""`fedcal federate`: a simulated federation as real Flower processes on this machine, with TLS and keys."""

import fedcal.transport.flower  # noqa: F401  which says so if Flower is not installed
