"""``singanet report``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser("report", help="show a run, or several together, as one HTML page")
    parser.add_argument("run_dirs", metavar="RUN_DIR", type=Path, nargs="+")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="instead of report.html in the folder, of several comparison.html here",
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.report import write_comparison, write_report
    from singanet.report.run_files import COMPARISON

    if len(arguments.run_dirs) > 1:
        print(write_comparison(arguments.run_dirs, arguments.out or COMPARISON))
    else:
        print(write_report(arguments.run_dirs[0], arguments.out))
    return 0
