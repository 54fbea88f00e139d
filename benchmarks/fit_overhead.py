"""What `fit` costs over the bare streaming loop, a step.

The bare loop cuts its batches with a loader, as every training must; that with batches cut
beforehand is shown as well. Both nets carry an accuracy. Bounds: 3 % at LeNet size, 30 µs a step
for 64-64-10.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
from report import interleaved, publish, spread, table

import singanet
from singanet.data import ArrayLoader
from singanet.layers import Activation, Dense
from singanet.training import Callback

BATCH = 32


class Silent(Callback):
    """Takes part in every batch and does nothing."""

    def on_batch_end(self, batch: int, logs: dict) -> None:
        """Do nothing."""


class Watching(Callback):
    """Takes part in every layer and does nothing."""

    def on_layer_gradients(self, names: list, values: list, grads: list) -> None:
        """Do nothing."""


def small() -> singanet.FeedForwardNet:
    """64-64-10."""
    net = singanet.FeedForwardNet(
        singanet.loss.SoftmaxCrossEntropy(), singanet.metric.Accuracy(), seed=0
    )
    net.add(Dense("fc1", 64, input_sample_shape=(64,)))
    net.add(Activation("relu"))
    net.add(Dense("fc2", 10))
    return net


def lenet() -> singanet.FeedForwardNet:
    """LeNet on MNIST's shape."""
    return singanet.models.build("lenet", (1, 28, 28), 10, 0)


def runs(net: singanet.FeedForwardNet, steps: int) -> dict[str, Callable[[], object]]:
    """An epoch of ``steps`` by each way; all train the same net, which does not change its cost."""
    rng = np.random.default_rng(0)
    shape = net.nodes()[0].layer.input_sample_shape
    x = rng.standard_normal((BATCH * steps, *shape)).astype(np.float32)
    y = rng.integers(0, 10, len(x))
    optimizer = singanet.optimizer.SGD(lr=1e-3)
    net.compile(optimizer)
    loader = ArrayLoader(x, y, BATCH, seed=0)
    cut = list(ArrayLoader(x, y, BATCH, seed=0))

    def bare() -> None:
        for bx, by in loader:
            net.step(bx, by, optimizer)

    def bare_cut() -> None:
        for bx, by in cut:
            net.step(bx, by, optimizer)

    def fit(*callbacks: Callback) -> Callable[[], object]:
        return lambda: net.fit(x, y, BATCH, callbacks=callbacks, verbose=False)

    return {
        "bare loop": bare,
        "bare loop, batches cut before": bare_cut,
        "fit": fit(),
        "fit, a callback a batch": fit(Silent()),
        "fit, a callback a layer": fit(Watching()),
    }


def main() -> None:
    """Print and keep the table."""
    rows = []
    for title, net, steps, rounds in (("64-64-10", small(), 400, 25), ("LeNet", lenet(), 6, 40)):
        seconds = interleaved(runs(net, steps), rounds)
        # The least of all rounds: other work on the machine can only add to it.
        base = min(seconds["bare loop"])
        for name, values in seconds.items():
            rows.append(
                [
                    title,
                    name,
                    f"{1e6 * statistics.median(values) / steps:.1f}",
                    spread(values),
                    f"{1e6 * min(values) / steps:.1f}",
                    f"{1e6 * (min(values) - base) / steps:+.1f}",
                    f"{min(values) / base:.3f}",
                ]
            )
    header = ["net", "loop", "µs a step", "spread", "least", "over the bare loop", "ratio"]
    publish("fit_overhead", f"fit against the streaming loop, batch {BATCH}", table(header, rows))


if __name__ == "__main__":
    main()
