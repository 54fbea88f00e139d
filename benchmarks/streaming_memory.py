"""Bytes of parameter gradients alive at once: the streaming loop against all gradients at once.

An MLP of eight 2048×2048 layers, one SGD step. tracemalloc counts what NumPy allocates; the
gradients are told from the rest by weak references to each array that backward yields. The peak
of a step is what it allocates beyond parameters and optimizer state, outputs and scratch included.
"""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from report import publish, table

import singanet
from singanet.layers import Activation, Dense

LAYERS, WIDTH, BATCH, LR = 8, 2048, 16, 0.001


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


def optimizers() -> dict[str, Callable[[], Any]]:
    """One of each rule and of each wrapper, by the name of its row."""
    o = singanet.optimizer
    return {
        "SGD": lambda: o.SGD(lr=LR),
        "SGD, momentum": lambda: o.SGD(lr=LR, momentum=0.9),
        "Nesterov": lambda: o.Nesterov(lr=LR),
        "RMSProp": lambda: o.RMSProp(lr=LR),
        "AdaGrad": lambda: o.AdaGrad(lr=LR),
        "Adam": lambda: o.Adam(lr=LR),
        "AdamW": lambda: o.AdamW(lr=LR),
        "AMSGrad": lambda: o.AMSGrad(lr=LR),
        "Adafactor": lambda: o.Adafactor(lr=LR),
        "LAMB": lambda: o.LAMB(lr=LR),
        "Lion": lambda: o.Lion(lr=LR),
        "clipping by value": lambda: o.ClipByValue(o.SGD(lr=LR), 1.0),
        "clipping each parameter's norm": lambda: o.SGD(lr=LR, constraint=o.ClipNorm(1.0)),
        "clipping each layer's norm": lambda: o.ClipByLayerNorm(o.SGD(lr=LR), 1.0),
        "clipping by the running norm": lambda: o.ClipByRunningNorm(o.SGD(lr=LR), 1.0),
        "accumulation in a buffer": lambda: o.Accumulator(o.SGD(lr=LR), every=2),
        "accumulation in the momentum": lambda: o.AccumulatingSGD(2, lr=LR),
        "accumulation in Adam's moments": lambda: o.AccumulatingAdam(2, lr=LR),
    }


def main() -> None:
    """Print and keep the table."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, WIDTH)).astype(np.float32)
    net = build()
    net.param_values()
    layer = (WIDTH * WIDTH + WIDTH) * 4
    rows = []

    def add(name: str, run: Callable[[], object]) -> int:
        grads, peak = measured(net, run)
        rows.append([name, f"{grads:,}", f"{grads / layer:.2f}", f"{peak / layer:.2f}"])
        return grads

    for name, make in optimizers().items():
        optimizer = make()
        # Twice before it is measured, so that state exists and is no part of the peak.
        for _ in range(2):
            net.step(x, x, optimizer)
        add(f"step(), {name}", lambda optimizer=optimizer: net.step(x, x, optimizer))
    sgd = singanet.optimizer.SGD(lr=LR)

    def passes() -> Any:
        net.loss.forward(True, net.forward(True, x), x)
        return net.backward(net.loss.backward())

    add(
        "clipping by the global norm, exactly",
        lambda: singanet.optimizer.clip_by_global_norm(sgd, 1.0, passes),
    )
    streaming = int(rows[0][1].replace(",", ""))
    everything = add("train(): all gradients at once", lambda: net.train(x, x))
    header = ["loop", "gradient bytes alive at most", "in layers", "peak of a step, in layers"]
    body = table(header, rows) + f"\n\nratio train() / step(): {everything / streaming:.2f}"
    publish("streaming_memory", f"Gradients of an MLP of {LAYERS} {WIDTH}×{WIDTH} layers", body)


if __name__ == "__main__":
    main()
