"""Where the command `fedcal` begins. It imports nothing at first, so that Ctrl-C is one line from the first moment on."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: the words after `fedcal`; None for those of the process.
    """
    try:
        from fedcal.cli.main import main as start
    except KeyboardInterrupt:
        print("fedcal: stopped; nothing was written", file=sys.stderr)
        sys.exit(130)  # 128 and SIGINT's number, as of any command that the user stops
    start(arguments)
