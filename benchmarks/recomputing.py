"""Recorded steps that drop buffers and make them again: memory and time at every level.

As `recording.py` measures them. "half" is an arena of half the bytes that it takes without.

    python benchmarks/recomputing.py [numpy] [onednn]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from functools import partial
from typing import Any

from recording import MODES, child, made, megabytes, recompute, stepper
from report import interleaved, publish, spread, table

LEVELS = ("none", "cheap", "half")
CASES = [
    ("resnet20", 32, 6, LEVELS),
    ("resnet50", 8, 3, LEVELS),
    ("vgg11", 32, 5, LEVELS[:2]),
    ("alexnet", 32, 6, LEVELS[:2]),
]
"""Ready net, batch size, rounds, levels; the last two have too little to drop for a half."""


def times_by_level(name: str, batch: int, rounds: int, levels: list[str]) -> dict[str, Any]:
    """Processor seconds a step at each level, as ratios to those of steps by the layers."""
    runs, kernels = {"layers": stepper(name, batch, "layers")[2]}, {}
    for level in levels:
        net, optimizer, x, y = made(name, batch, level)
        program = net.record(x, y, optimizer, recompute=recompute(net, batch, level))
        runs[level] = partial(program.run, x, y)
        kernels[level] = program.report().recomputed_kernels
    seconds = interleaved(runs, rounds, time.process_time)
    base = seconds["layers"]
    ratios = {level: [a / b for a, b in zip(seconds[level], base, strict=True)] for level in levels}
    return {
        level: {
            "kernels": kernels[level],
            "seconds": statistics.median(seconds[level]),
            "ratio": statistics.median(ratios[level]),
            "spread": spread(ratios[level]),
        }
        for level in levels
    }


def rows(ops: str) -> list[list[str]]:
    """Memory and time of every level, beside steps by the layers."""
    found = []
    for name, batch, rounds, levels in CASES:
        took = child(ops, "times_by_level", name, batch, rounds, levels, script=__file__)
        layers = child(ops, "resident", name, batch, "layers")["peak"]
        kept = 0.0
        for level in levels:
            held, own = child(ops, "resident", name, batch, level), took[level]
            kept = kept or held["arena"]
            found.append(
                [
                    ops,
                    f"{name}, {batch}",
                    level,
                    f"{own['kernels']:,}",
                    megabytes(held["arena"]),
                    f"{100 * (1 - held['arena'] / kept):.0f} %",
                    megabytes(held["planned"]),
                    megabytes(held["peak"]),
                    f"{100 * (1 - held['peak'] / layers):.0f} %",
                    f"{1e3 * own['seconds']:,.1f}",
                    f"{own['ratio']:.2f} {own['spread']}",
                ]
            )
            print(found[-1], file=sys.stderr)
    return found


def main(backends: list[str]) -> None:
    """The table."""
    head = ["kernels", "net, batch", "level", "again", "arena MB", "less", "planned MB",
            "resident MB", "less", "ms", "ratio"]  # fmt: skip
    body = [
        str(__doc__).partition("\n\n    python")[0].partition("\n\n")[2],
        table(head, [row for ops in backends for row in rows(ops)]),
        "Again: kernels that run once more. Less: than the arena without, and than what steps by "
        "the layers hold; the ratio is to the time of these.",
    ]
    publish("recomputing", "Recorded training steps that recompute", "\n\n".join(body))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        mode, *arguments = json.loads(sys.argv[2])
        print(json.dumps({**MODES, "times_by_level": times_by_level}[mode](*arguments)))
    else:
        main(sys.argv[1:] or ["numpy", "onednn"])
