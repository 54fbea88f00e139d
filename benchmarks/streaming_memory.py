"""Bytes of parameter gradients alive at once: the streaming loop against all gradients at once.

An MLP of eight 2048×2048 layers, one SGD step. tracemalloc counts what NumPy allocates; the
gradients are told from the rest by weak references to each array that backward yields. The peak
of a step is what it allocates beyond parameters and optimizer state, outputs and scratch included.
Both are of steps by the layers. The last columns are the most that the same loop has allocated
beyond the parameters where it may record: the program's memory and the optimizer's state included.
"""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from report import publish, table
from rules import EVERY, LIMIT, LR, RULES

import singanet
from singanet.layers import Activation, Dense

LAYERS, WIDTH, BATCH = 8, 2048, 16
GLOBAL_NORM = "clipping by the global norm, exactly"
EVERYTHING = "train(): all gradients at once"
LOOPS = (*RULES, GLOBAL_NORM, EVERYTHING)
"""Rules go through `net.step`."""


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


def loop(net: singanet.FeedForwardNet, name: str) -> Callable[[], object]:
    """Some steps of ``net`` by the loop of that name, one of `LOOPS`."""
    # So small that no rule diverges within these few steps.
    x = 0.01 * np.random.default_rng(0).standard_normal((BATCH, WIDTH), np.float32)
    if name == EVERYTHING:
        return lambda: net.train(x, x)

    def passes() -> Any:
        net.loss.forward(True, net.forward(True, x), x)
        return net.backward(net.loss.backward())

    if name == GLOBAL_NORM:
        sgd = singanet.optimizer.SGD(lr=LR)
        return lambda: singanet.optimizer.clipping(sgd, LIMIT, passes)
    optimizer = RULES[name]()

    def steps() -> None:
        # So many that what accumulates makes an update among them.
        for _ in range(EVERY):
            net.step(x, x, optimizer)

    return steps


def taken(net: singanet.FeedForwardNet, name: str) -> tuple[int, int]:
    """What a loop takes by the layers once optimizer's state exists, which is not in the peak."""
    net.programs.enabled = False
    run = loop(net, name)
    run()
    return measured(net, run)


def recorded(net: singanet.FeedForwardNet, name: str) -> tuple[int, int]:
    """The most bytes beyond the parameters while a loop is recorded, and when it is replayed.

    Gradients lie in the program's memory then and are no arrays that could be watched.
    """
    run = loop(net, name)
    net.param_values()
    tracemalloc.start()
    try:
        run()
        run()
        first = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        run()
        return first, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> None:
    """Print and keep the table."""
    layer = (WIDTH * WIDTH + WIDTH) * 4
    found = {name: (*taken(build(), name), *recorded(build(), name)) for name in LOOPS}
    rows = [
        [name, f"{figures[0]:,}", *(f"{figure / layer:.2f}" for figure in figures)]
        for name, figures in found.items()
    ]
    header = ["loop", "gradient bytes alive at most", "in layers", "peak of a step, in layers",
              "all while recording", "all while replaying"]  # fmt: skip
    ratio = found[EVERYTHING][0] / found["SGD"][0]
    body = table(header, rows) + f"\n\nratio train() / step(): {ratio:.2f}"
    publish("streaming_memory", f"Gradients of an MLP of {LAYERS} {WIDTH}×{WIDTH} layers", body)


if __name__ == "__main__":
    main()
