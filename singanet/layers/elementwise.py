"""Arithmetic between inputs, and of one with a parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import pi, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from singanet.base.arguments import is_number
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, DataError, UnknownNameError, brief, did_you_mean, one_of
from singanet.initializer import Constant
from singanet.layers.context import Context
from singanet.layers.joins import Combine
from singanet.layers.layer import Layer, Name, ParamSpecs, expect_one_input, expect_one_of
from singanet.layers.words import GammaAndBeta
from singanet.ops import Ops
from singanet.ops.kernel import in_float32
from singanet.ops.numpy.pointwise import normal_tail
from singanet.types import Array, GivenShape, GivenShapes, Shape, Shapes, Traits

if TYPE_CHECKING:
    from typing_extensions import Unpack

Range: TypeAlias = tuple[int | None, int | None, int | None]


class Power(Layer):
    """A layer that computes y = x^``exponent``.

    If the exponent is not an integer, x must not be negative.

    Args:
        name: Name of the layer, a string.
        exponent: Number.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Power(exponent=2, input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[3.0, 4.0]]))
        array([[ 9., 16.]], dtype=float32)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: Name = None,
        exponent: float = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        if not is_number(exponent):
            raise ArgumentError(
                f"layer {name!r}, argument exponent",
                expected="a finite number",
                received=brief(exponent),
                advice="use 2 for squares, 0.5 for roots",
            )
        self.exponent = float(exponent)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the power of ``x``, which is saved."""
        ctx.save(x=x)
        return ctx.ops.power(x, self.exponent)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` p x^(p − 1)."""
        if self.exponent == 0.0:
            return ctx.ops.multiply(dy, 0.0), {}
        return _power_back(ctx.ops, dy, ctx.saved["x"], self.exponent), {}


@in_float32
def _power_back(ops: Ops, dy: Array, x: Array, exponent: float) -> Array:
    dx = ops.power(x, exponent - 1.0)
    ops.multiply(dx, exponent, out=dx)
    return ops.multiply(dx, dy, out=dx)


