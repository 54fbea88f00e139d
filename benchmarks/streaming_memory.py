"""Bytes of parameter gradients alive at once: the streaming loop against all gradients at once.

An MLP of eight 2048×2048 layers, one SGD step. tracemalloc counts what NumPy allocates; the
gradients are told from the rest by weak references to each array that backward yields.
"""

from __future__ import annotations

import tracemalloc
import weakref

import numpy as np
from report import publish, table

import singanet
from singanet.layers import Activation, Dense

LAYERS, WIDTH, BATCH = 8, 2048, 16


class Alive:
    """The bytes of gradients that exist now, and the most that ever did."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def watch(self, item: singanet.LayerGradients) -> None:
        """Count the gradients of ``item`` until they are freed."""
        for grad in item.grads:
            self.now += grad.nbytes
            weakref.finalize(grad, self._freed, grad.nbytes)
        self.peak = max(self.peak, self.now)

    def _freed(self, size: int) -> None:
        self.now -= size


def build() -> singanet.FeedForwardNet:
    """The MLP."""
    net = singanet.FeedForwardNet(singanet.loss.SquaredError(), seed=0)
    for k in range(LAYERS):
        shape = {"input_sample_shape": (WIDTH,)} if k == 0 else {}
        net.add(Dense(f"fc{k}", WIDTH, **shape))
        net.add(Activation(f"relu{k}"))
    return net


def measured(net: singanet.FeedForwardNet, run) -> tuple[int, int]:  # noqa: ANN001
    """The most bytes of gradients alive, and the peak of everything allocated, during ``run``."""
    alive = Alive()
    backward = net.backward

    def watched(dy, output=()):  # noqa: ANN001, ANN202
        for item in backward(dy, output):
            alive.watch(item)
            yield item
            del item

    # Watching each item from outside the net, for train() and step() alike.
    net.backward = watched  # type: ignore[method-assign]
    tracemalloc.start()
    try:
        run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        net.backward = backward  # type: ignore[method-assign]
    return alive.peak, peak


def main() -> None:
    """Print and keep the table."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, WIDTH)).astype(np.float32)
    net = build()
    net.param_values()
    optimizer = singanet.optimizer.SGD(lr=0.01)
    rows = []
    layer = (WIDTH * WIDTH + WIDTH) * 4
    grads, peak = measured(net, lambda: net.step(x, x, optimizer))
    base = grads
    rows.append(["step(), SGD", f"{grads:,}", f"{grads / layer:.2f}", f"{peak:,}"])
    grads, peak = measured(net, lambda: net.train(x, x))
    rows.append(["train()", f"{grads:,}", f"{grads / layer:.2f}", f"{peak:,}"])
    header = ["loop", "gradient bytes alive at most", "in layers", "peak of all allocations, bytes"]
    body = table(header, rows) + f"\n\nratio train() / step(): {grads / base:.2f}"
    publish("streaming_memory", f"Gradients of an MLP of {LAYERS} {WIDTH}×{WIDTH} layers", body)


if __name__ == "__main__":
    main()
