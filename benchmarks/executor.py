"""What `Executor.run` costs over `net.step`: one net of 64-64-10, fed by symbols and by names.

Both replay a program of the same kernels; the bound is 5 µs a run. Batches of 1 and 32, in turns.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

import numpy as np
from report import interleaved, publish, spread, table

import singanet
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD

STEPS = 100


def layers() -> list:
    """64-64-10."""
    return [Dense("fc1", 64, input_sample_shape=(64,)), Activation("relu"), Dense("fc2", 10)]


def runs(batch: int) -> dict[str, Callable[[], object]]:
    """`STEPS` steps by each way, each on a net of its own."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, 64)).astype(np.float32)
    labels = rng.integers(0, 10, batch)
    x, y = singanet.Input("x", (64,)), singanet.Input("y", (), dtype="int64")
    scores = x
    for layer in layers():
        scores = layer(scores)
    loss = SoftmaxCrossEntropy()(scores, y)
    executor = singanet.Executor(
        {
            "train": [loss, SGD(1e-3).minimize(loss)],
            "infer": [scores],
        },
        seed=0,
    )
    net = singanet.FeedForwardNet(layers(), loss=SoftmaxCrossEntropy(), seed=0)
    sgd = SGD(1e-3)

    def step() -> None:
        for _ in range(STEPS):
            net.step(images, labels, sgd)

    def run() -> None:
        for _ in range(STEPS):
            executor.run("train", {x: images, y: labels})

    def by_name() -> None:
        for _ in range(STEPS):
            executor.run("train", {"x": images, "y": labels})

    def forward() -> None:
        for _ in range(STEPS):
            net.forward(False, images)

    def infer() -> None:
        for _ in range(STEPS):
            executor.run("infer", {x: images})

    return {
        "net.step": step,
        "executor.run": run,
        "executor.run, fed by name": by_name,
        "net.forward": forward,
        "executor.run of scores": infer,
    }


def main() -> None:
    """Print and keep the table."""
    rows = []
    for batch in (1, 32):
        seconds = interleaved(runs(batch), 60)
        for name, values in seconds.items():
            of_scores = name in ("net.forward", "executor.run of scores")
            # The least of all rounds: other work on the machine can only add to it.
            base = min(seconds["net.forward" if of_scores else "net.step"])
            rows.append(
                [
                    str(batch),
                    name,
                    f"{1e6 * statistics.median(values) / STEPS:.1f}",
                    spread(values),
                    f"{1e6 * min(values) / STEPS:.1f}",
                    f"{1e6 * (min(values) - base) / STEPS:+.1f}",
                ]
            )
    header = ["batch", "way", "µs a run", "spread", "least", "over the net's"]
    load = f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    publish(
        "executor", "Executor.run against net.step, 64-64-10", f"{table(header, rows)}\n\n{load}"
    )


if __name__ == "__main__":
    main()
