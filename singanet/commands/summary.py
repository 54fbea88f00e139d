"""``singanet summary``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singanet.commands.shapes import shape

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "summary", help="print the layers of a ready net, of a run's or a model file's"
    )
    parser.add_argument("model", metavar="MODEL|RUN_DIR|FILE")
    parser.add_argument("--input-shape", type=shape, metavar="C,H,W")
    parser.add_argument("--classes", type=int, metavar="N")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="show the memory of a step of so many samples"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    net = _net(arguments)
    if arguments.batch_size is None:
        print(net.summary())
        return 0
    from singanet.errors import ArgumentError
    from singanet.visible import Visible

    if not isinstance(net, Visible):
        raise ArgumentError(
            "--batch-size",
            expected="a net of layers",
            received=repr(arguments.model),
            advice="leave it out",
        )
    print(net.summary(arguments.batch_size))
    return 0


def _net(arguments: argparse.Namespace) -> FeedForwardNet:
    from singanet.errors import ArgumentError
    from singanet.model_file import is_model_file, load_model

    path = Path(arguments.model)
    whole = is_model_file(path)
    if not whole and not path.is_dir():
        from singanet.models import build

        return build(arguments.model, arguments.input_shape, arguments.classes)
    if arguments.input_shape is not None or arguments.classes is not None:
        raise ArgumentError(
            "singanet summary",
            expected="a run folder or model file alone, which says how its net is built",
            received="--input-shape or --classes as well",
            advice="leave them out",
        )
    if whole:
        return load_model(path, training=False)
    from singanet.training.trained import run_net

    return run_net(path)
