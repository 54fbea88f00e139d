"""``singanet launch``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from singanet.errors import ArgumentError, FileAccessError

_FINAL = frozenset({2, 3})
"""Exit statuses of ``train`` that another attempt would have too."""

Parser = Callable[[Sequence[str]], argparse.Namespace]


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "launch",
        help="train in several processes: singanet launch -n 4 train MODEL, or a script",
        epilog="What follows is `train` with its arguments, or a Python script with its own. "
        "Where a rank fails the others are ended, and the exit status is its.",
    )
    add = parser.add_argument
    add("-n", "--ranks", type=int, metavar="N", help="how many processes; of an allocation, all")
    add("--servers", type=int, default=0, metavar="N", help="so many of them hold parameters")
    add("--hosts", type=Path, metavar="FILE", help="machines: lines such as node1 slots=4")
    add("--restarts", type=int, default=0, metavar="N", help="begin anew so often where it fails")
    add(
        "--elastic",
        type=_sizes,
        metavar="MIN:MAX",
        help="where a rank dies, begin anew from the last checkpoint with as many ranks as can "
        "work, and with more when they can",
    )
    add("--log-dir", type=Path, metavar="DIR", help="what ranks other than 0 write: rank-1.log")
    add("--trace", type=Path, metavar="FILE", help="a Chrome trace, a process a rank")
    for name, seconds, what in (
        ("--patience", 5.0, "end it where a rank is stopped for so long"),
        ("--stall", 60.0, "tell which ranks have waited for so long, and for what"),
        ("--deadline", 300.0, "a wait of so long is an error"),
        (
            "--rest",
            10.0,
            "with --elastic, rest a slot whose rank died; twice as long each time",
        ),
    ):
        add(name, type=float, default=seconds, metavar="S", help=f"{what}; {seconds:g} seconds")
    add("program", nargs=argparse.REMAINDER, metavar="train MODEL ... | SCRIPT ...")
    parser.set_defaults(command=partial(_run, parser, commands))


def _run(parser: argparse.ArgumentParser, commands: Any, arguments: argparse.Namespace) -> int:
    from singanet.launch import JobOptions, launch

    sizes = arguments.elastic
    if arguments.ranks is None:
        arguments.ranks = _all_slots(parser, arguments.hosts, sizes)
    _check(parser, arguments)
    program, final, resumed = _program(parser, commands, arguments)
    return launch(
        JobOptions(
            arguments.ranks,
            program,
            hosts=arguments.hosts,
            restarts=arguments.restarts,
            servers=arguments.servers,
            log_dir=arguments.log_dir,
            trace=arguments.trace,
            patience=arguments.patience,
            stall=arguments.stall,
            deadline=arguments.deadline,
            final=final,
            resumed=resumed,
            sizes=sizes,
            rest=arguments.rest,
        )
    )


def _sizes(text: str) -> tuple[int, int]:
    """The sizes that ``text`` has. Errors: `argparse.ArgumentTypeError`."""
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the least and the most ranks, such as 2:4"
        )
    return int(least), int(most)


def _all_slots(
    parser: argparse.ArgumentParser, hosts: Path | None, sizes: tuple[int, int] | None
) -> int:
    """The slots of ``hosts``, or of the allocation that this is in; ends where there is none.

    With ``sizes`` no more than their most, which this machine has, too.
    """
    from singanet.launch.hosts import allocated, read_hosts

    found = allocated(os.environ) if hosts is None else read_hosts(hosts)
    if sizes is not None:
        slots = sum(host.slots for host in found)
        return min(max(slots, sizes[0]), sizes[1]) if found else sizes[1]
    if not found:
        parser.error("the following arguments are required: -n/--ranks, outside of an allocation")
    return sum(host.slots for host in found)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    for name, value, least in (
        ("-n", arguments.ranks, 1),
        ("--servers", arguments.servers, 0),
        ("--restarts", arguments.restarts, 0),
        ("--patience", arguments.patience, 0),
        ("--stall", arguments.stall, 0),
        ("--deadline", arguments.deadline, 0),
        ("--rest", arguments.rest, 0),
    ):
        if not value >= least:
            parser.error(f"argument {name}: {value} is less than {least}")
    if arguments.servers >= arguments.ranks:
        parser.error(f"argument --servers: of {arguments.ranks} ranks one has to train")
    if arguments.elastic:
        least, most = arguments.elastic
        if not least <= arguments.ranks <= most:
            parser.error(f"argument -n: {arguments.ranks} is not within {least}:{most}")
    if arguments.servers and arguments.elastic is not None:
        parser.error("argument --elastic: not with --servers, whose parameters no other rank has")


def _program(
    parser: argparse.ArgumentParser, commands: Any, arguments: argparse.Namespace
) -> tuple[Sequence[str], frozenset[int], Callable[[Sequence[str]], Sequence[str]]]:
    """The program of the ranks, the final exit statuses, and the program of a restart.

    Errors: a program that is neither ``train`` nor a script; restarts of a training without
    checkpoints.
    """
    words = list(arguments.program)
    if not words:
        parser.error("the following arguments are required: train MODEL, or a script")
    if words[0] != "train":
        if not os.path.isfile(words[0]):
            raise FileAccessError(
                f"singanet launch, {words[0]!r}",
                expected="train with its arguments, or a Python script",
                received="another command" if words[0] in commands.choices else "no such file",
                advice="ranks share the work of a training; run other commands without launch",
            )
        return words, frozenset({2}), lambda program: program
    # Here and not by each rank: an error is said before anything is started.
    from singanet.runs.folder import gathered
    from singanet.runs.optimizers import expect_servers

    given = vars(commands.choices["train"].parse_args(words[1:]))
    options = gathered({key: value for key, value in given.items() if key != "command"})
    if (arguments.restarts or arguments.elastic) and options.get("out") is None:
        raise ArgumentError(
            "--restarts" if arguments.restarts else "--elastic MIN:MAX",
            expected="a run folder, from whose last checkpoint a restart goes on",
            received="none",
            advice="add --out RUN_DIR to the options of train",
        )
    expect_servers(str(options.get("parallel", "allreduce")), arguments.servers)
    going_on = [] if "resume" in options else ["--resume"]
    return ["-m", "singanet", *words], _FINAL, lambda program: [*program, *going_on]
