"""One side of `first_seconds.py`: a process that builds a net and trains it for a few steps.

Argument: JSON with the side ("singanet", "layers", "torch" or "keras"), the net and its batch. It
answers with the time at which each part was done, of the clock of the system and of the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from math import prod
from typing import Any

RATE, MOMENTUM = 0.01, 0.9
Step = Callable[[Any, Any], object]


def batch(given: dict) -> tuple[Any, Any]:
    """Inputs, channels first, and targets."""
    import numpy as np

    rng = np.random.default_rng(0)
    size, shape, classes = given["batch"], given["shape"], given["classes"]
    if given["task"] == "text":
        ids = rng.integers(0, classes, (size, *shape))
        return ids, rng.integers(0, classes, ids.shape)
    labels = rng.integers(0, classes, size)
    if given["task"] == "tabular":
        ids = rng.integers(0, 102, (size, shape[0]))
        numbers = rng.standard_normal((size, shape[1]), np.float32)
        return {"categorical": ids, "numeric": numbers}, labels
    if given["task"] == "reconstruction":
        x = rng.random((size, *shape), np.float32)
        return x, x
    x = rng.standard_normal((size, *shape), np.float32)
    if given["task"] == "segmentation":
        return x, rng.integers(0, classes, (size, *shape[1:]))
    return x, labels


def ours(given: dict, done: Callable[[str], None]) -> tuple[Step, int]:
    """A step of singanet, and how many numbers it trains."""
    import singanet

    done("imported")
    net = singanet.models.build(given["model"], seed=0)
    sgd = singanet.optimizer.SGD(lr=RATE, momentum=MOMENTUM)
    net.metric = None
    net.programs.enabled = given["side"] == "singanet"
    count = sum(param.value.size for param in net.params() if param.trainable)
    return lambda x, y: net.step(x, y, sgd), count


def theirs(given: dict, done: Callable[[str], None]) -> tuple[Step, int]:
    """A step of PyTorch, eager, its twin's parameters as PyTorch starts them."""
    import torch
    import twins

    done("imported")
    net = twins.build(given["model"], **given["options"])
    sgd = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)

    def step(x: Any, y: Any) -> float:
        parts = x.values() if isinstance(x, dict) else (x,)
        sgd.zero_grad()
        scores = net(*map(torch.from_numpy, parts)).flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(y).flatten())
        loss.backward()
        sgd.step()
        return loss.item()

    return step, sum(part.numel() for part in net.parameters())


def of_keras(given: dict, done: Callable[[str], None]) -> tuple[Step, int]:
    """A step of Keras, on the backend that the environment names."""
    import keras
    import keras_twins

    done("imported")
    shape = given["shape"]
    images = len(shape) == 3
    net = keras_twins.build(
        given["model"], (*shape[1:], shape[0]) if images else shape, given["classes"]
    )
    by_values = given["task"] == "reconstruction"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.SGD(RATE, MOMENTUM), "mse" if by_values else loss)

    def step(x: Any, y: Any) -> object:
        x = x.transpose(0, 2, 3, 1) if images else x
        return net.train_on_batch(x, x if by_values else y)

    return step, sum(prod(value.shape) for value in net.trainable_variables)


SIDES = {"singanet": ours, "layers": ours, "torch": theirs, "keras": of_keras}


def main() -> None:
    """Train, and tell."""
    given = json.loads(sys.argv[1])
    times: list[tuple[str, float, float]] = []

    def done(what: str) -> None:
        times.append((what, time.perf_counter(), time.process_time()))

    step, count = SIDES[given["side"]](given, done)
    done("built")
    x, y = batch(given)
    for k in range(given["steps"]):
        if k == 1 and given["side"] == "singanet":
            # What the second step would import, apart.
            import singanet.program.replay.replay  # noqa: F401

            done("recorder")
        if k > 1:
            done("start")
        step(x, y)
        done(f"step {k + 1}")
    print(json.dumps({"times": times, "parameters": count}))


if __name__ == "__main__":
    main()
