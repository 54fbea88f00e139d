"""Winograd's transforms on tiles of 4×4 outputs: a quarter of the multiplications for 3×3 windows.

Lavin and Gray, 2016. The points are 0, ±√½, ±√2 and infinity, which keep the error of float32 at a
quarter of what the usual 0, ±1, ±2 leave (Barabasz et al., 2020): about 3e-6 of the largest value.
For 5×5 windows, which take an eighth of the multiplications by themselves, they are 0, ±½, ±1, ±2
and infinity, with the same error. A transform is a matrix along either axis of a tile or, for 3×3,
a list of steps ``(ufunc, a, b, out)``, with the even and odd powers shared between a point and its
negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from singanet.types import Array

Step = tuple[Any, Any, Any, Array]

TILE, SPAN = 4, 6
"""Outputs along a side of a tile, and the inputs that they see through 3×3 windows."""

POINTS = {
    3: (0.0, 0.5**0.5, -(0.5**0.5), 2**0.5, -(2**0.5)),
    5: (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
}
"""The finite points for windows of so many taps along an axis."""

_A, _B = np.float32(0.5**0.5), np.float32(2**0.5)
_HALF, _TWO, _BOTH = np.float32(0.5), np.float32(2.0), np.float32(-2.5)

add, subtract, multiply = np.add, np.subtract, np.multiply


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


def of_inputs(d: Sequence[Array], v: Sequence[Array], t: Sequence[Array]) -> list[Step]:
    """Six inputs ``d`` to six values ``v``; two temporaries."""
    s, u = t[0], t[1]
    return [
        (multiply, d[2], _TWO, s), (subtract, d[4], s, s),
        (multiply, d[1], _TWO, u), (subtract, d[3], u, u), (multiply, u, _A, u),
        (add, s, u, v[1]), (subtract, s, u, v[2]),
        (multiply, d[2], _HALF, u), (add, d[0], s, v[0]), (subtract, v[0], u, v[0]),
        (subtract, d[4], u, s),
        (multiply, d[1], _HALF, u), (subtract, d[3], u, u), (multiply, u, _B, u),
        (add, s, u, v[3]), (subtract, s, u, v[4]),
        (multiply, d[3], _BOTH, v[5]), (add, v[5], d[1], v[5]), (add, v[5], d[5], v[5]),
    ]  # fmt: skip


def to_outputs(m: Sequence[Array], y: Sequence[Array], t: Sequence[Array]) -> list[Step]:
    """Six values ``m`` to four outputs ``y``; two temporaries."""
    s, u = t[0], t[1]
    return [
        (add, m[1], m[2], s), (add, m[3], m[4], u), (add, m[0], s, y[0]), (add, y[0], u, y[0]),
        (multiply, s, _HALF, s), (multiply, u, _TWO, u), (add, s, u, y[2]),
        (subtract, m[1], m[2], s), (multiply, s, _A, s),
        (subtract, m[3], m[4], u), (multiply, u, _B, u), (add, s, u, y[1]),
        (multiply, s, _HALF, s), (multiply, u, _TWO, u), (add, s, u, y[3]), (add, y[3], m[5], y[3]),
    ]  # fmt: skip


def of_slopes(g: Sequence[Array], z: Sequence[Array], t: Sequence[Array]) -> list[Step]:
    """Four gradients ``g`` of outputs to six values ``z``; two temporaries."""
    s, u = t[0], t[1]
    return [
        (multiply, g[0], np.float32(1.0), z[0]), (multiply, g[3], np.float32(1.0), z[5]),
        (multiply, g[2], _HALF, s), (add, s, g[0], s),
        (multiply, g[3], _HALF, u), (add, u, g[1], u), (multiply, u, _A, u),
        (add, s, u, z[1]), (subtract, s, u, z[2]),
        (multiply, g[2], _TWO, s), (add, s, g[0], s),
        (multiply, g[3], _TWO, u), (add, u, g[1], u), (multiply, u, _B, u),
        (add, s, u, z[3]), (subtract, s, u, z[4]),
    ]  # fmt: skip
