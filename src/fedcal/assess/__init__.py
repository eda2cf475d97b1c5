"""Evaluation as users are asked for it: discrimination, calibration and decisions, with intervals, from sums over sites."""
