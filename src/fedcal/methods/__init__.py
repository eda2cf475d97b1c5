"""The methods, one small file each; by what name users ask for them (registry.py), and with which options (spec.py)."""

from fedcal.methods.method import Method, Update
from fedcal.methods.registry import DEFAULT, METHODS
from fedcal.methods.spec import get_method, method_from_json, method_to_json, options_of, spec_of

__all__ = [
    "DEFAULT",
    "METHODS",
    "Method",
    "Update",
    "get_method",
    "method_from_json",
    "method_to_json",
    "options_of",
    "spec_of",
]
