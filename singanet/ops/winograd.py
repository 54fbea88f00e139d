"""Winograd's transforms for 3×3 windows on tiles of 4×4 outputs: a quarter of the multiplications.

Lavin and Gray, 2016. The points are 0, ±√½, ±√2 and infinity, which keep the error of float32 at a
quarter of what the usual 0, ±1, ±2 leave (Barabasz et al., 2020): about 3e-6 of the largest value.
A transform is a list of steps ``(ufunc, a, b, out)`` along an axis of tiles, with the even and odd
powers shared between a point and its negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from singanet.types import Array

Step = tuple[Any, Any, Any, Array]

TILE, SPAN = 4, 6
"""Outputs along a side of a tile, and the inputs that they see."""

_A, _B = np.float32(0.5**0.5), np.float32(2**0.5)
_HALF, _TWO, _BOTH = np.float32(0.5), np.float32(2.0), np.float32(-2.5)
_POINTS = (0.0, 0.5**0.5, -(0.5**0.5), 2**0.5, -(2**0.5))

add, subtract, multiply = np.add, np.subtract, np.multiply


def _powers(count: int) -> Array:
    """Each point's powers, and for infinity the highest: (6, count)."""
    rows = [[point**k for k in range(count)] for point in _POINTS]
    return np.array([*rows, [0.0] * (count - 1) + [1.0]])


def _weights() -> Array:
    """1 / Π (p - other points), and 1 for infinity: (6, 1)."""
    apart = [np.prod([p - q for q in _POINTS if q != p]) for p in _POINTS]
    return 1.0 / np.array([[value] for value in [*apart, 1.0]])


def of_kernels(turned: bool, kind: Any = np.float32) -> Array:
    """(36, 9): what makes the 36 values of a 3×3 kernel, or of the kernel ``turned`` around."""
    line = _weights() * _powers(3)
    line = line[:, ::-1] if turned else line
    return np.ascontiguousarray(np.kron(line, line), kind)


def to_kernels(kind: Any = np.float32) -> Array:
    """(36, 9): what makes the gradient of a 3×3 kernel of its 36 values."""
    line = _weights() * _powers(3)
    return np.ascontiguousarray(np.kron(line, line), kind)


@lru_cache(maxsize=8)
def of_inputs_at_once(kind: Any) -> Array:
    """(36, 36): what makes the 36 values of a tile of 6×6 inputs."""
    # For each point the polynomial that is 0 at the other ones, for infinity at all.
    rows = [np.poly([q for q in _POINTS if q != p])[::-1] for p in _POINTS]
    line = np.array([*(np.append(row, 0.0) for row in rows), np.poly(_POINTS)[::-1]])
    return np.kron(line, line).astype(kind)


@lru_cache(maxsize=8)
def to_outputs_at_once(kind: Any) -> Array:
    """(16, 36): what makes a tile of 4×4 outputs of 36 values."""
    line = _powers(TILE).T
    return np.ascontiguousarray(np.kron(line, line), kind)


@lru_cache(maxsize=8)
def of_slopes_at_once(kind: Any) -> Array:
    """(36, 16): what makes 36 values of the gradients of a tile of 4×4 outputs."""
    line = _powers(TILE)
    return np.ascontiguousarray(np.kron(line, line), kind)


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
