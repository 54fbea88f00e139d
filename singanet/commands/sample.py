"""``singanet sample``."""

from __future__ import annotations

import argparse
from typing import Any

from singanet.commands.weights import add_arguments


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser(
        "sample",
        help="let a trained language model write",
        epilog="Each character is drawn by what the net expects after those before it. The same "
        "seed gives the same text.",
    )
    add_arguments(parser)
    add = parser.add_argument
    add("--prompt", metavar="TEXT", help="what it begins with; a new line, where the text has any")
    add("--length", type=int, default=500, metavar="N", help="characters; 500")
    add_sampling(parser)
    parser.set_defaults(command=_run)


def add_sampling(parser: Any) -> None:
    """Add how each character or token is drawn."""
    add = parser.add_argument
    add(
        "--temperature",
        type=float,
        default=0.8,
        metavar="F",
        help="1 draws as the net expects, less is safer, 0 takes the likeliest; 0.8",
    )
    add("--top-k", type=int, metavar="N", help="draw among the N likeliest alone")
    add("--top-p", type=float, metavar="F", help="among the fewest that have this probability")
    add("--seed", type=int, default=0, metavar="N", help="of the draws; 0")


def _run(arguments: argparse.Namespace) -> int:
    from singanet.decoding import Sampling
    from singanet.errors import ArgumentError
    from singanet.runs.tasks.published import sampled, start_of
    from singanet.runs.tasks.task import Text
    from singanet.runs.trained import trained

    net, task = trained(arguments.path, arguments.model, arguments.data, arguments.best)
    if not isinstance(task, Text):
        raise ArgumentError(
            f"{str(arguments.path)!r}",
            expected="a language model, such as char_rnn or transformer_lm",
            received="another kind of net",
            advice="use singanet predict",
        )
    prompt = start_of(task.data) if arguments.prompt is None else arguments.prompt
    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
    drawn = sampled(net, task.data, prompt, arguments.length, sampling, arguments.seed)
    print((arguments.prompt or "").lstrip("\n"), end="")
    for character in drawn:
        print(character, end="", flush=True)
    print()
    return 0
