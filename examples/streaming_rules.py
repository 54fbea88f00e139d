"""A loop of one's own within so many bytes: each layer has its rule, and its gradients go at once.

    python examples/streaming_rules.py [--budget 24]
    python examples/streaming_rules.py --small

The table changes only where it was looked up, the recurrent layer is passed over where its gradient
is long, the last one has plain SGD. The batch is the largest that fits. With --small it prints

    batches of 8 texts, whose trial step took 4.8 MB of 6 MB
    loss 4.25 before, 2.59 after 62 steps
    the recurrent layer was passed over in 12 of them; 4.7 MB at most
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable
from functools import partial

from singanet import FeedForwardNet
from singanet.data import TextLoader, plays
from singanet.layers import LSTM, Dense, Embedding
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adafactor, AdaGrad, Optimizer, global_norm
from singanet.types import Array

LENGTH, LONG = 32, 0.5
Rules = dict[str, Optimizer]


def walk(net: FeedForwardNet, x: Array, y: Array, rules: Rules) -> tuple[float, bool]:
    """One step: its loss, and whether a layer was passed over. Others get their rule, if any."""
    loss, over = net.loss.forward(True, net.forward(True, x), y), False
    for layer in net.backward(net.loss.backward()):
        if layer.layer == "read" and global_norm([layer]) > LONG:
            over = True
        elif layer.layer in rules:
            rules[layer.layer].update(*layer)
        del layer  # before the gradients of the next one are there
    return float(loss.mean()), over


def megabytes(run: Callable[[], object]) -> float:
    """What ``run`` allocates at most, beyond what was there."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    run()
    return (tracemalloc.get_traced_memory()[1] - before) / 1e6


def main() -> None:
    """Choose the batch, learn, and tell what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=24, help="MB")
    parser.add_argument("--small", action="store_true", help="a short text within 6 MB")
    given = parser.parse_args()
    text, budget = plays(), 6 if given.small else given.budget
    read = text.train[:16_000] if given.small else text.train
    table = Embedding("table", text.vocabulary_size, 32, input_shape=(LENGTH,))
    layers = [table, LSTM("read", 128), Dense("next", text.vocabulary_size)]
    net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
    net.programs.enabled = False  # a recorded step takes more, in one piece: see docs/memory.md
    tracemalloc.start()
    rows, needed = 0, 0.0
    for more in (4, 8, 16, 32, 64, 128):
        took = megabytes(partial(walk, net, *next(iter(TextLoader(read, more, LENGTH))), {}))
        if took <= 0.8 * budget:  # the rest is for the state of the rules
            rows, needed = more, took
    print(f"batches of {rows} texts, whose trial step took {needed:.1f} MB of {budget:.0f} MB")
    rules = {"table": AdaGrad(0.1), "read": Adafactor(0.02), "next": SGD(0.5, momentum=0.9)}
    batches, told = TextLoader(read, rows, LENGTH, drop_last=True), list[tuple[float, bool]]()
    most = megabytes(lambda: told.extend(walk(net, x, y, rules) for x, y in batches))
    losses, over = zip(*told, strict=True)
    print(f"loss {losses[0]:.2f} before, {sum(losses[-5:]) / 5:.2f} after {len(over)} steps")
    print(f"the recurrent layer was passed over in {sum(over)} of them; {most:.1f} MB at most")


if __name__ == "__main__":
    main()
