"""How good a calibration is."""
