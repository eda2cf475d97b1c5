"""After deployment: anytime-valid evidence that probabilities are still right, from small sums that sites send."""

from fedcal.monitor.batch import Batch
from fedcal.monitor.state import Monitor
from fedcal.monitor.verdict import Action, Finding, Verdict

__all__ = ["Action", "Batch", "Finding", "Monitor", "Verdict"]
