"""``singanet evaluate``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from singanet.commands.weights import add_arguments


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser("evaluate", help="test a trained net")
    add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.runs.recipe import check_writable, write_json
    from singanet.runs.trained import trained

    check_writable(arguments.json)
    net, task = trained(arguments.path, arguments.model, arguments.data, arguments.best)
    if task.metrics is not None:
        net.compile("sgd", metrics=task.metrics)
    result = task.evaluate(net)
    if arguments.json is not None:
        accuracy = task.accuracy(result)
        figures = {"data": task.name, "test_loss": result.loss, "test_accuracy": accuracy}
        write_json(arguments.json, figures)
    print(task.report(result))
    return 0
