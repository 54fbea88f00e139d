"""``singanet bench``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from itertools import cycle
from statistics import median
from typing import Any


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser("bench", help="measure samples per second of a ready net")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--data", metavar="DATA", help="as for train")
    parser.add_argument("--batch-size", type=int, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often; 5")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="F", help="of each round; 1")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from singanet.models import build, find
    from singanet.runs.optimizers import make_optimizer
    from singanet.runs.options import RunOptions
    from singanet.runs.recipe import checked_recipe
    from singanet.runs.tasks import load_task

    _check(arguments)
    entry = find(arguments.model)
    recipe = checked_recipe(RunOptions(entry.name, batch_size=arguments.batch_size))
    task = load_task(entry, arguments.data)
    net = build(entry.name, task.input_shape, task.num_classes, 0, **task.options)
    # Images are shifted before the clock runs: it is the net that is measured.
    batches = list(task.train_batches(replace(recipe, augment=False), 0))
    optimizer = make_optimizer("sgd", 1e-6, 0.0, steps=1, warm_up=0)
    print(f"{entry.name} on {task.name}, batches of {recipe.batch_size}, {arguments.rounds} rounds")
    for what, do in (
        ("train", lambda x, y: net.step(x, y, optimizer)),
        ("predict", lambda x, y: net.predict(x)),
    ):
        rates = sorted(_rates(do, batches, arguments.rounds, arguments.seconds))
        spread = f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
        print(f"{what:<8}{median(rates):>12,.0f} samples/s  ({spread})")
    return 0


def _rates(
    do: Callable[[Any, Any], Any], batches: Iterable[Any], rounds: int, seconds: float
) -> list[float]:
    """Samples a second in each round, after one batch that warms up."""
    source = cycle(batches)
    do(*next(source))
    rates = []
    for _ in range(rounds):
        samples, start = 0, time.perf_counter()
        end = start + seconds
        while True:
            x, y = next(source)
            do(x, y)
            samples += len(y)
            now = time.perf_counter()
            if now >= end:
                break
        rates.append(samples / (now - start))
    return rates


def _check(arguments: argparse.Namespace) -> None:
    from singanet.errors import ArgumentError

    for option in ("rounds", "seconds"):
        value = getattr(arguments, option)
        if not 0 < value < float("inf"):
            raise ArgumentError(
                f"--{option}", expected="a positive number", received=str(value), advice="pass 1"
            )
