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
    parser.add_argument(
        "--live",
        action="store_true",
        help="of one run: write it anew every few seconds as long as the training goes on",
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.errors import ArgumentError
    from singanet.report import follow, write_comparison, write_report
    from singanet.report.reading import COMPARISON

    if arguments.live and len(arguments.run_dirs) > 1:
        raise ArgumentError(
            "--live",
            expected="one run folder",
            received=f"{len(arguments.run_dirs)}",
            advice="leave it out to compare runs as far as they are",
        )
    if arguments.live:
        print(follow(arguments.run_dirs[0], arguments.out))
    elif len(arguments.run_dirs) > 1:
        print(write_comparison(arguments.run_dirs, arguments.out or COMPARISON))
    else:
        print(write_report(arguments.run_dirs[0], arguments.out))
    return 0
