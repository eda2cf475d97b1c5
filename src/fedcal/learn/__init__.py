"""How a federated model is trained."""
