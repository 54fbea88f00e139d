"""``singanet plan``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from singanet.commands.nets import add_net_arguments, named_net


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "plan", help="print how a training keeps within a number of bytes, and what that costs"
    )
    add_net_arguments(parser)
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="samples; 32")
    parser.add_argument("--optimizer", default="sgd", metavar="NAME", help="as for train; sgd")
    parser.add_argument(
        "--memory-budget", metavar="SIZE", help="such as 600MB; left out, every way is shown"
    )
    parser.add_argument(
        "--allow",
        default="recompute,micro-batches",
        metavar="NAME,...",
        help="recompute, micro-batches, light-state, offload; the first two",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write a picture of the arena, as SVG"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.errors import ArgumentError
    from singanet.net import FeedForwardNet
    from singanet.runs.optimizers import make_optimizer

    net = named_net("plan", arguments)
    if not isinstance(net, FeedForwardNet):
        raise ArgumentError(
            "singanet plan",
            expected="a net of layers",
            received=repr(arguments.model),
            advice="`singanet models` lists them",
        )
    optimizer = make_optimizer(arguments.optimizer, 1e-3, 0.0, steps=1, warm_up=0)
    allow = [name.replace("light-", "light ") for name in arguments.allow.split(",")]
    plan = net.plan(arguments.batch_size, optimizer, arguments.memory_budget, allow=allow)
    print(f"{plan}\n\n{plan.picture()}")
    if arguments.out is not None:
        plan.chosen.step.report.plot(arguments.out)
    return 0
