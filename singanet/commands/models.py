"""``singanet models``."""

from __future__ import annotations

import argparse
from typing import Any


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser("models", help="list the ready nets")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.models.registry import ENTRIES

    width = max(len(entry.name) for entry in ENTRIES)
    print(f"{'model'.ljust(width)}  parameters  description")
    for entry in ENTRIES:
        print(f"{entry.name.ljust(width)}  {entry.parameters:>10,}  {entry.description}")
    return 0
