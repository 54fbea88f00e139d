"""``singanet summary``."""

from __future__ import annotations

import argparse
from typing import Any

from singanet.commands.nets import add_net_arguments, named_net


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "summary", help="print the layers of a ready net, of a run's or a model file's"
    )
    add_net_arguments(parser)
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="show the memory of a step of so many samples"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    net = named_net("summary", arguments)
    if arguments.batch_size is None:
        print(net.summary())
        return 0
    print(net.summary(arguments.batch_size))
    return 0
