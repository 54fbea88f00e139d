"""``singanet tune``."""

from __future__ import annotations

import argparse
from typing import Any

from singanet.commands.nets import add_net_arguments, named_net


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "tune", help="measure by which kernels each convolution of a net is fastest here"
    )
    add_net_arguments(parser)
    parser.add_argument(
        "--batch-size", type=int, metavar="N", required=True, help="samples in a step"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure what was measured before as well"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    net = named_net("tune", arguments)
    print(net.tune_kernels(arguments.batch_size, again=arguments.again))
    return 0
