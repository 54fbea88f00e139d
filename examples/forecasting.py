"""The next day of a series, hour by hour, from the week before.

    python examples/forecasting.py [--epochs 4]
    python examples/forecasting.py --small

The series is made: a daily and a weekly wave, a trend, and noise that remembers the hour before.
With --small it prints

    2000 hours to learn from, 500 to test on; a forecast is 24 hours from 168
    error of the same hour yesterday 0.470, of the net 0.279, of what cannot be known 0.258
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from singanet import FeedForwardNet
from singanet.layers import Activation, Conv1D, Dense, Flatten
from singanet.loss import Huber
from singanet.optimizer import Adam
from singanet.types import Array

PAST, AHEAD, NOISE = 168, 24, 0.3


def series(hours: int, seed: int = 0) -> Array:
    """So many hours of it."""
    rng, t = np.random.default_rng(seed), np.arange(hours)
    noise = rng.standard_normal(hours) * NOISE
    noise[1:] += 0.4 * noise[:-1]
    waves = np.sin(2 * np.pi * t / 24) + 0.6 * np.sin(2 * np.pi * t / 168)
    return (waves + t / 4000 + noise).astype(np.float32)


def windows(values: Array) -> tuple[Array, Array]:
    """Pasts (N, 1, 168) and the days after them (N, 24), less the mean of the past: no trend."""
    both = np.lib.stride_tricks.sliding_window_view(values, PAST + AHEAD)
    both = both - both[:, :PAST].mean(axis=1, keepdims=True)
    return both[:, None, :PAST], both[:, PAST:]


def causal(name: str, channels: int, dilation: int, **first: Any) -> Conv1D:
    """A convolution of which no step sees a later one: it pads before the beginning alone."""
    return Conv1D(name, channels, 3, padding=[(2 * dilation, 0)], dilation_rate=dilation, **first)


def main() -> None:
    """Learn from what came first, forecast what came then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a short series")
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    split = 2000 if given.small else 8000
    values = series(split + 500)
    x, y = windows(values[:split])
    x_test, y_test = windows(values[split - PAST :])
    print(f"{split} hours to learn from, 500 to test on; a forecast is {AHEAD} hours from {PAST}")
    chain = [causal("conv1", 16, 1, input_shape=(1, PAST)), Activation("relu1")]
    for k, dilation in enumerate((4, 16), 2):
        chain += [causal(f"conv{k}", 16, dilation), Activation(f"relu{k}")]
    net = FeedForwardNet([*chain, Flatten("flat"), Dense("day", AHEAD)], loss=Huber(), seed=0)
    net.compile(Adam(learning_rate=0.002), net.loss)
    net.fit(x, y, batch_size=64, epochs=3 if given.small else given.epochs, verbose=False)

    yesterday = np.abs(x_test[:, 0, -AHEAD:] - y_test).mean()
    mine = np.abs(net.predict(x_test) - y_test).mean()
    print(f"error of the same hour yesterday {yesterday:.3f}, of the net {mine:.3f}, ", end="")
    print(f"of what cannot be known {NOISE * np.sqrt(1.16 * 2 / np.pi):.3f}")


if __name__ == "__main__":
    main()
