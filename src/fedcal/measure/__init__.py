"""Metrics, reliability diagrams, intervals and conformal sets, all from sums that add over clients."""
