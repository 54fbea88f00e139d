"""Define the cases of kernels: windows, Winograd tiles, directions and attention.

Source of the tiles: Lavin and Gray, 2016. The points are 0, ±√½, ±√2 and infinity, whose float32
error is a quarter of the usual 0, ±1, ±2 (Barabasz et al., 2020): about 3e-6 of the largest value.
For 5×5 windows, which take an eighth of the multiplications, they are 0, ±½, ±1, ±2 and infinity,
with the same error. A transform is a matrix along either axis of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from singanet.types import Array

Pads = tuple[tuple[int, int], ...]
"""Positions before and after along each axis: rows above and below, columns left and right."""

Pair = tuple[int, int]
"""A value for the height and one for the width."""

Sizes = tuple[int, ...]
"""A value for each axis: (height, width), or (depth, height, width)."""


@dataclass(frozen=True, slots=True)
class Window:
    """The geometry of a sliding window, axis by axis.

    ``ceil`` rounds sizes up: the last window may extend beyond the padding after the image, if it
    starts on the image or on the padding before it. Channels and kernels of a convolution form
    ``groups``; a kernel reads the channels of its own group.
    """

    kernel: Sizes
    stride: Sizes
    pads: Pads
    dilation: Sizes = (1, 1)
    ceil: bool = False
    groups: int = 1

    @property
    def extent(self) -> Sizes:
        """The number of positions that the window spans along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def _out_size(self, *sizes: int) -> Sizes:
        """Return floor((in + pads - extent) / stride) + 1 for each axis."""
        found = []
        for size, (before, after), extent, stride in zip(
            sizes, self.pads, self.extent, self.stride, strict=True
        ):
            room = size + before + after - extent
            count = room // stride + 1
            if self.ceil and room % stride and count * stride < size + before:
                count += 1
            found.append(count)
        return tuple(found)

    def reach(self, *sizes: int) -> Pads:
        """Return the pads, with enough positions after the image for the last windows."""
        found = []
        for size, (before, after), extent, stride, count in zip(
            sizes, self.pads, self.extent, self.stride, self._out_size(*sizes), strict=True
        ):
            found.append((before, max(after, (count - 1) * stride + extent - size - before)))
        return tuple(found)


TILE = 4
"""Outputs along a side of a tile."""

