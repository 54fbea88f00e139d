"""Functions of whole arrays that have no layer of their own, one a row of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import pi, sqrt
from typing import Any, NamedTuple

from singanet.errors import UnknownNameError, did_you_mean, one_of
from singanet.layers.context import Context
from singanet.layers.joins import Combine
from singanet.ops.numpy.erf import normal_tail
from singanet.types import Array, GivenShapes, Shapes

Function = Callable[..., Array]


class Formula(NamedTuple):
    """``forward(xp, *x)``, and ``gradients[k](xp, *x, y)``, what ``dy`` is multiplied with.

    Without gradients it is a step function, whose gradient is zero wherever there is one.
    """

    forward: Function
    gradients: tuple[Function, ...] = ()
    inputs: int = 1


def _erf(xp: Any, x: Array) -> Array:
    return xp.sign(x) * (1.0 - 2.0 * normal_tail(xp, x * sqrt(2.0)))


def _plain(name: str) -> Function:
    return lambda xp, *x: getattr(xp, name)(*x)


OPERATIONS: Mapping[str, Formula] = {
    "abs": Formula(_plain("absolute"), (lambda xp, x, y: xp.sign(x),)),
    "ceil": Formula(_plain("ceil")),
    "exp": Formula(_plain("exp"), (lambda xp, x, y: y,)),
    "floor": Formula(_plain("floor")),
    "log": Formula(_plain("log"), (lambda xp, x, y: 1.0 / x,)),
    "reciprocal": Formula(lambda xp, x: 1.0 / x, (lambda xp, x, y: -y * y,)),
    "round": Formula(_plain("rint")),
    "sign": Formula(_plain("sign")),
    "sqrt": Formula(_plain("sqrt"), (lambda xp, x, y: 0.5 / y,)),
    "truncate": Formula(_plain("trunc")),
    "erf": Formula(_erf, (lambda xp, x, y: xp.exp(-x * x) * (2.0 / sqrt(pi)),)),
    "sin": Formula(_plain("sin"), (lambda xp, x, y: xp.cos(x),)),
    "cos": Formula(_plain("cos"), (lambda xp, x, y: -xp.sin(x),)),
    "tan": Formula(_plain("tan"), (lambda xp, x, y: 1.0 + y * y,)),
    "asin": Formula(_plain("arcsin"), (lambda xp, x, y: 1.0 / xp.sqrt(1.0 - x * x),)),
    "acos": Formula(_plain("arccos"), (lambda xp, x, y: -1.0 / xp.sqrt(1.0 - x * x),)),
    "atan": Formula(_plain("arctan"), (lambda xp, x, y: 1.0 / (1.0 + x * x),)),
    "sinh": Formula(_plain("sinh"), (lambda xp, x, y: xp.cosh(x),)),
    "cosh": Formula(_plain("cosh"), (lambda xp, x, y: xp.sinh(x),)),
    "asinh": Formula(_plain("arcsinh"), (lambda xp, x, y: 1.0 / xp.sqrt(x * x + 1.0),)),
    "acosh": Formula(_plain("arccosh"), (lambda xp, x, y: 1.0 / xp.sqrt(x * x - 1.0),)),
    "atanh": Formula(_plain("arctanh"), (lambda xp, x, y: 1.0 / (1.0 - x * x),)),
    # The remainder with the sign of b, and of a.
    "modulo": Formula(
        _plain("mod"),
        (lambda xp, a, b, y: xp.ones_like(y), lambda xp, a, b, y: -xp.floor(a / b)),
        2,
    ),
    "remainder": Formula(
        _plain("fmod"),
        (lambda xp, a, b, y: xp.ones_like(y), lambda xp, a, b, y: -xp.trunc(a / b)),
        2,
    ),
    "power": Formula(
        _plain("power"),
        (
            lambda xp, a, b, y: b * xp.power(a, b - 1.0),
            lambda xp, a, b, y: y * xp.log(xp.where(a > 0, a, 1.0).astype(y.dtype)),
        ),
        2,
    ),
}
"""By name; of two inputs one may spread over the other, as for `Add`."""


class Operation(Combine):
    """y = the function ``mode`` of each element of one input, or of two that agree in shape.

    Of one: abs, ceil, exp, floor, log, reciprocal, round (halves to even), sign, sqrt, truncate,
    erf, the trigonometric and hyperbolic functions and their inverses (sin, asin, sinh, ...).
    Of two: modulo (with the sign of the second), remainder (of the first), power. What jumps, such
    as floor, passes no gradient on.
    """

    def __init__(self, name: str, mode: str, input_sample_shape: GivenShapes | None = None) -> None:
        super().__init__(name, input_sample_shape)
        if not isinstance(mode, str) or mode not in OPERATIONS:
            raise UnknownNameError(
                f"layer {name!r}, argument mode",
                expected=f"one of {one_of(OPERATIONS)}",
                received=repr(mode),
                advice=did_you_mean(str(mode), OPERATIONS, "choose one of these"),
            )
        self.mode = mode
        self.traits = replace(self.traits, stops_gradient=not OPERATIONS[mode].gradients)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged; two of equal rank → the larger extent along each axis."""
        number = len(in_shapes) if isinstance(in_shapes, list) else 1
        if number != OPERATIONS[self.mode].inputs:
            raise self.shape_error(
                f"{OPERATIONS[self.mode].inputs} input(s) for mode={self.mode!r}",
                f"{number}",
                "choose a mode for as many",
            )
        return in_shapes if number == 1 else super().setup(in_shapes)

    def forward(self, ctx: Context, x: Any) -> Array:
        """The function's values; what the gradient is made of is kept."""
        parts = x if isinstance(x, (list, tuple)) else [x]
        y = OPERATIONS[self.mode].forward(ctx.ops.xp, *parts)
        ctx.save(
            x=None if self.traits.stops_gradient else parts, y=y, shapes=[p.shape for p in parts]
        )
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """``dy`` times the derivative by each input."""
        row, shapes = OPERATIONS[self.mode], ctx.saved["shapes"]
        if self.traits.stops_gradient:
            return ([None] * row.inputs if row.inputs > 1 else None), {}
        x, y = ctx.saved["x"], ctx.saved["y"]
        parts = [ctx.ops.multiply(dy, slope(ctx.ops.xp, *x, y)) for slope in row.gradients]
        found = self.spread_back(ctx, parts, shapes)
        return (found if row.inputs > 1 else found[0]), {}
