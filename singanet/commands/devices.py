"""``singanet devices``."""

from __future__ import annotations

import argparse
from typing import Any


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser("devices", help="list the devices and kernels that are there")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.device import describe

    print(describe())
    return 0