class Clip(Layer):
    """A layer that limits x to [``low``, ``high``]; None for no limit.

    The gradient passes if x is within the limits, ends included.

    Args:
        name: Name of the layer, a string.
        low: Number, the lower limit, or None.
        high: Number, the upper limit, or None.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Clip(low=0.0, high=1.0, input_shape=(3,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[-1.0, 0.5, 2.0]]))
        array([[0. , 0.5, 1. ]], dtype=float32)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: Name = None,
        low: float | None = None,
        high: float | None = None,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        ends = [end for end in (low, high) if end is not None]
        if not ends or not all(map(is_number, ends)) or ends != sorted(ends):
            raise ArgumentError(
                f"layer {name!r}",
                expected="low, high or both, low no larger than high",
                received=f"low={low!r}, high={high!r}",
                advice="write Clip('bounded', 0.0, 1.0)",
            )
        self.low, self.high = low, high

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the clipped ``x``; x is saved."""
        ctx.save(x=x)
        y = x if self.low is None else ctx.ops.maximum(x, self.low)
        return y if self.high is None else ctx.ops.minimum(y, self.high)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` if x was within the limits, otherwise 0."""
        x, dx = ctx.saved["x"], dy
        if self.low is not None:
            dx = ctx.ops.multiply(dx, x >= self.low)
        return (dx if self.high is None else ctx.ops.multiply(dx, x <= self.high)), {}


_OF_ANY = (0, -1, (None, None, None), (None, None, 1), (None, None, -1))
"""The parts that exist for any number of elements above 0."""


class Index(Layer):
    """A layer that returns a part of each sample: an element or a range of each of its first axes.

    An int selects an element and removes the axis; a range is (start, stop, step). ``a[:, 0, 1:]``
    of a symbol, whose first colon is the batch, creates Index("part", [0, (1, None, None)]). An
    axis of any extent allows the first element, the last, or all, in either direction.

    Args:
        name: Name of the layer, a string.
        index: Sequence of ints and (start, stop, step), one for each of the first axes of a sample.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Index(index=[1], input_shape=(3,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[5.0, 6.0, 7.0]]))
        array([6.], dtype=float32)
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self,
        name: Name = None,
        index: Sequence[int | Range] = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        several = isinstance(index, (tuple, list))
        if not several or not all(map(_is_place, index)) or not index:
            raise ArgumentError(
                f"layer {name!r}, argument index",
                expected="ints, or (start, stop, step) of ints and Nones, for the sample's axes",
                received=brief(index)[:80],
                advice="omit the batch axis; on symbols write a[:, 0]",
            )
        self.index = [tuple(k) if isinstance(k, (tuple, list)) else int(k) for k in index]

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape → the shape of the part."""
        shape = expect_one_input(self, in_shapes)
        outside = any(
            k not in _OF_ANY if size == -1 else isinstance(k, int) and not -size <= k < size
            for k, size in zip(self.index, shape, strict=False)
        )
        out: list[int] = []
        for k, size in enumerate(shape):
            place = self.index[k] if k < len(self.index) else (None, None, None)
            if size == -1 and isinstance(place, tuple):
                out.append(-1)
            elif isinstance(place, tuple):
                out.append(len(range(*slice(*place).indices(size))))
        if len(self.index) > len(shape) or outside or 0 in out:
            raise self.shape_error(
                f"samples that have the part {self.index}",
                f"sample shape {shape}",
                "count from 0 along each axis, without the batch",
            )
        return tuple(out)

    def _places(self) -> tuple[Any, ...]:
        parts = (slice(*k) if isinstance(k, tuple) else k for k in self.index)
        return (slice(None), *parts)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return a view."""
        ctx.save(shape=x.shape)
        return x[self._places()]

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` in its place, zero elsewhere."""
        dx = ctx.ops.zeros(ctx.saved["shape"], dy)
        ctx.ops.copyto(dx[self._places()], dy)
        return dx, {}


def _is_place(place: Any) -> bool:
    if isinstance(place, (tuple, list)):
        whole = all(k is None or (isinstance(k, int) and not isinstance(k, bool)) for k in place)
        return len(place) == 3 and whole and place[2] != 0
    return isinstance(place, int) and not isinstance(place, bool)


class Scale(Layer):
    """A layer that computes y = gamma x + beta for each channel of (C, ...), or factor x + offset.

    ``gamma`` starts at 1; ``use_bias=False`` disables ``beta``. With ``factor`` the layer has no
    parameters.

    Args:
        name: Name of the layer, a string.
        factor: Number, a fixed factor; None for the parameter gamma.
        offset: Number that is added with a fixed factor.
        use_bias: Whether to add the parameter beta.
        gamma_specs: Dict with the settings of gamma, or a `Param` of another layer to share.
        beta_specs: The same for beta.
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``gamma_initializer``, ``beta_regularizer`` and similar arguments.

    Examples:
        >>> layer = singanet.layers.Scale(factor=2.0, offset=1.0, input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[1.0, 2.0]]))
        array([[3., 5.]], dtype=float32)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: Name = None,
        factor: float | None = None,
        offset: float = 0.0,
        *,
        use_bias: bool = True,
        gamma_specs: ParamSpecs = None,
        beta_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[GammaAndBeta],
    ) -> None:
        super().__init__(name, input_shape, **words)
        if not is_number(offset) or (offset and factor is None):
            raise ArgumentError(
                f"layer {name!r}, argument offset",
                expected="a number, with a factor",
                received=f"offset={offset!r}, factor={factor!r}",
                advice="pass factor=1.0 to add a number alone",
            )
        if factor is not None and not is_number(factor):
            raise ArgumentError(
                f"layer {name!r}, argument factor",
                expected="a number, or None for a learned factor per channel",
                received=brief(factor),
                advice="use Multiply for the product of two inputs",
            )
        self.factor = None if factor is None else float(factor)
        self.offset = float(offset)
        self.use_bias = use_bias
        self.gamma_specs = gamma_specs
        self.beta_specs = beta_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...), unchanged; with ``factor`` any."""
        shape = expect_one_input(self, in_shapes)
        if self.factor is not None:
            return shape
        if not shape or shape[0] < 1:
            raise self.shape_error(
                "samples of shape (channels, ...), of a known number",
                f"sample shape {shape}",
                "pass factor=...",
            )
        self.add_param("gamma", shape[:1], self.gamma_specs, default=Constant(1.0))
        if self.use_bias:
            self.add_param("beta", shape[:1], self.beta_specs)
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the scaled ``x``; x is saved unless the factor is fixed."""
        if self.factor is not None:
            y: Array = ctx.ops.multiply(x, self.factor)
            return ctx.ops.add(y, self.offset, out=y) if self.offset else y
        ctx.save(x=x)
        return ctx.ops.scale(x, ctx.params["gamma"], ctx.params.get("beta"))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradients of x, gamma and beta."""
        ops = ctx.ops
        if self.factor is not None:
            return ops.multiply(dy, self.factor), {}
        grads = {}
        if ctx._needs_param_grads:
            grads["gamma"] = _total_of_products(ops, dy, ctx.saved["x"])
            if self.use_bias:
                grads["beta"] = ops.channel_total(dy)
        return ops.scale(dy, ctx.params["gamma"], None), grads


@in_float32
def _total_of_products(ops: Ops, dy: Array, x: Array) -> Array:
    return ops.channel_total(ops.multiply(dy, x))


class MatMul(Layer):
    """A layer that computes y = a b for samples (..., M, K) and (..., K, P) with equal other axes.

    ``transpose_a`` and ``transpose_b`` transpose the last two axes of that input.

    Args:
        name: Name of the layer, a string.
        transpose_a: Whether to transpose the first input.
        transpose_b: Whether to transpose the second input.
        input_shape: The two sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (4, 3)), singanet.Input("b", (2, 3))
        >>> singanet.layers.MatMul(transpose_b=True)(a, b).shape
        (4, 2)
    """

    traits = Traits(any_extent=True)

    def __init__(
        self,
        name: Name = None,
        transpose_a: bool = False,
        transpose_b: bool = False,
        *,
        input_shape: Sequence[GivenShape] | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.transpose_a = transpose_a
        self.transpose_b = transpose_b

    def setup(self, in_shapes: Any) -> Shapes:
        """Two sample shapes → (..., M, P)."""
        if isinstance(in_shapes, list) and len(in_shapes) == 2:
            made = self._shape(*in_shapes)
            if made is not None:
                return made
        raise self._unfit(in_shapes)

    def _shape(self, a: Shape, b: Shape) -> Shape | None:
        """Return the shape of the product of arrays or samples; None if they do not fit."""
        if min(len(a), len(b)) < 2 or a[:-2] != b[:-2]:
            return None
        rows, inner = a[-2:][::-1] if self.transpose_a else a[-2:]
        inner_b, columns = b[-2:][::-1] if self.transpose_b else b[-2:]
        return (*a[:-2], rows, columns) if inner == inner_b else None

    def _unfit(self, shapes: Any) -> Exception:
        swapped = f"transpose_a={self.transpose_a}, transpose_b={self.transpose_b}"
        return self.shape_error(
            "two inputs of sample shapes (..., M, K) and (..., K, P)",
            f"{shapes} with {swapped}",
            "set transpose_a or transpose_b, or put Reshape or Permute before it",
        )

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """Return the product; both inputs are saved."""
        a, b = x
        if self._shape(a.shape, b.shape) is None:
            raise self._unfit([a.shape[1:], b.shape[1:]])
        ctx.save(a=a, b=b)
        return ctx.ops.matmul(_transposed(a, self.transpose_a), _transposed(b, self.transpose_b))

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """Return da = dy bᵀ and db = aᵀ dy, transposed if the input was."""
        a = _transposed(ctx.saved["a"], not self.transpose_a)
        b = _transposed(ctx.saved["b"], not self.transpose_b)
        da = _transposed(ctx.ops.matmul(dy, b), self.transpose_a)
        return [da, _transposed(ctx.ops.matmul(a, dy), self.transpose_b)], {}


def _transposed(matrix: Array, turn: bool) -> Array:
    """Return a view with the last two axes transposed."""
    return matrix.swapaxes(-1, -2) if turn else matrix


_COMPARISONS = {
    "==": "equal",
    "!=": "not_equal",
    ">": "greater",
    ">=": "greater_equal",
    "<": "less",
    "<=": "less_equal",
}


class Compare(Combine):
    """A layer that returns a ``how`` b as booleans, for two inputs or one and a ``value``.

    ``how`` is "==", "!=", ">", ">=", "<" or "<="; ``a > b`` and ``a <= 0.5`` of symbols create it.

    Args:
        name: Name of the layer, a string.
        how: The comparison, a string.
        value: Number to compare one input with; None for two inputs.

    Examples:
        >>> x = singanet.Input("x", (3,))
        >>> y = singanet.layers.Compare(how=">", value=0)(x)
        >>> singanet.FeedForwardNet(inputs=[x], outputs=[y]).predict(np.array([[-1.0, 0.0, 2.0]]))
        array([[False, False,  True]])
    """

    traits = replace(Combine.traits, gives_integers=True, stops_gradient=True)

    def __init__(self, name: Name = None, how: str = REQUIRED, value: float | None = None) -> None:
        super().__init__(name)
        self.how = expect_one_of(name, "how", how, _COMPARISONS)
        self.value = _number_or_none(name, "value", value)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes of equal rank → the larger extent along each axis."""
        return _of_inputs(self, in_shapes, 1 + (self.value is None))

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return booleans; no array is saved."""
        a, b = x if isinstance(x, list) else (x, self.value)
        y: Array = getattr(ctx.ops.xp, _COMPARISONS[self.how])(a, b)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Return None: there is no gradient."""
        return None if self.value is not None else [None, None], {}


