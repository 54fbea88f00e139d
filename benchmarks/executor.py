"""What `Executor.run` costs over `net.step`: nets of 64-64-10 and LeNet, fed by symbols and names.

Both replay a program of the same kernels; the bound is 5 µs a run. Batches of 1 and 32, in turns.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np
from report import interleaved, publish, spread, table

import singanet
from singanet.layers import Activation, Conv2D, Dense, Flatten, Layer, MaxPooling2D
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD

STEPS = 100

SHAPES = {"64-64-10": (64,), "lenet": (1, 28, 28)}
"""The nets, and the shapes of their inputs."""

CASES = (("64-64-10", 1), ("64-64-10", 32), ("lenet", 1), ("lenet", 32))


def layers(name: str) -> list[Layer]:
    """Those of a net."""
    if name == "64-64-10":
        return [Dense("fc1", 64), Activation("relu"), Dense("fc2", 10)]
    made: list[Layer] = []
    for k, filters in enumerate((6, 16), 1):
        made += [Conv2D(f"conv{k}", filters, 5), Activation(f"relu{k}"), MaxPooling2D(f"pool{k}")]
    return [*made, Flatten("flat"), Dense("fc1", 120), Activation("relu3"), Dense("fc2", 10)]


def runs(name: str, batch: int) -> dict[str, Callable[[], object]]:
    """`STEPS` steps by each way, each on a net of its own."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, *SHAPES[name])).astype(np.float32)
    labels = rng.integers(0, 10, batch)

    def drawn() -> tuple[singanet.layers.Symbol, singanet.layers.Symbol]:
        scores = first = singanet.Input("x", SHAPES[name])
        for layer in layers(name):
            scores = layer(scores)
        return first, scores

    (x, scores), y = drawn(), singanet.Input("y", (), dtype="int64")
    loss = SoftmaxCrossEntropy()(scores, y)
    executor = singanet.Executor(
        {
            "train": [loss, SGD(1e-3).minimize(loss)],
            "infer": [scores],
        },
        seed=0,
    )
    first, last = drawn()
    net = singanet.FeedForwardNet(inputs=first, outputs=last, loss=SoftmaxCrossEntropy(), seed=0)

    both = {x: images, y: labels}
    ways = {
        "net.step": partial(net.step, images, labels, SGD(1e-3)),
        "executor.run": partial(executor.run, "train", both),
        "executor.run, fed by name": partial(executor.run, "train", {"x": images, "y": labels}),
        "net.forward": partial(net.forward, False, images),
        "executor.run of scores": partial(executor.run, "infer", {x: images}),
    }

    def repeated(act: Callable[[], object]) -> None:
        for _ in range(STEPS):
            act()

    return {way: partial(repeated, act) for way, act in ways.items()}


def main() -> None:
    """Print and keep the table."""
    rows = []
    for net, batch in CASES:
        seconds = interleaved(runs(net, batch), 60)
        for way, values in seconds.items():
            of_scores = way in ("net.forward", "executor.run of scores")
            # The least of all rounds: other work on the machine can only add to it.
            base = min(seconds["net.forward" if of_scores else "net.step"])
            rows.append(
                [
                    f"{net}:{batch}",
                    way,
                    f"{1e6 * statistics.median(values) / STEPS:.1f}",
                    spread(values),
                    f"{1e6 * min(values) / STEPS:.1f}",
                    f"{1e6 * (min(values) - base) / STEPS:+.1f}",
                ]
            )
    header = ["net:batch", "way", "µs a run", "spread", "least", "over the net's"]
    load = f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    publish("executor", "Executor.run against net.step", f"{table(header, rows)}\n\n{load}")


if __name__ == "__main__":
    main()
