"""The methods, one small file each; by what name users ask for them (registry.py), and with which options (spec.py)."""

from typing import TYPE_CHECKING

from fedcal.base.lazy import lazily

if TYPE_CHECKING:
    from fedcal.methods.method import Method, Update
    from fedcal.methods.registry import METHODS
    from fedcal.methods.spec import get_method, method_from_json, method_to_json, options_of, spec_of

DEFAULT = "fedcal-plus"  # the best of them, wherever no method is named

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

_SPEC = ("get_method", "method_from_json", "method_to_json", "options_of", "spec_of")
__getattr__, __dir__ = lazily(  # the command line's help wants DEFAULT, and must not wait for PyTorch
    __name__,
    {
        **dict.fromkeys(_SPEC, "fedcal.methods.spec"),
        "METHODS": "fedcal.methods.registry",
        "Method": "fedcal.methods.method",
        "Update": "fedcal.methods.method",
    },
)
