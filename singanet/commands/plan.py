"""``singanet plan``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from singanet.base.extras import REPORT, package
from singanet.base.files import expect_suffix
from singanet.commands.nets import add_net_arguments, named_net


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "plan", help="print how a training keeps within a number of bytes, and what that costs"
    )
    add_net_arguments(parser)
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="samples; 32, of a published model 1"
    )
    parser.add_argument(
        "--optimizer", metavar="NAME", help="as for train; sgd, of a published model adafactor"
    )
    parser.add_argument(
        "--tokens", type=int, metavar="N", help="of each sample of a net that takes any number"
    )
    parser.add_argument(
        "--memory-budget", metavar="SIZE", help="such as 600MB; left out, every way is shown"
    )
    parser.add_argument(
        "--allow",
        default="recompute,micro-batches",
        metavar="NAME,...",
        help="recompute, micro-batches, light-state, offload; the first two",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.svg", help="write a picture of the arena")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from singanet.errors import ArgumentError
    from singanet.pretrained import PretrainedNet
    from singanet.runs.optimizers import make_optimizer

    if arguments.out is not None:
        expect_suffix("--out", arguments.out, (".svg",))
        package("--out", "matplotlib", REPORT)
    net = named_net("plan", arguments)
    published = isinstance(net, PretrainedNet)
    name, size = arguments.optimizer, arguments.batch_size
    name = ("adafactor" if published else "sgd") if name is None else name
    size = (1 if published else 32) if size is None else size
    optimizer = make_optimizer(name, 1e-3, 0.0, steps=1, warm_up=0)
    allow = [name.replace("light-", "light ") for name in arguments.allow.split(",")]
    tokens, most = arguments.tokens, net.most_steps
    if tokens is not None and most is not None and tokens > most:
        raise ArgumentError(
            "--tokens",
            expected=f"at most {most}, the steps that the model takes",
            received=str(tokens),
            advice="pass fewer",
        )
    plan = net.plan(size, optimizer, arguments.memory_budget, tokens, allow=allow)
    print(f"{plan}\n\n{plan.picture()}")
    if arguments.out is not None:
        plan.chosen.step.report.plot(arguments.out)
    return 0
