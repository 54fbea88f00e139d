"""``singanet report``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser("report", help="show a run as one HTML page")
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="instead of report.html in the folder"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.report import write_report

    print(write_report(arguments.run_dir, arguments.out))
    return 0