class Where(Combine):
    """A layer that returns a if the condition is not 0, otherwise b, for each element.

    The first input is the condition, booleans or integers, the others are a and b. A number ``a``
    or ``b`` replaces that input: ``Where("masked", b=-1e9)(seen, scores)``.

    Args:
        name: Name of the layer, a string.
        a: Number in place of the second input, or None.
        b: Number in place of the third input, or None.

    Examples:
        >>> seen, x = singanet.Input("seen", (5,), dtype="bool"), singanet.Input("x", (5,))
        >>> singanet.layers.Where(b=-1e9)(seen, x).shape
        (5,)
    """

    traits = replace(Combine.traits, input_kinds=("integers",))

    def __init__(self, name: Name = None, a: float | None = None, b: float | None = None) -> None:
        super().__init__(name)
        self.a, self.b = _number_or_none(name, "a", a), _number_or_none(name, "b", b)
        if None not in (self.a, self.b):
            raise ArgumentError(
                f"layer {name!r}",
                expected="a number for a or for b, not for both",
                received=f"a={a!r}, b={b!r}",
                advice="convert the condition to numbers by Cast",
            )

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes of equal rank → the larger extent along each axis."""
        return _of_inputs(self, in_shapes, 3 - (self.a is not None) - (self.b is not None))

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the chosen elements; the condition is saved. Errors: a condition of floats."""
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
        """Return ``dy`` for the source of each element, zero for the other input."""
        where = ctx.saved["where"]
        sides = [ctx.ops.where(where, dy, 0.0)] * (self.a is None)
        sides += [ctx.ops.where(where, 0.0, dy)] * (self.b is None)
        return [None, *self._spread_back(ctx, sides, ctx.saved["shapes"])], {}


