"""``singanet launch``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from singanet.commands.parser import RootParser, UsageError
from singanet.commands.runs.run_options import NumberRange, refusal
from singanet.errors import FileAccessError

_FINAL = frozenset({2, 3})
"""Exit statuses of ``train`` for which another attempt would be useless."""


_FROM_0 = NumberRange("0 or more", lambda value: value >= 0, "pass 0 or more")
"""Infinity is allowed, for a wait without end."""


def _sizes(text: str) -> tuple[int, int]:
    """Parse ``MIN:MAX``. Errors: `argparse.ArgumentTypeError`."""
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the least and the most ranks, such as 2:4"
        )
    return int(least), int(most)


def launch(
    program: Annotated[
        list[str],
        "train MODEL ... | SCRIPT ...",
        "`train` with its arguments, or a Python script with its own",
        {"nargs": argparse.REMAINDER},
    ],
    *,
    ranks: Annotated[
        int | None, "N", "number of processes (default: all of an allocation)", ("-n",)
    ] = None,
    servers: Annotated[int, "N", "number of parameter servers among them", _FROM_0] = 0,
    hosts: Annotated[Path | None, "FILE", "machines: lines such as node1 slots=4"] = None,
    restarts: Annotated[int, "N", "most restarts of a failed job", _FROM_0] = 0,
    elastic: Annotated[
        tuple[int, int] | None,
        "MIN:MAX",
        "if a rank dies, restart from the last checkpoint with as many ranks as can work, "
        "and with more when they can",
        {"type": _sizes},
    ] = None,
    log_dir: Annotated[Path | None, "DIR", "output of ranks other than 0: rank-1.log"] = None,
    trace: Annotated[Path | None, "FILE", "a Chrome trace, one process per rank"] = None,
    patience: Annotated[
        float, "S", "seconds that a rank may be stopped before the job is ended", _FROM_0
    ] = 5.0,
    stall: Annotated[
        float, "S", "seconds of a wait before it is reported with its reason", _FROM_0
    ] = 60.0,
    deadline: Annotated[float, "S", "seconds of a wait before it is an error", _FROM_0] = 300.0,
    rest: Annotated[
        float,
        "S",
        "seconds that --elastic leaves a slot unused whose rank died; twice as long each time",
        _FROM_0,
    ] = 10.0,
    root: RootParser,
) -> int:
    """Train in several processes: `train` with its options, or a script.

    If a rank fails, the others are ended, and its exit status is returned.

    Examples:
      singanet launch -n 4 train resnet20 --data cifar-10 --out runs/resnet
      singanet launch -n 4 --servers 1 script.py --epochs 3
    """
    from singanet.parallel.launch import JobOptions, launch

    count = _all_slots(hosts, elastic) if ranks is None else ranks
    if count < 1:
        raise UsageError(f"argument -n: {count} is less than 1")
    if servers >= count:
        raise UsageError(f"argument --servers: at least one of {count} ranks must train")
    if elastic is not None and not elastic[0] <= count <= elastic[1]:
        raise UsageError(f"argument -n: {count} is not within {elastic[0]}:{elastic[1]}")
    if servers and elastic is not None:
        whose = "as no other rank has their parameters"
        raise UsageError(f"argument --elastic: not with --servers, {whose}")
    if not program:
        raise UsageError("the following arguments are required: train MODEL, or a script")
    anew: dict[str, Any] = {"final": frozenset({2})}
    if program[0] == "train":
        resumed = _resumed(root, program, restarts, elastic, servers)
        anew, program = {"final": _FINAL, "resumed": resumed}, ["-m", "singanet", *program]
    elif not os.path.isfile(program[0]):
        raise refusal(
            f"singanet launch, {program[0]!r}",
            "train with its arguments, or a Python script",
            "another command" if program[0] in root.commands else "no such file",
            "ranks share the work of a training; run other commands without launch",
            FileAccessError,
        )
    return launch(
        JobOptions(
            count,
            program,
            hosts=hosts,
            restarts=restarts,
            servers=servers,
            log_dir=log_dir,
            trace=trace,
            patience=patience,
            stall=stall,
            deadline=deadline,
            sizes=elastic,
            rest=rest,
            **anew,
        )
    )


def _all_slots(hosts: Path | None, sizes: tuple[int, int] | None) -> int:
    """Return the slots of ``hosts``, or of the current allocation.

    With ``sizes`` at most their maximum, which this machine has, too. Errors: no slots.
    """
    from singanet.parallel.launch.hosts import allocated, read_hosts

    found = allocated(os.environ) if hosts is None else read_hosts(hosts)
    slots = sum(host.slots for host in found)
    if sizes is not None:
        return min(max(slots, sizes[0]), sizes[1]) if found else sizes[1]
    if not found:
        needed = "-n/--ranks, outside of an allocation"
        raise UsageError(f"the following arguments are required: {needed}")
    return slots


def _resumed(
    root: RootParser, program: Sequence[str], restarts: int, elastic: Any, servers: int
) -> Callable[[Sequence[str]], Sequence[str]]:
    """Return a function that adds the option to resume to a training's arguments.

    Errors: invalid options of the training, here and not on each rank, before anything is started;
    restarts without checkpoints.
    """
    from singanet.commands.runs.folder import gathered
    from singanet.commands.runs.optimizers import expect_servers

    given = vars(root.commands["train"].parse_args(program[1:]))
    options = gathered({key: value for key, value in given.items() if key != "command"})
    if (restarts or elastic) and options.get("out") is None:
        expected = "a run folder, with the checkpoint for a restart"
        advice = "add --out RUN_DIR to the options of train"
        raise refusal("--restarts" if restarts else "--elastic MIN:MAX", expected, "none", advice)
    expect_servers(str(options.get("parallel", "allreduce")), servers)
    going_on = [] if "resume" in options else ["--resume"]
    return lambda words: [*words, *going_on]
