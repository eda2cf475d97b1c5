"""The shape of Flower's PyTorch quickstart, on data that need no download."""
