"""Random draws, and looks at values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.ops import device_draws, draws
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array, Shape


@kernel(half="native")
def uniform(ops: Ops, rng: np.random.Generator, shape: Shape) -> Array:
    # A seed gives the same numbers on every device.
    drawn: Array = ops.xp.empty(shape, np.float32)
    if ops.on_host:
        draws.fill(rng, drawn, *ops.team())
    else:
        device_draws.fill(rng, ops.xp, drawn)
    return drawn


@kernel(half="native")
def normal(ops: Ops, rng: np.random.Generator, shape: Shape) -> Array:
    # By Box and Muller, 1958, from the one kind of draw that programs know.
    xp = ops.xp
    radius, angle = ops.uniform(rng, (2, *shape))
    drawn: Array = xp.cos(xp.multiply(angle, 2.0 * math.pi))
    drawn *= xp.sqrt(xp.multiply(xp.log1p(xp.negative(radius)), -2.0))
    return drawn


@kernel(half="native")
def keep_mask(ops: Ops, rng: np.random.Generator, shape: Shape, keep: float) -> Array:
    mask: Array = ops.uniform(rng, shape) < keep
    return mask


@kernel(half="native")
def bernoulli(ops: Ops, rng: np.random.Generator, p: Array) -> Array:
    mask: Array = ops.uniform(rng, p.shape) < p
    return mask


@kernel(half="native")
def check(ops: Ops, function: Callable[[Array], None], array: Array) -> None:
    function(array)


@kernel(half="native")
def look_up(
    ops: Ops, function: Callable[[Array, Array], None], indices: Array, shape: Shape, dtype: Any
) -> Array:
    rows: Array = np.empty(shape, dtype)
    function(ops.host(indices), rows)
    found: Array = ops.xp.asarray(rows)
    return found
