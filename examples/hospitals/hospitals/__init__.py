"""Four hospitals, one model, confidences that can be believed."""
