"""Training steps with convolutions as estimated, and as `net.tune_kernels` measured them.

One process, one thread, recorded steps in turn, round by round; processor time, so that other work
on the machine disturbs little. The choices go into a file that is thrown away.

    python benchmarks/tuning.py [MODEL:BATCH ...]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["SINGANET_ROUTES"] = os.path.join(tempfile.mkdtemp(), "routes.json")

import numpy as np  # noqa: E402 - after the number of threads
from report import interleaved, publish, spread, table  # noqa: E402

import singanet  # noqa: E402

ROWS = ["lenet:32", "resnet20:32", "vgg11:8", "vgg11:32", "resnet50:2", "resnet50:8"]
ROUNDS = 7


def stepper(model: str, batch: int) -> Callable[[], object]:
    """A recorded step, whose kernels go as is chosen now."""
    net, optimizer = singanet.models.build(model, seed=0), singanet.optimizer.SGD(1e-4, 0.9)
    rng = np.random.default_rng(0)
    shape = (batch, *singanet.models.find(model).input_shape)
    x, y = rng.standard_normal(shape).astype(np.float32), rng.integers(0, 10, batch)
    program = net.record(x, y, optimizer)
    return lambda: program.run(x, y)


def row(name: str) -> list[str]:
    """A line of the table."""
    model, _, batch = name.partition(":")
    estimated = stepper(model, int(batch))
    start = time.process_time()
    report = singanet.models.build(model, seed=0).tune_kernels(int(batch))
    seconds = time.process_time() - start
    runs = {"estimated": estimated, "measured": stepper(model, int(batch))}
    taken = interleaved(runs, ROUNDS, time.process_time)
    ratios = [a / b for a, b in zip(taken["estimated"], taken["measured"], strict=True)]
    others = sum(each.chosen != each.estimate for each in report.rows)
    return [
        name,
        *(f"{1e3 * statistics.median(taken[key]):.1f}" for key in runs),
        f"{statistics.median(ratios):.3f} {spread(ratios)}",
        f"{others} of {len(report.rows)}",
        f"{seconds:.1f}",
    ]


if __name__ == "__main__":
    head = ["net", "ms estimated", "ms measured", "ratio", "go another way", "s to tune"]
    lines = [row(name) for name in sys.argv[1:] or ROWS]
    load = f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    publish("tuning", "Routes of convolutions by measuring", f"{table(head, lines)}\n\n{load}")
