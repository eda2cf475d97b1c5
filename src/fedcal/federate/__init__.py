"""`fedcal federate`: a simulated federation as real Flower processes on this machine, with TLS and keys."""
