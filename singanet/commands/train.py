"""``singanet train``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from singanet.base.processes import LEAVING
from singanet.commands.weighted import weights
from singanet.runs.run_options import KINDS, RunOptions, option

_WORDS = {2: "interrupted", 15: "terminated"}
DIVERGED = 3
_GIVEN = argparse.SUPPRESS
"""An option that is not given does not appear, so that files can say it instead."""


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "train",
        help="train a ready net, or that of a file, and print its test accuracy",
        argument_default=_GIVEN,
        epilog="The rate rises to its highest in the first epoch and then falls to 0. A signal "
        "to end (Ctrl-C) is heeded after the step in work, its state saved with --out. The exit "
        "status is 3 where the loss is no longer finite.",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML with these options; those here win"
    )
    add_options(parser)
    parser.set_defaults(command=partial(run_command, parser))


def add_options(parser: Any, without: Collection[str] = ()) -> None:
    """Add the fields of `RunOptions`, but for those ``without``."""
    for name, hint in get_type_hints(RunOptions, include_extras=True).items():
        if name not in without:
            _add(parser, name, *get_args(hint)[1:])


def _add(parser: Any, name: str, metavar: str, help: str | None = None) -> None:
    """The option that is the field ``name`` of `RunOptions`."""
    kind = KINDS[name]
    if name == "model":
        parser.add_argument(name, nargs="?", metavar=metavar, help=help)
    elif kind is bool:
        usual = getattr(RunOptions, name)
        flag, action = f"--{'no-' * usual}{option(name)}", f"store_{not usual}".lower()
        parser.add_argument(flag, dest=name, action=action, help=help)
    else:
        read = weights if kind is dict else kind
        parser.add_argument(f"--{option(name)}", dest=name, type=read, metavar=metavar, help=help)


def run_command(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    needed: str = "MODEL, or --from FILE",
) -> int:
    """Train what ``arguments`` say, of which ``needed`` is."""
    from singanet.parallel import init
    from singanet.runs.folder import gathered
    from singanet.runs.run import DivergedError, RunInterrupted, run

    given = {key: value for key, value in vars(arguments).items() if key != "command"}
    options = gathered(given)
    if not {"model", "from_"} & options.keys():
        parser.error(f"the following arguments are required: {needed}")
    try:
        result = run(RunOptions(**options))
    except RunInterrupted as stop:
        number = int(stop.number)
        # The launcher goes on with it, and says so.
        if not LEAVING.begun:
            how = _how_to_go_on(parser.prog, stop.folder)
            print(f"singanet: {_WORDS[number]}{how}", file=sys.stderr)
        return 128 + number
    except DivergedError as error:
        print(f"singanet: {error}", file=sys.stderr)
        return DIVERGED
    if init().rank == 0:
        print(f"{result.report}  {result.figures['seconds']:.1f} s")
    return 0


def _how_to_go_on(command: str, folder: Path | None) -> str:
    return "" if folder is None else f"; go on with: {command} --out {folder} --resume"
