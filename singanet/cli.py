"""The command ``singanet``."""

from __future__ import annotations

import argparse
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
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except SingaNetError as error:
        print(f"singanet: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("singanet: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe such as `singanet models | head` has gone; that is no error.
        sys.stderr.close()
        return 0


def _parser() -> _Parser:
    parser = _Parser(prog="singanet", description="Train and look at feed-forward nets.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a ready net and print its test accuracy")
    train.add_argument("model", metavar="MODEL", help="a name that `singanet models` lists")
    train.add_argument("--data", required=True, help="an embedded data set, or FILE.npz")
    train.add_argument("--epochs", type=int, default=20, metavar="N")
    train.add_argument("--batch-size", type=int, default=32, metavar="N")
    train.add_argument("--optimizer", default="sgd", metavar="NAME", help="sgd or adam")
    train.add_argument("--lr", type=float, metavar="F", help="learning rate")
    train.add_argument("--seed", type=int, default=0, metavar="N")
    train.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    train.set_defaults(command=_train)

    models = commands.add_parser("models", help="list the ready nets")
    models.set_defaults(command=_models)

    summary = commands.add_parser("summary", help="print the layers of a ready net")
    summary.add_argument("model", metavar="MODEL")
    summary.add_argument("--input-shape", type=_shape, default=(1, 28, 28), metavar="C,H,W")
    summary.add_argument("--classes", type=int, default=10, metavar="N")
    summary.set_defaults(command=_summary)
    return parser


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected ints such as 1,28,28; received {text!r}"
        ) from None


def _train(arguments: argparse.Namespace) -> int:
    from singanet.training.run import RunOptions, run, write_json

    options = {key: value for key, value in vars(arguments).items() if key != "command"}
    figures = run(RunOptions(**options))
    if arguments.json is not None:
        write_json(arguments.json, figures)
    print(
        f"test accuracy {figures['test_accuracy']:.4f}  test loss {figures['test_loss']:.4f}  "
        f"{figures['seconds']:.1f} s"
    )
    return 0


def _models(arguments: argparse.Namespace) -> int:
    from singanet.models import entries

    width = max(len(entry.name) for entry in entries())
    for entry in entries():
        print(f"{entry.name.ljust(width)}  {entry.description}")
    return 0


def _summary(arguments: argparse.Namespace) -> int:
    from singanet.models import build

    print(build(arguments.model, arguments.input_shape, arguments.classes).summary())
    return 0
