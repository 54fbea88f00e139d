"""Cases of kernels: windows, Winograd tiles, directions and attention.

Lavin and Gray, 2016. The points are 0, ±√½, ±√2 and infinity, which keep the error of float32 at a
quarter of what the usual 0, ±1, ±2 leave (Barabasz et al., 2020): about 3e-6 of the largest value.
For 5×5 windows, which take an eighth of the multiplications by themselves, they are 0, ±½, ±1, ±2
and infinity, with the same error. A transform is a matrix along either axis of a tile.
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
"""A value along the height and one along the width."""

Sizes = tuple[int, ...]
"""A value along each axis: (height, width), or (depth, height, width)."""


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a sliding window, axis by axis.

    With ``ceil`` sizes are rounded up: a last window may reach beyond the padding behind, if it
    begins on the image or on the padding before it. A convolution's channels and kernels form so
    many ``groups``, and each kernel meets the channels of its own.
    """

    kernel: Sizes
    stride: Sizes
    pads: Pads
    dilation: Sizes = (1, 1)
    ceil: bool = False
    groups: int = 1

    @property
    def extent(self) -> Sizes:
        """How many positions the window spans along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def _out_size(self, *sizes: int) -> Sizes:
        """floor((in + pads - extent) / stride) + 1 for each axis."""
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
        """The pads, those behind at least as many as the last windows need."""
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
"""The finite points for windows of so many taps along an axis."""


def span(taps: int) -> int:
    """Inputs along a side that a tile sees through windows of so many taps; also its values."""
    return TILE + taps - 1


def _powers(taps: int, count: int) -> Array:
    """Each point's powers, and for infinity the highest: (span, count)."""
    rows = [[point**k for k in range(count)] for point in POINTS[taps]]
    return np.array([*rows, [0.0] * (count - 1) + [1.0]])


def kernels_line(taps: int, kind: Any = np.float64) -> Array:
    """(span, taps): each power by Π (p - other points), and as it is for infinity."""
    points = POINTS[taps]
    apart = [np.prod([p - q for q in points if q != p]) for p in points]
    line = _powers(taps, taps) / np.array([*apart, 1.0])[:, None]
    return np.ascontiguousarray(line, kind)


def of_kernels(turned: bool, kind: Any = np.float32, taps: int = 3) -> Array:
    """(span², taps²): the values of a kernel, or of the kernel ``turned`` around."""
    line = kernels_line(taps)
    line = line[:, ::-1] if turned else line
    return np.ascontiguousarray(np.kron(line, line), kind)


def to_kernels(kind: Any = np.float32, taps: int = 3) -> Array:
    """(span², taps²): what makes the gradient of a kernel of its values."""
    return of_kernels(False, kind, taps)


@lru_cache(maxsize=16)
def inputs_line(taps: int, kind: Any) -> Array:
    """(span, span): the values of a line of inputs."""
    points = POINTS[taps]
    # For each point the polynomial that is 0 at the other ones, for infinity at all.
    rows = [np.poly([q for q in points if q != p])[::-1] for p in points]
    line = np.array([*(np.append(row, 0.0) for row in rows), np.poly(points)[::-1]])
    return np.ascontiguousarray(line, kind)


@lru_cache(maxsize=16)
def outputs_line(taps: int, kind: Any) -> Array:
    """(4, span): a line of outputs of its values."""
    return np.ascontiguousarray(_powers(taps, TILE).T, kind)


@lru_cache(maxsize=16)
def slopes_line(taps: int, kind: Any) -> Array:
    """(span, 4): the values of a line of the gradients of outputs."""
    return np.ascontiguousarray(_powers(taps, TILE), kind)


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


class RecurrentSlopes(NamedTuple):
    """What a backward kernel goes by.

    ``dy`` (T, N, H) are the gradients of each h, or None, ``ends`` those of the last states, arrays
    (N, H). ``needs_dx`` says that somebody wants the gradient of x.
    """

    dy: Array | None
    ends: Sequence[Array]
    needs_dx: bool = True


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


@dataclass(frozen=True)
class Attention:
    """How the scores of queries (N, h, Tq, d) and keys (N, h', Tk, d) become weights.

    The scores are ``scale`` q kᵀ, with ``softcap`` cap·tanh(scores / cap), plus ``added``. The
    weights are their softmax over the keys that the query sees, each dropped with probability
    ``dropout``. Query i stands at the position ``first`` + i among the keys.

    What a query sees: with ``causal`` the keys up to its own position, with ``window`` those that
    are less than so many positions before it; the first ``lengths`` (N,) keys of each sample; where
    ``seen`` is not 0; keys of its own segment, by ``segments``, two arrays of ids (N, Tq) and
    (N, Tk). ``seen`` and ``added`` have the axes of the scores (N, h, Tq, Tk), any of extent 1.
    ``seeds`` are four float32 numbers from 0 to below 1: equal ones drop the same weights.
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
        """The same without its arrays, and the arrays that it has, by name."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        there = {name: array for name, array in arrays.items() if array is not None}
        nothing: dict[str, Any] = dict.fromkeys(there)
        return replace(self, **nothing), there

    def placed(self, xp: Any, first: int | Array, extents: tuple[int, int]) -> Attention:
        """The same, where the first of the queries stands ``first`` among the keys.

        Samples that have a place each, (N,), are shown by ``seen`` what positions hide.
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
        """The range of the ``keys`` outside of which positions hide all from these queries."""
        low, high = 0, keys
        if self.causal:
            high = min(keys, max(0, self.first + queries.stop))
        if self.window is not None:
            low = min(high, max(0, self.first + queries.start - self.window + 1))
        return low, high

    def shows_all(self, queries: slice, keys: slice) -> bool:
        """Whether positions hide none of these keys from these queries."""
        before = not self.causal or keys.stop <= self.first + queries.start + 1
        last = self.first + queries.stop - 1
        return before and (self.window is None or keys.start > last - self.window)


class Attended(NamedTuple):
    """What attention was taken of, and the means and logarithms of sums that `Ops.attend` made."""

    q: Array
    k: Array
    v: Array
    means: Array
    lse: Array


_ARRAYS = ("lengths", "seen", "added", "segments", "seeds")
