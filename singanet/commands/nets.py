"""The net that a command names: a ready one, a run's, a model file's, or a published one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singanet.commands.shapes import shape

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet


def add_net_arguments(parser: Any) -> None:
    """Add what `named_net` reads."""
    parser.add_argument("model", metavar="MODEL|RUN_DIR|FILE|FOLDER")
    parser.add_argument("--input-shape", type=shape, metavar="C,H,W")
    parser.add_argument("--classes", type=int, metavar="N")


def named_net(command: str, arguments: argparse.Namespace) -> FeedForwardNet:
    """The net for ``singanet command``. Errors: an unknown name; a shape beside a run or file."""
    from singanet.errors import ArgumentError
    from singanet.runs.run_options import drawn_net, is_published
    from singanet.runs.trained import is_whole, whole_net

    path = Path(arguments.model)
    whole, published = is_whole(path), is_published(path)
    if not (whole or published or path.is_dir()):
        from singanet.models import build, entries

        if path.is_file() and arguments.model not in {entry.name for entry in entries()}:
            raise ArgumentError(
                f"file {str(path)!r}",
                expected="a ready net, a run folder, a published folder or a file of `save_model`",
                received="another file",
                advice="name its net as singanet models lists it; singanet inspect lists the arrays"
                " of a file of weights",
            )
        return build(arguments.model, arguments.input_shape, arguments.classes)
    if arguments.input_shape is not None or arguments.classes is not None:
        raise ArgumentError(
            f"singanet {command}",
            expected="a folder or model file alone, which says how its net is built",
            received="--input-shape or --classes as well",
            advice="leave them out",
        )
    if published:
        return drawn_net(path)
    if whole:
        return whole_net(path)
    from singanet.runs.trained import run_net

    return run_net(path)
