"""Layers that combine several inputs element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from singanet.layers.context import Context
from singanet.layers.layer import Layer, normal_shapes
from singanet.ops import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, Shape, Shapes, Traits


class Combine(Layer):
    """At least two inputs of one shape, or with extents of 1 that broadcast.

    For example, a gate of shape (C, 1, 1) multiplies every position of a (C, H, W) image.
    """

    traits = Traits(any_extent=True, masks="keeps")

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes of equal rank → the larger extent along each axis."""
        several = isinstance(in_shapes, list) and len(in_shapes) > 1
        if not several or len({len(shape) for shape in in_shapes}) > 1:
            raise self._unequal(in_shapes)
        extents = [set(axis) - {1} for axis in zip(*in_shapes, strict=True)]
        if any(len(sizes - {-1}) > 1 for sizes in extents):
            raise self._unequal(in_shapes)
        return tuple(max(sizes, default=1) for sizes in extents)

    def _unequal(self, in_shapes: Any, number: str = "at least two") -> Exception:
        return self.shape_error(
            f"{number} inputs whose sample shapes agree, or are 1 where they differ",
            str(in_shapes),
            "pass src=[layer, layer] whose output shapes agree; Reshape adds axes of extent 1",
        )

    def _combined(self, ctx: Context, mode: str, x: Sequence[Array], relu: bool = False) -> Array:
        """Return the inputs combined by ``mode``. Errors: extents that differ."""
        shape = x[0].shape
        if any(part.shape != shape for part in x):
            extents = [set(axis) - {1} for axis in zip(*(part.shape for part in x), strict=True)]
            if any(len(axis) > 1 for axis in extents):
                raise self._unequal([part.shape[1:] for part in x])
            shape = tuple(max(axis, default=1) for axis in extents)
        return ctx.ops.combine(mode, x, shape, relu)

    @staticmethod
    def _spread_back(ctx: Context, dy: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
        """Return the gradient of each input, summed over the broadcast axes."""
        return [ctx.ops.sum_to(part, shape) for part, shape in zip(dy, shapes, strict=True)]


class Add(Combine):
    """A layer that adds its inputs; `Merge` is the version of SINGA, for inputs of one shape.

    Args:
        name: Name of the layer, a string.
        input_shape: List of the inputs' sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Add()(a, b).shape
        (5,)
    """

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the sum; no array is saved."""
        ctx.save(shapes=[part.shape for part in x])
        return self._combined(ctx, "add", x)

    def forward_relu(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the relu of the sum of the inputs ``x``; ``ctx`` saves it."""
        y = self._combined(ctx, "add", x, relu=True)
        ctx.save(shapes=[part.shape for part in x], y=y)
        return y

    def backward_relu(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` for every input if the sum that ``ctx`` saved is positive, otherwise 0."""
        return self.backward(ctx, ctx.ops.activation_backward("relu", dy, ctx.saved["y"]))

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` for every input."""
        shapes = ctx.saved["shapes"]
        return self._spread_back(ctx, [dy] * len(shapes), shapes), {}


class Average(Combine):
    """A layer that divides the sum of k inputs by k.

    Args:
        name: Name of the layer, a string.
        input_shape: List of the inputs' sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Average()(a, b).shape
        (5,)
    """

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the mean; no array is saved."""
        ctx.save(shapes=[part.shape for part in x])
        return self._mean(ctx, x)

    @in_float32
    def _mean(self, ctx: Context, x: Sequence[Array]) -> Array:
        y = self._combined(ctx, "add", x)
        return ctx.ops.multiply(y, 1.0 / len(x), out=y)

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` / k for every input."""
        shapes = ctx.saved["shapes"]
        share = ctx.ops.multiply(dy, 1.0 / len(shapes))
        return self._spread_back(ctx, [share] * len(shapes), shapes), {}


class Maximum(Combine):
    """A layer that returns the largest input of each element, the first of equal ones.

    Args:
        name: Name of the layer, a string.
        input_shape: List of the inputs' sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Maximum()(a, b).shape
        (5,)
    """

    chosen: ClassVar[str] = "maximum"

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the extreme; its input is saved, one small integer an element."""
        y = self._combined(ctx, self.chosen, x)
        if ctx.keep:
            ctx.save(where=ctx.ops.first_equal(y, x), shapes=[part.shape for part in x])
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` for the input with the extreme, otherwise 0."""
        where, shapes = ctx.saved["where"], ctx.saved["shapes"]
        parts = [ctx.ops.select(dy, where, k) for k in range(len(shapes))]
        return self._spread_back(ctx, parts, shapes), {}


class Minimum(Maximum):
    """A layer that returns the smallest input of each element, the first of equal ones.

    Args:
        name: Name of the layer, a string.
        input_shape: List of the inputs' sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Minimum()(a, b).shape
        (5,)
    """

    chosen = "minimum"


class _OfTwo(Combine):
    """A `Combine` of exactly two inputs."""

    def setup(self, in_shapes: Any) -> Shapes:
        """Two sample shapes of equal rank → the larger extent along each axis."""
        if not isinstance(in_shapes, list) or len(in_shapes) != 2:
            raise self._unequal(in_shapes, "two")
        return super().setup(in_shapes)


class Subtract(_OfTwo):
    """A layer that computes y = a − b for two inputs.

    Args:
        name: Name of the layer, a string.
        input_shape: List of the two inputs' sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Subtract()(a, b).shape
        (5,)
    """

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the difference; no array is saved."""
        ctx.save(shapes=[part.shape for part in x])
        return self._combined(ctx, "subtract", x)

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` and its negative."""
        return self._spread_back(ctx, [dy, ctx.ops.negative(dy)], ctx.saved["shapes"]), {}


class Divide(_OfTwo):
    """A layer that computes y = a / b for two inputs.

    Args:
        name: Name of the layer, a string.
        input_shape: List of the two inputs' sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Divide()(a, b).shape
        (5,)
    """

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the quotient, which is saved with the inputs."""
        y = self._combined(ctx, "divide", x)
        ctx.save(x=list(x), y=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` / b, and −``dy`` y / b."""
        a, b = ctx.saved["x"]
        da = ctx.ops.divide(dy, b)
        db = ctx.ops.negative(ctx.ops.multiply(da, ctx.saved["y"]))
        return self._spread_back(ctx, [da, db], [a.shape, b.shape]), {}


class Dot(Layer):
    """A layer that computes y = Σ a b along the last axis of two inputs: (..., D) → (..., 1).

    After `L2Norm` it is the cosine. `MatMul` multiplies every vector with every other one.

    Args:
        name: Name of the layer, a string.
        input_shape: List of the two inputs' sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Dot()(a, b).shape
        (1,)
    """

    def setup(self, in_shapes: Any) -> Shapes:
        """Twice (..., D) → (..., 1)."""
        two = isinstance(in_shapes, list) and len(in_shapes) == 2
        if not two or in_shapes[0] != in_shapes[1] or not in_shapes[0]:
            raise self.shape_error(
                "two inputs of one sample shape of at least one axis",
                str(in_shapes),
                "use MatMul for vectors of unequal numbers",
            )
        return (*in_shapes[0][:-1], 1)

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the sums of the products; the inputs are saved."""
        a, b = x
        ctx.save(a=a, b=b)
        return _inner(ctx.ops, a, b)

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` b and ``dy`` a."""
        a, b = ctx.saved["a"], ctx.saved["b"]
        return [ctx.ops.multiply(dy, b), ctx.ops.multiply(dy, a)], {}


@in_float32
def _inner(ops: Ops, a: Array, b: Array) -> Array:
    return ops.sum(ops.multiply(a, b), axis=-1, keepdims=True)


class Multiply(Combine):
    """A layer that multiplies its inputs element by element.

    Args:
        name: Name of the layer, a string.
        input_shape: List of the inputs' sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Multiply()(a, b).shape
        (5,)
    """

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the product; the inputs are saved."""
        ctx.save(x=list(x))
        return self._combined(ctx, "multiply", x)

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` times the other inputs, without division, so that zeros are valid."""
        x = ctx.saved["x"]
        parts = [
            ctx.ops.combine("multiply", [dy, *x[:k], *x[k + 1 :]], dy.shape) for k in range(len(x))
        ]
        return self._spread_back(ctx, parts, [part.shape for part in x]), {}


class Merge(Layer):
    """A layer that adds at least two inputs of one shape.

    As an input layer of a net it accepts a list of arrays; ``input_shape`` is then a list, or one
    shape for any number of inputs.

    Args:
        name: Name of the layer, a string.
        input_shape: One sample shape, or a list of them, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (5,))
        >>> singanet.layers.Merge()(a, b).shape
        (5,)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def get_output_sample_shape(self) -> Shapes:
        """Return the output shape; before `build`, if ``input_shape`` is for all inputs."""
        each = self._of_each()
        return super().get_output_sample_shape() if each is None else each

    def _of_each(self) -> Shape | None:
        said = self.input_shape
        shapes = [] if said is None else normal_shapes(said)
        if isinstance(shapes, list):
            return shapes[0] if len(shapes) == 1 else None
        return shapes

    def setup(self, in_shapes: Any) -> Shapes:
        """k times s → s."""
        several = isinstance(in_shapes, list) and len(in_shapes) > 1
        each = self._of_each()
        if not several or any(shape != (each or in_shapes[0]) for shape in in_shapes):
            raise self.shape_error(
                "at least two inputs of one sample shape" + (f", {each}" if each else ""),
                str(in_shapes),
                "pass src=[layer, layer] whose output shapes agree",
            )
        return in_shapes[0]

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the sum; only the number of inputs is saved."""
        ctx.save(count=len(x))
        return ctx.ops.add_all(x)

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return ``dy`` for every input."""
        return [dy] * ctx.saved["count"], {}
