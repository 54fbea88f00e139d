"""Training steps and predictions as convolutions go by estimate, and without one of the routes.

With a compiler and without, with the processor's registers and bounded to AVX2, each in a process
of its own. One thread, recorded steps in turn, processor time; speeds are measured in each process.

    python benchmarks/route_left_out.py [--route numpy] [MODEL:BATCH ...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

ROWS = ["vgg11:8", "resnet20:32", "resnet18:4", "wrn-16-4:8", "googlenet:4"]
ROUNDS = 9


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--route", default="numpy")
    parser.add_argument("--part", choices=("with", "without"), help="for the processes it starts")
    parser.add_argument("rows", nargs="*", default=ROWS, metavar="MODEL:BATCH")
    return parser.parse_args()


class Without:
    """Takes the cheapest route but ``left_out``, and counts how often it takes each."""

    version = 0

    def __init__(self, left_out: str) -> None:
        self.left_out = left_out
        self.taken: dict[Any, str] = {}

    def choose(self, ops: Any, case: Any, estimates: Mapping[str, float]) -> str:
        """The route."""
        from singanet.ops.kernel import cheapest

        open_ones = {name: cost for name, cost in estimates.items() if name != self.left_out}
        self.taken[case] = cheapest(open_ones)
        return self.taken[case]


def runs_of(row: str, left_out: str) -> tuple[list[Callable[[], object]], list[int]]:
    """A step and a prediction, and how many kernels of each go by the route."""
    import numpy as np

    import singanet

    model, _, batch = row.partition(":")
    net = singanet.models.build(model, seed=0)
    chooser: Any = Without(left_out)
    net.device.ops.chooser = chooser  # type: ignore[attr-defined]
    rng, shape = np.random.default_rng(0), singanet.models.find(model).input_shape
    x = rng.standard_normal((int(batch), *shape)).astype(np.float32)
    y = rng.integers(0, 10, int(batch))
    program, counts = net.record(x, y, singanet.optimizer.SGD(1e-6, 0.9)), []
    predictor: Any = net.predictor()
    runs: list[Callable[[], object]] = [lambda: program.run(x, y), lambda: predictor(x)]
    for run in runs:
        run()
        counts.append(list(chooser.taken.values()).count(OPTIONS.route))
        chooser.taken.clear()
    return runs, counts


def part() -> None:
    """The rows of one process, as JSON."""
    from report import interleaved, spread

    import singanet.ops.casts

    if OPTIONS.part == "without":

        def version(name: str) -> str:
            raise ValueError(name)

        singanet.ops.casts.version = version
    rows = []
    for row in OPTIONS.rows:
        usual, counts = runs_of(row, "")
        others, _ = runs_of(row, OPTIONS.route)
        for k, kind in enumerate(("step", "prediction")):
            pair = {"usual": usual[k], "other": others[k]}
            taken = interleaved(pair, ROUNDS, time.process_time)
            ratios = [b / a for a, b in zip(taken["usual"], taken["other"], strict=True)]
            times = [f"{1e3 * statistics.median(taken[each]):.1f}" for each in pair]
            told = f"{statistics.median(ratios):.3f} {spread(ratios)}"
            rows.append([f"{row}, {kind}", str(counts[k]), *times, told])
    print(json.dumps(rows))


def main() -> None:
    """Print and keep the tables."""
    from report import publish, table

    tables = []
    for registers, compiler in product(("", "AVX2"), ("with", "without")):
        with tempfile.TemporaryDirectory() as folder:
            given = {"SINGANET_OPS": "onednn", "SINGANET_ROUTES": os.path.join(folder, "r.json")}
            given |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
            given |= {"ONEDNN_MAX_CPU_ISA": registers} if registers else {}
            command = [sys.executable, __file__, "--route", OPTIONS.route, "--part", compiler]
            made = subprocess.run(
                [*command, *OPTIONS.rows],
                env={**os.environ, **given},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        head = ["what", f"kernels by {OPTIONS.route}", "ms", "ms without", "without / with"]
        named = f"ONEDNN_MAX_CPU_ISA={registers}" if registers else "The processor as it is"
        tables.append(f"{named}, {compiler} `llvmlite`.\n\n" + table(head, json.loads(made.stdout)))
    body = "One thread, processor time, medians of interleaved rounds.\n\n" + "\n\n".join(tables)
    title = f"Convolutions without the route {OPTIONS.route!r}"
    publish(f"route_left_out_{OPTIONS.route}", title, body)


if __name__ == "__main__":
    OPTIONS = options()
    part() if OPTIONS.part else main()
