"""The input of recurrent kernels, their way through the steps, and their output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from singanet.types import Array


@dataclass(frozen=True)
class Direction:
    """Through ``count`` steps, forward or in ``reverse``.

    ``skips`` (T, N, 1) is True where a sample has no such step: its state stays. ``drop`` (N, H) is
    what states are multiplied by before the product with their weights. An array of states has an
    entry more than there are steps: one before the first, or in reverse after the last, and one
    after each step.
    """

    count: int
    reverse: bool = False
    skips: Array | None = None
    drop: Array | None = None

    @property
    def start(self) -> int:
        """Where the state before all steps lies among the states."""
        return -1 if self.reverse else 0

    @property
    def end(self) -> int:
        """Where the state after all steps lies among the states."""
        return 0 if self.reverse else -1

    def steps(self) -> range:
        """The steps in the order in which they are taken."""
        return range(self.count - 1, -1, -1) if self.reverse else range(self.count)

    def steps_back(self) -> range:
        """The steps in the order of their gradients."""
        return range(self.count) if self.reverse else range(self.count - 1, -1, -1)

    def around(self, t: int) -> tuple[int, int]:
        """Where the states before and after step ``t`` lie among the states."""
        return (t + 1, t) if self.reverse else (t, t + 1)

    def befores(self, states: Array) -> Array:
        """The states before every step, (T, N, H)."""
        return states[1:] if self.reverse else states[:-1]

    def afters(self, states: Array) -> Array:
        """The states after every step, (T, N, H)."""
        return states[:-1] if self.reverse else states[1:]

    def of(self, samples: slice) -> Direction:
        """The way of some of the samples."""
        skips = None if self.skips is None else self.skips[:, samples]
        drop = None if self.drop is None else self.drop[samples]
        return Direction(self.count, self.reverse, skips, drop)

    @property
    def is_plain(self) -> bool:
        """Whether every step is there for every sample, and sees all of its state."""
        return self.skips is None and self.drop is None


class RecurrentCase(NamedTuple):
    """One direction of a recurrent layer over a batch: what both passes read.

    ``x`` is (T, N, in). ``weights`` are that of the input, (in, G·H) for G gates, or None if each
    gate takes x (T, N, H) as it is, and that of the state, (H, G·H). ``biases`` are one array
    (G·H,), of a GRU two: what is added with each of the products. ``mode`` is the function of a
    simple layer: "tanh" or "relu".
    """

    x: Array
    weights: tuple[Array | None, Array]
    biases: tuple[Array, ...]
    direction: Direction
    mode: str = "tanh"


class RecurrentStates(NamedTuple):
    """The output of a forward kernel.

    ``states`` are h (T + 1, N, H) around the steps, and of an LSTM the cells, of which the last
    one, in reverse the first, is the final one. ``notes`` are what else backward needs.
    """

    states: tuple[Array, ...]
    notes: tuple[Array, ...] = ()


class RecurrentGradients(NamedTuple):
    """The output of a backward kernel; the gradient of x is None if nobody wants it.

    ``weight_x`` is None for a layer without that weight. The gradients of the two biases may be one
    array. ``starts`` are the gradients of the first states, arrays (N, H).
    """

    x: Array | None
    weight_x: Array | None
    weight_h: Array
    bias_x: Array
    bias_h: Array
    starts: tuple[Array, ...]
