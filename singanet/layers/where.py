"""Comparisons, and the choice between two inputs that they make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError, DataError
from singanet.layers.arguments import expect_one_of
from singanet.layers.context import Context
from singanet.layers.joins import Combine
from singanet.types import Array, Shapes

_COMPARISONS = {
    "==": "equal",
    "!=": "not_equal",
    ">": "greater",
    ">=": "greater_equal",
    "<": "less",
    "<=": "less_equal",
}


class Compare(Combine):
    """Whether a ``how`` b, as booleans, for two inputs, or one and the number ``value``.

    ``how`` is "==", "!=", ">", ">=", "<" or "<="; of symbols ``a > b`` and ``a <= 0.5`` draw it.
    """

    traits = replace(Combine.traits, gives_integers=True, stops_gradient=True)

    def __init__(self, name: str, how: str, value: float | None = None) -> None:
        super().__init__(name)
        self.how = expect_one_of(name, "how", how, _COMPARISONS)
        self.value = _number_or_none(name, "value", value)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes of equal rank → the larger extent along each axis."""
        return _of_inputs(self, in_shapes, 1 + (self.value is None))

    def forward(self, ctx: Context, x: Any) -> Array:
        """Booleans; nothing is kept."""
        a, b = x if isinstance(x, list) else (x, self.value)
        y: Array = getattr(ctx.ops.xp, _COMPARISONS[self.how])(a, b)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """None."""
        return None if self.value is not None else [None, None], {}


class Where(Combine):
    """y = a where the first input, booleans or whole numbers, is not 0, else b: the other two.

    A number ``a`` or ``b`` stands for that input: ``Where("masked", b=-1e9)(seen, scores)``.
    """

    traits = replace(Combine.traits, input_kinds=("integers",))

    def __init__(self, name: str, a: float | None = None, b: float | None = None) -> None:
        super().__init__(name)
        self.a, self.b = _number_or_none(name, "a", a), _number_or_none(name, "b", b)
        if None not in (self.a, self.b):
            raise ArgumentError(
                f"layer {name!r}",
                expected="a number in the place of a or of b, or of none",
                received=f"a={a!r}, b={b!r}",
                advice="make numbers of the condition by Cast",
            )

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes of equal rank → the larger extent along each axis."""
        return _of_inputs(self, in_shapes, 3 - (self.a is not None) - (self.b is not None))

    def forward(self, ctx: Context, x: Any) -> Array:
        """The chosen elements; the condition is kept. Errors: it is of floats."""
        where, *rest = x
        if where.dtype.kind not in "biu":
            raise DataError(
                f"layer {self.name!r}, input 0",
                expected="a condition: booleans or whole numbers",
                received=f"an array of type {where.dtype}",
                advice="draw it by a comparison, such as x > 0, or feed booleans",
            )
        if where.dtype.kind != "b":
            where = where != 0
        ctx.save(where=where, shapes=[part.shape for part in rest])
        a = rest[0] if self.a is None else self.a
        b = rest[-1] if self.b is None else self.b
        return ctx.ops.where(where, a, b)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """``dy`` for the input that each element came from."""
        where = ctx.saved["where"]
        sides = [ctx.ops.where(where, dy, 0.0)] * (self.a is None)
        sides += [ctx.ops.where(where, 0.0, dy)] * (self.b is None)
        return [None, *self.spread_back(ctx, sides, ctx.saved["shapes"])], {}


def _of_inputs(layer: Combine, in_shapes: Any, count: int) -> Shapes:
    """The shapes by `Combine.setup` of ``count`` inputs. Errors: another number of inputs."""
    shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
    if len(shapes) != count:
        raise layer.shape_error(
            f"{count} inputs", f"sample shapes {shapes}", "a number takes the place of one"
        )
    return shapes[0] if count == 1 else Combine.setup(layer, shapes)


def _number_or_none(name: str, what: str, value: Any) -> float | None:
    if value is not None and not is_number(value):
        raise ArgumentError(
            f"layer {name!r}, argument {what}",
            expected="a number, or None for an input",
            received=repr(value),
            advice=f"draw the layer with a symbol in the place of {what}",
        )
    return value
