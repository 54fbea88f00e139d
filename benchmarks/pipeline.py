"""Pipelines of 2 and 4 processes: bubble, contexts alive, processor time, and resident peaks.

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
NETS = {
    "8 layers of 64, 256 samples": 20,
    "transformer, 4 blocks of 64, 32 × 32": 4,
    "resnet20, 32 images": 2,
    "24 layers of 512, 1024 samples": 2,
}
"""Nets of two stages, and steps between two looks at the clock."""

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
    parser.add_argument("--net", default="", help=argparse.SUPPRESS)
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
    times = []
    for net in NETS:
        pair = [job(2, kind, "1f1b", 8, net) for kind in ("layers", "recorded")]
        for k, both in enumerate(zip(*pair, strict=True)):
            told = [f"{1e3 * each['seconds']:.1f}" for each in both]
            told += [f"{each['peak'] / 1e6:.0f}" for each in both]
            times.append([net, str(k), *told])
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
        "Processor time of a step of Adam on two ranks, by the layers and recorded, of 8 "
        'micro-batches by "1f1b": the lower quartile of 9. Peaks are of steps from the fourth on.',
        table(["net", "rank", "layers, ms", "recorded, ms", "peaks, MB", ""], times),
        f"{LAYERS} layers of {WIDTH} with relu, {BATCH} samples: most resident memory beyond what "
        "a process held before the net was built, its batch included.",
        table(["ranks", "micro-batches", "schedule", "peak of each, MB"], rows),
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}.",
    ]
    publish("pipeline", "Layers on stages of several processes", "\n\n".join(body))


def job(ranks: int, kind: str, name: str, micro: int, net: str = "") -> list[dict[str, Any]]:
    """What each process has measured."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "singanet", "launch", "-n", str(ranks), __file__]
        command += ["--worker", folder, "--work", kind, "--schedule", name, "--micro", str(micro)]
        command += ["--net", net]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True)
        return [json.loads(Path(folder, f"{k}.json").read_text()) for k in range(ranks)]


def work(given: argparse.Namespace) -> None:
    """Be one of the processes."""
    from singanet import parallel

    comm = parallel.init()
    if given.net:
        made = steps(comm, given.schedule, given.micro, given.net, given.work == "recorded")
    else:
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


def steps(comm: Any, name: str, micro: int, which: str, recorded: bool) -> dict[str, Any]:
    """Processor time of a step of a net, and its resident peak once it is recorded."""
    from apart import forget_peak, peak, resident

    import singanet
    from singanet import parallel
    from singanet.layers import Activation, Dense
    from singanet.loss import SoftmaxCrossEntropy
    from singanet.optimizer import Adam

    rng, first = np.random.default_rng(0), which.split()[0]
    before = resident("RssAnon")
    stages: Any = None
    if first.isdigit():
        width, samples = (64, 256) if first == "8" else (512, 1024)
        layers: list[Any] = []
        for k in range(int(first)):
            layers += [Dense(f"d{k}", width), Activation(f"r{k}")]
        layers[0].input_shape = (width,)
        net = singanet.FeedForwardNet(
            [*layers, Dense("scores", 10)], loss=SoftmaxCrossEntropy(), seed=0
        )
        stages = [f"d{int(first) // 2}"]
        x, y = rng.standard_normal((samples, width)).astype(np.float32), np.arange(samples) % 10
    elif first == "resnet20,":
        net = singanet.models.build("resnet20", seed=0)
        x, y = rng.standard_normal((32, 3, 32, 32)).astype(np.float32), np.arange(32) % 10
    else:
        sizes: dict[str, Any] = {"width": 64, "depth": 4, "heads": 4, "dropout": 0.0}
        net = singanet.models.build("transformer", (32,), 65, seed=0, **sizes)
        stages = ["block3_attention_norm"]
        x, y = rng.integers(0, 65, (2, 32, 32))
    net.programs.enabled = recorded
    parallel.Pipeline(net, stages, micro, name, comm)
    rule, seconds = Adam(lr=0.001), []
    for _ in range(3):
        net.step(x, y, rule)
    forget_peak()
    for _ in range(9):
        comm.barrier()
        began = time.process_time()
        for _ in range(NETS[which]):
            net.step(x, y, rule)
        seconds.append((time.process_time() - began) / NETS[which])
    return {"seconds": statistics.quantiles(seconds, n=4)[0], "peak": peak() - before}


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
