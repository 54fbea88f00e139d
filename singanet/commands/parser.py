"""The parser of the command line."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from singanet import __version__
from singanet.commands import (
    bench,
    completion,
    devices,
    embed,
    evaluate,
    files,
    finetune,
    generate,
    launch,
    models,
    plan,
    predict,
    report,
    sample,
    summary,
    train,
    tune,
)
from singanet.errors import did_you_mean

USAGE_ERROR = 2


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and name the command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, and refuse here what it would hand to the parser of all commands."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            advice = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions, "")
            said = f"unrecognized arguments: {' '.join(unknown)}"
            self.error(f"{said}; {advice}" if advice and unknown[0].startswith("-") else said)
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


def make_parser() -> CommandParser:
    """Each command sets ``command``, a function of the parsed arguments to an exit status."""
    root = CommandParser(prog="singanet", description="Train and look at feed-forward nets.")
    root.add_argument("--version", action="version", version=f"singanet {__version__}")
    commands = root.add_subparsers(
        title="commands", required=True, metavar="COMMAND", parser_class=CommandParser
    )
    for module in (
        *(train, finetune, launch, evaluate, predict, sample, generate, embed, report, bench, tune),
        *(models, summary, plan, devices, files, completion),
    ):
        module.add_command(commands)
    return root
