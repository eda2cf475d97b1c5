"""`--model MODULE:FUNCTION`: a user's own model. Importing runs code, so only what the user typed is ever imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from fedcal.errors import FedCalError, said


def import_model(path: str) -> Callable[..., Any]:
    """Import a function that builds a model; modules are also looked for in the current folder, after all others.

    Args:
        path: MODULE:FUNCTION, from the command line. Never one from a file.

    Raises:
        FedCalError: there is no such module or function, or the module fails.
    """
    name, _, function = path.partition(":")
    if not all(part.isidentifier() for part in (*name.split("."), *function.split("."))):
        raise FedCalError(f"--model {path}: write MODULE:FUNCTION, such as mymodels:build for build in mymodels.py")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a file there cannot take the place of an installed module
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise FedCalError(f"--model {path}: there is no module {error.name}, neither installed nor here") from None
        raise FedCalError(f"--model {path}: {name} needs {error.name}, which is not installed") from None
    except (Exception, SystemExit) as error:
        raise FedCalError(f"--model {path}: {name} cannot be imported ({said(error)})") from None
    for part in function.split("."):
        if not hasattr(found, part):
            raise FedCalError(
                f"--model {path}: {name} has no {function}; it was found in {getattr(found, '__file__', name)}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise FedCalError(
            f"--model {path}: {function} is {type(found).__name__}, not a function that returns an nn.Module"
        )
    return found