POINTS = {
    3: (0.0, 0.5**0.5, -(0.5**0.5), 2**0.5, -(2**0.5)),
    5: (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
}
"""The finite points by the number of taps along an axis."""


def span(taps: int) -> int:
    """Return the inputs along a side of a tile for windows of ``taps``; also its values."""
    return TILE + taps - 1


def _powers(taps: int, count: int) -> Array:
    """Return the powers of each point, and for infinity the highest one: (span, count)."""
    rows = [[point**k for k in range(count)] for point in POINTS[taps]]
    return np.array([*rows, [0.0] * (count - 1) + [1.0]])


def kernels_line(taps: int, kind: Any = np.float64) -> Array:
    """Return (span, taps): each power divided by Π (p - other points); infinity undivided."""
    points = POINTS[taps]
    apart = [np.prod([p - q for q in points if q != p]) for p in points]
    line = _powers(taps, taps) / np.array([*apart, 1.0])[:, None]
    return np.ascontiguousarray(line, kind)


def of_kernels(transposed: bool, kind: Any = np.float32, taps: int = 3) -> Array:
    """Return (span², taps²), the transform of a kernel, flipped on both axes if ``transposed``."""
    line = kernels_line(taps)
    line = line[:, ::-1] if transposed else line
    return np.ascontiguousarray(np.kron(line, line), kind)


def to_kernels(kind: Any = np.float32, taps: int = 3) -> Array:
    """Return (span², taps²), whose transpose maps values to the gradient of a kernel."""
    return of_kernels(False, kind, taps)


@lru_cache(maxsize=16)
def inputs_line(taps: int, kind: Any) -> Array:
    """Return (span, span), the transform of a line of inputs."""
    points = POINTS[taps]
    # For each point the polynomial with zeros at the other points; for infinity with all.
    rows = [np.poly([q for q in points if q != p])[::-1] for p in points]
    line = np.array([*(np.append(row, 0.0) for row in rows), np.poly(points)[::-1]])
    return np.ascontiguousarray(line, kind)


@lru_cache(maxsize=16)
def outputs_line(taps: int, kind: Any) -> Array:
    """Return (4, span), the transform of values to a line of outputs."""
    return np.ascontiguousarray(_powers(taps, TILE).T, kind)


@lru_cache(maxsize=16)
def slopes_line(taps: int, kind: Any) -> Array:
    """Return (span, 4), the transform of a line of gradients of outputs."""
    return np.ascontiguousarray(_powers(taps, TILE), kind)


@dataclass(frozen=True)
class Direction:
    """The order of ``count`` steps, forward or in ``reverse``.

    ``skips`` (T, N, 1) is True at steps that a sample lacks; its state does not change there.
    ``drop`` (N, H) multiplies states before the product with their weights; if ``rounds``, they are
    rounded to 256 steps of their sample's range there. An array of states has
    ``count`` + 1 entries: the initial state, at the end in reverse, and one state after each step.
    """

    count: int
    reverse: bool = False
    skips: Array | None = None
    drop: Array | None = None
    rounds: bool = False

    @property
    def start(self) -> int:
        """The index of the initial state."""
        return -1 if self.reverse else 0

    @property
    def end(self) -> int:
        """The index of the final state."""
        return 0 if self.reverse else -1

    def steps(self) -> range:
        """Return the steps in their order."""
        return range(self.count - 1, -1, -1) if self.reverse else range(self.count)

    def steps_back(self) -> range:
        """Return the steps in the order of backpropagation."""
        return range(self.count) if self.reverse else range(self.count - 1, -1, -1)

    def around(self, t: int) -> tuple[int, int]:
        """Return the indices of the states before and after step ``t``."""
        return (t + 1, t) if self.reverse else (t, t + 1)

    def befores(self, states: Array) -> Array:
        """Return the states before every step, (T, N, H)."""
        return states[1:] if self.reverse else states[:-1]

    def afters(self, states: Array) -> Array:
        """Return the states after every step, (T, N, H)."""
        return states[:-1] if self.reverse else states[1:]

    def of(self, samples: slice) -> Direction:
        """Return the direction of a slice of the samples."""
        skips = None if self.skips is None else self.skips[:, samples]
        drop = None if self.drop is None else self.drop[samples]
        return Direction(self.count, self.reverse, skips, drop, self.rounds)

    @property
    def is_plain(self) -> bool:
        """Whether there are no skipped steps, recurrent dropout or rounding."""
        return self.skips is None and self.drop is None and not self.rounds


class RecurrentCase(NamedTuple):
    """One direction of a recurrent layer over a batch: the arguments of both passes.

    ``x`` is (T, N, in). ``weights`` are the input's, (in, G·H) for G gates, or None if x (T, N, H)
    enters each gate unchanged, and the state's, (H, G·H). ``biases`` are one array (G·H,); a GRU
    has two, one for each product. ``mode`` is the function of a simple layer: "tanh" or "relu".
    """

    x: Array
    weights: tuple[Array | None, Array]
    biases: tuple[Array, ...]
    direction: Direction
    mode: str = "tanh"


class RecurrentStates(NamedTuple):
    """The output of a forward kernel.

    ``states`` are h (T + 1, N, H), and for an LSTM also the cells, with the final cell at the end,
    in reverse at the start. ``notes`` are further arrays for the backward pass.
    """

    states: tuple[Array, ...]
    notes: tuple[Array, ...] = ()


class RecurrentSlopes(NamedTuple):
    """The arguments of a backward kernel.

    ``dy`` (T, N, H) are the gradients of each h, or None; ``ends`` are the gradients of the final
    states, arrays (N, H). ``needs_dx`` requests the gradient of x.
    """

    dy: Array | None
    ends: Sequence[Array]
    needs_dx: bool = True


class RecurrentGradients(NamedTuple):
    """The output of a backward kernel; the gradient of x is None if not requested.

    ``weight_x`` is None for a layer without that weight. The gradients of the two biases may be one
    array. ``starts`` are the gradients of the initial states, arrays (N, H).
    """

    x: Array | None
    weight_x: Array | None
    weight_h: Array
    bias_x: Array
    bias_h: Array
    starts: tuple[Array, ...]


@dataclass(frozen=True)
class Attention:
    """The rule from scores of queries (N, h, Tq, d) and keys (N, h', Tk, d) to attention weights.

    The scores are ``scale`` q kᵀ, with ``softcap`` cap·tanh(scores / cap), plus ``added``. The
    weights are their softmax over the visible keys, each dropped with probability ``dropout``.
    Query i has the position ``first`` + i among the keys.

    A key is visible if all of these allow it: ``causal``, the keys up to the query's position;
    ``window``, the keys less than ``window`` positions before it, and if not ``causal`` also those
    less than ``window`` positions behind it; ``lengths`` (N,), the first keys
    of each sample; ``seen``, nonzero entries; ``segments``, ids (N, Tq) and (N, Tk), keys of the
    query's segment. ``seen`` and ``added`` have the axes of the scores (N, h, Tq, Tk), any of
    extent 1. ``seeds`` are four float32 numbers in [0, 1): equal seeds drop the same weights.
    """

    scale: float
    causal: bool = False
    first: int = 0
    window: int | None = None
    softcap: float | None = None
    lengths: Array | None = None
    seen: Array | None = None
    added: Array | None = None
    segments: tuple[Array, Array] | None = None
    dropout: float = 0.0
    seeds: Array | None = None

    def apart(self) -> tuple[Attention, dict[str, Any]]:
        """Return the case without arrays, and its arrays by name."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        there = {name: array for name, array in arrays.items() if array is not None}
        nothing: dict[str, Any] = dict.fromkeys(there)
        return replace(self, **nothing), there

    def placed(self, xp: Any, first: int | Array, extents: tuple[int, int]) -> Attention:
        """Return the case with the first query at position ``first`` among the keys.

        If each sample has its own position, (N,), ``seen`` masks what the positions hide.
        """
        if isinstance(first, int):
            return replace(self, first=first)
        queries, keys = extents
        behind = xp.asarray(first)[:, None, None] + xp.arange(queries)[:, None] - xp.arange(keys)
        seen = behind >= 0 if self.window is None else (behind >= 0) & (behind < self.window)
        if self.seen is not None:
            seen = seen[:, None] & (self.seen != 0)
        else:
            seen = seen[:, None]
        return replace(self, causal=False, window=None, seen=seen)

    def visible(self, queries: slice, keys: int) -> tuple[int, int]:
        """Return the range of ``keys`` that positions allow any of these queries to see."""
        low, high = 0, keys
        if self.causal:
            high = min(keys, max(0, self.first + queries.stop))
        elif self.window is not None:
            high = min(keys, max(0, self.first + queries.stop - 1 + self.window))
        if self.window is not None:
            low = min(high, max(0, self.first + queries.start - self.window + 1))
        return low, high

    def shows_all(self, queries: slice, keys: slice) -> bool:
        """Whether positions hide none of these keys from these queries."""
        start, last = self.first + queries.start, self.first + queries.stop - 1
        if self.causal and keys.stop > start + 1:
            return False
        if self.window is None:
            return True
        return keys.start > last - self.window and (self.causal or keys.stop <= start + self.window)


class Attended(NamedTuple):
    """The arguments of attention, and the outputs and logarithms of sums from `Ops.attend`."""

    q: Array
    k: Array
    v: Array
    means: Array
    lse: Array


_ARRAYS = ("lengths", "seen", "added", "segments", "seeds")