def _of_inputs(layer: Combine, in_shapes: Any, count: int) -> Shapes:
    """Return the shape by `Combine.setup`. Errors: not ``count`` inputs."""
    shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
    if len(shapes) != count:
        raise layer.shape_error(
            f"{count} inputs",
            f"sample shapes {shapes}",
            "a number replaces an input",
        )
    return shapes[0] if count == 1 else Combine.setup(layer, shapes)


def _number_or_none(name: str, what: str, value: Any) -> float | None:
    if value is not None and not is_number(value):
        raise ArgumentError(
            f"layer {name!r}, argument {what}",
            expected="a number, or None for an input",
            received=brief(value),
            advice=f"call the layer with a symbol for {what}",
        )
    return value


Function = Callable[..., Array]


class Formula(NamedTuple):
    """``forward(xp, *x)``, and ``gradients[k](xp, *x, y)``, the factor of ``dy`` for input k.

    Without gradients it is a step function, whose gradient is zero.
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
"""The functions by name; two inputs broadcast as for `Add`."""


class Operation(Combine):
    """A layer that computes the function ``mode`` of each element of one or two inputs.

    Of one: abs, ceil, exp, floor, log, reciprocal, round (halves to even), sign, sqrt, truncate,
    erf, the trigonometric and hyperbolic functions and their inverses (sin, asin, sinh, ...).
    Of two, which broadcast as for `Add`: modulo (with the sign of the second), remainder (of the
    first), power. Step functions, such as floor, have no gradient.

    Args:
        name: Name of the layer, a string.
        mode: Name of the function.
        input_shape: Sample shape, or a list of two, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Operation(mode="abs", input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[-1.0, 2.0]]))
        array([[1., 2.]], dtype=float32)
    """

    def __init__(
        self, name: Name = None, mode: str = REQUIRED, *, input_shape: GivenShapes | None = None
    ) -> None:
        super().__init__(name, input_shape)
        if not isinstance(mode, str) or mode not in OPERATIONS:
            raise UnknownNameError(
                f"layer {name!r}, argument mode",
                expected=one_of(OPERATIONS),
                received=brief(mode),
                advice=did_you_mean(str(mode), OPERATIONS, "choose a listed name"),
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
                "choose a mode for this number of inputs",
            )
        return in_shapes if number == 1 else super().setup(in_shapes)

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the function's values; the arrays for the gradient are saved."""
        parts = x if isinstance(x, (list, tuple)) else [x]
        y = OPERATIONS[self.mode].forward(ctx.ops.xp, *parts)
        ctx.save(
            x=None if self.traits.stops_gradient else parts, y=y, shapes=[p.shape for p in parts]
        )
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Return ``dy`` times the derivative for each input."""
        row, shapes = OPERATIONS[self.mode], ctx.saved["shapes"]
        if self.traits.stops_gradient:
            return ([None] * row.inputs if row.inputs > 1 else None), {}
        x, y = ctx.saved["x"], ctx.saved["y"]
        parts = [ctx.ops.multiply(dy, slope(ctx.ops.xp, *x, y)) for slope in row.gradients]
        found = self._spread_back(ctx, parts, shapes)
        return (found if row.inputs > 1 else found[0]), {}
