"""``singanet summary``."""

from __future__ import annotations

import argparse
from typing import Any

from singanet.commands.shapes import shape


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser("summary", help="print the layers of a ready net")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--input-shape", type=shape, metavar="C,H,W")
    parser.add_argument("--classes", type=int, metavar="N")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.models import build

    print(build(arguments.model, arguments.input_shape, arguments.classes).summary())
    return 0
