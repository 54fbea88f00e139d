"""The command ``singanet``, and ``python -m singanet``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from singanet.base.progress import erase_bar
from singanet.commands import make_parser
from singanet.commands.parser import USAGE_ERROR
from singanet.errors import SingaNetError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 2 for bad input, in one line."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        return _run(argv)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"singanet: warning: {message}", file=sys.stderr)


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = make_parser().parse_args(argv)
        command: Callable[[Any], int] = arguments.command
        try:
            status = command(arguments)
        finally:
            erase_bar()
        if sys.stdout is not None:  # as it is where it was closed before the start
            # Here, so that a reader that has gone is noticed here.
            sys.stdout.flush()
    except SingaNetError as error:
        # Some errors carry a table below their first line, and some begin with the command.
        said = str(error).splitlines()[0]
        print(said if said.startswith("singanet ") else f"singanet: {said}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("singanet: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe such as `singanet models | head` has gone; that is no error. What
        # is left in the buffer goes nowhere, else Python would complain when it ends.
        _forget_output()
        return 0
    except OSError as error:
        # What the system refuses of a path, such as a name that is too long, or of the output.
        where = f"{str(error.filename)[:120]!r}"
        if error.filename is None:
            where = "writing to standard output"
            _forget_output()
        print(f"singanet: {error.strerror or error}: {where}", file=sys.stderr)
        return USAGE_ERROR
    return status


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
