"""The command ``singanet``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from singanet.errors import SingaNetError

USAGE_ERROR = 2
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 2 for bad input, in one line."""
    try:
        arguments = _parser().parse_args(argv)
        command: Callable[[argparse.Namespace], None] = arguments.command
        command(arguments)
        if sys.stdout is not None:  # as it is where it was closed before the start
            # Here, so that a reader that has gone is noticed here.
            sys.stdout.flush()
    except SingaNetError as error:
        print(f"singanet: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("singanet: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe such as `singanet models | head` has gone; that is no error. What
        # is left in the buffer goes nowhere, else Python would complain when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> _Parser:
    parser = _Parser(prog="singanet", description="Train and look at feed-forward nets.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a ready net and print its test accuracy")
    train.add_argument("model", metavar="MODEL", help="a name that `singanet models` lists")
    train.add_argument(
        "--data",
        metavar="DATA",
        help="digits, FILE.npz, a folder of MNIST or CIFAR; for language models plays or a text "
        "file; for tables census; left out, what comes with the package",
    )
    train.add_argument("--epochs", type=int, metavar="N")
    train.add_argument("--batch-size", type=int, metavar="N")
    train.add_argument("--optimizer", metavar="NAME", help="sgd or adam")
    train.add_argument(
        "--lr", type=float, metavar="F", help="the highest learning rate; it rises and then falls"
    )
    train.add_argument("--seed", type=int, default=0, metavar="N")
    train.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    train.set_defaults(command=_train)

    models = commands.add_parser("models", help="list the ready nets")
    models.set_defaults(command=_models)

    devices = commands.add_parser("devices", help="list the devices and kernels that are there")
    devices.set_defaults(command=_devices)

    summary = commands.add_parser("summary", help="print the layers of a ready net")
    summary.add_argument("model", metavar="MODEL")
    summary.add_argument("--input-shape", type=_shape, metavar="C,H,W")
    summary.add_argument("--classes", type=int, metavar="N")
    summary.set_defaults(command=_summary)
    return parser


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected ints such as 1,28,28; received {text!r}"
        ) from None


def _train(arguments: argparse.Namespace) -> None:
    from singanet.training.figures import write_json
    from singanet.training.run import RunOptions, run

    options = {key: value for key, value in vars(arguments).items() if key != "command"}
    result = run(RunOptions(**options))
    if arguments.json is not None:
        write_json(arguments.json, result.figures)
    print(f"{result.report}  {result.figures['seconds']:.1f} s")


def _models(arguments: argparse.Namespace) -> None:
    from singanet.models import entries

    width = max(len(entry.name) for entry in entries())
    print(f"{'model'.ljust(width)}  parameters  description")
    for entry in entries():
        print(f"{entry.name.ljust(width)}  {entry.parameters:>10,}  {entry.description}")


def _devices(arguments: argparse.Namespace) -> None:
    from singanet.device import describe

    print(describe())


def _summary(arguments: argparse.Namespace) -> None:
    from singanet.models import build

    print(build(arguments.model, arguments.input_shape, arguments.classes).summary())
