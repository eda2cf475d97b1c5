"""What the clients hold: datasets, their canonical files, and how they are dealt to clients."""

from fedcal.data.datasets import DATASETS, Dataset, load
from fedcal.data.partition import Client, Skew, make_clients, skew, together

__all__ = ["DATASETS", "Client", "Dataset", "Skew", "load", "make_clients", "skew", "together"]
