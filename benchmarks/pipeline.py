"""Pipelines of 2 and 4 processes: bubble, contexts alive, and resident peaks.

Layers that sleep stand for stages that compute, so that two cores are enough for four of them.

    python benchmarks/pipeline.py
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
from pathlib import Path
from typing import Any

import numpy as np

FORWARD, BACKWARD = 0.03, 0.06
SLEEPING = [(2, 8), (2, 16), (4, 8), (4, 16)]
"""Stages and micro-batches."""

MEASURED = [(1, "1f1b", 1), (2, "1f1b", 1), (1, "1f1b", 8), (2, "gpipe", 8), (2, "1f1b", 8)]
"""Ranks, schedule and micro-batches."""

LAYERS, WIDTH, BATCH = 24, 512, 4096
STEPS = 6


def main() -> None:
    """Run the jobs and keep the tables, or be one of their processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--schedule", default="1f1b", help=argparse.SUPPRESS)
    parser.add_argument("--micro", type=int, default=8, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given)
        return
    from report import publish, table

    rows = []
    for stages, micro in SLEEPING:
        for name in ("gpipe", "1f1b"):
            made = job(stages, "sleep", name, micro)
            low, wanted = statistics.quantiles(made[0]["bubble"], n=4)[0], (stages - 1) / micro
            alive = ", ".join(str(each["alive"]) for each in made)
            told = [f"{low:.3f}", f"{wanted:.3f}", f"{low - wanted:+.3f}", alive]
            rows.append([str(stages), str(micro), name, *told])
    header = ["stages", "micro-batches", "schedule", "bubble", "(p − 1)/m", "off", "contexts"]
    bubbles = table(header, rows)
    rows = []
    for ranks, name, micro in MEASURED:
        peaks = ", ".join(f"{p['peak'] / 1e6:.0f}" for p in job(ranks, "memory", name, micro))
        rows.append([str(ranks), str(micro), name if ranks > 1 else "", peaks])
    body = [
        f"Stages sleep {1e3 * FORWARD:g} ms forward and {1e3 * BACKWARD:g} ms backward; the lower "
        f"quartile of {STEPS} steps. Bubble: (step − busy) / busy, by the sleeping as measured.",
        bubbles,
        f"{LAYERS} layers of {WIDTH} with relu, {BATCH} samples: most resident memory beyond what "
        "a process held before the net was built, its batch included.",
        table(["ranks", "micro-batches", "schedule", "peak of each, MB"], rows),
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}.",
    ]
    publish("pipeline", "Layers on stages of several processes", "\n\n".join(body))


def job(ranks: int, kind: str, name: str, micro: int) -> list[dict[str, Any]]:
    """What each process has measured."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "singanet", "launch", "-n", str(ranks), __file__]
        command += ["--worker", folder, "--work", kind, "--schedule", name, "--micro", str(micro)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True)
        return [json.loads(Path(folder, f"{k}.json").read_text()) for k in range(ranks)]


def work(given: argparse.Namespace) -> None:
    """Be one of the processes."""
    from singanet import parallel

    comm = parallel.init()
    made = (sleep if given.work == "sleep" else memory)(comm, given.schedule, given.micro)
    Path(given.worker, f"{comm.rank}.json").write_text(json.dumps(made))


def sleep(comm: Any, name: str, micro: int) -> dict[str, Any]:
    """Bubbles of steps whose layers sleep, and the contexts alive."""
    import singanet
    from singanet import parallel
    from singanet.layers import Dense, Layer
    from singanet.loss import SoftmaxCrossEntropy
    from singanet.optimizer import SGD

    class Sleeps(Layer):
        """Takes its time, and counts it."""

        slept = 0.0

        def setup(self, in_shapes: Any) -> Any:
            return in_shapes

        def forward(self, ctx: Any, x: Any) -> Any:
            self._take(FORWARD)
            return x

        def backward(self, ctx: Any, dy: Any) -> Any:
            self._take(BACKWARD)
            return dy, {}

        def _take(self, seconds: float) -> None:
            began = time.perf_counter()
            time.sleep(seconds)
            Sleeps.slept += time.perf_counter() - began

    with parallel.stage(0):
        layers: list[Any] = [Dense("in", 64, input_shape=(64,))]
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    for k in range(comm.size):
        with parallel.stage(k):
            for layer in layers:
                net.add(layer)
            net.add(Sleeps(f"sleeps{k}"))
            layers = [Dense(f"out{k}", 64)]
    with parallel.stage(comm.size - 1):
        net.add(Dense("scores", 10))
    pipeline = parallel.Pipeline(net, micro_batches=micro, schedule=name, comm=comm)
    x = np.random.default_rng(0).standard_normal((8 * micro, 64)).astype(np.float32)
    y = np.arange(len(x)) % 10
    rule, bubbles = SGD(lr=0.01), []
    for _ in range(STEPS + 1):
        comm.barrier()
        Sleeps.slept, began = 0.0, time.perf_counter()
        net.step(x, y, rule)
        seconds = comm.all_reduce(np.array([time.perf_counter() - began]), "max")[0]
        busy = comm.all_reduce(np.array([Sleeps.slept]), "max")[0]
        bubbles.append((seconds - busy) / busy)
    return {"bubble": bubbles[1:], "alive": pipeline.alive}


def memory(comm: Any, name: str, micro: int) -> dict[str, Any]:
    """The resident peak of some steps of a deep net."""
    from apart import forget_peak, peak, resident

    import singanet
    from singanet import parallel
    from singanet.layers import Activation, Dense
    from singanet.loss import SoftmaxCrossEntropy
    from singanet.optimizer import SGD

    rule = SGD(lr=0.01, momentum=0.9)
    layers: list[Any] = []
    for k in range(LAYERS):
        layers += [Dense(f"d{k}", WIDTH), Activation(f"r{k}")]
    layers[0].input_shape = (WIDTH,)
    before = resident("RssAnon")
    net = singanet.FeedForwardNet(
        [*layers, Dense("scores", 10)], loss=SoftmaxCrossEntropy(), seed=0
    )
    firsts = [f"d{LAYERS // 2}"] if comm.size == 2 else []
    parallel.Pipeline(net, firsts, micro, name, comm)
    x = np.random.default_rng(0).standard_normal((BATCH, WIDTH), np.float32)
    y = np.arange(BATCH) % 10
    forget_peak()
    for _ in range(3):
        net.step(x, y, rule)
    return {"peak": peak() - before}


if __name__ == "__main__":
    main()
