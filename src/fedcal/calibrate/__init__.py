"""How a model's confidence is mended."""
