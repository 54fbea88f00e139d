"""Layers that reshape, split, concatenate and pass on values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from singanet.base.arguments import is_int
from singanet.base.described import checked_call
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, DataError, SignatureError, brief
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Name, expect_int, expect_one_input
from singanet.layers.symbol import Symbol, Unnamed, source
from singanet.types import Array, GivenShape, GivenShapes, InputKind, Shape, Shapes, Traits


class Reshape(Layer):
    """A layer that reshapes each sample to ``shape``, in row-major order.

    One extent may be -1; it is then also the axis of any extent, if samples have one.

    Args:
        name: Name of the layer, a string.
        shape: Sequence of ints, without the batch axis.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (6, 4))
        >>> singanet.layers.Reshape(shape=(3, -1))(x).shape
        (3, 8)
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self,
        name: Name = None,
        shape: Sequence[int] = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        good = all(is_int(extent) or (is_int(extent, -1) and extent != 0) for extent in extents)
        if not good or extents.count(-1) > 1:
            raise ArgumentError(
                f"layer {name!r}, argument shape",
                expected="positive ints, and at most one -1 for the remaining elements",
                received=brief(shape),
                advice="omit the batch axis",
            )
        self.shape = tuple(int(extent) for extent in extents)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → ``shape``, of as many elements."""
        given = expect_one_input(self, in_shapes)
        known = prod(extent for extent in self.shape if extent != -1)
        if -1 in given:
            if (given.count(-1), self.shape.count(-1), -known) != (1, 1, prod(given)):
                raise self.shape_error(
                    "samples with one axis of any extent for the -1 in"
                    f" {self.shape}, and equal other elements",
                    f"sample shape {given}",
                    "keep that axis, or give it an extent",
                )
            return self.shape
        count = prod(given)
        if count % known or (-1 not in self.shape and count != known):
            raise self.shape_error(
                f"samples whose elements fill the shape {self.shape}",
                f"sample shape {given} of {count} elements",
                "use -1 for one extent",
            )
        return tuple(count // known if extent == -1 else extent for extent in self.shape)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the reshaped array, if possible a view."""
        ctx.save(x_shape=x.shape)
        shape: Any = self.out_shapes
        return x.reshape(len(x), *shape)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` in the shape of the input."""
        return dy.reshape(ctx.saved["x_shape"]), {}


class Flatten(Layer):
    """A layer that merges the axes from ``axis`` into one.

    Args:
        name: Name of the layer, a string.
        axis: Int that counts the batch axis. With 1, the default, each sample becomes one row. A
            larger axis merges the axes before it into the batch, as in SINGA: axis 2 reshapes (N,
            64, 12) to (N·64, 12). PyTorch preserves these axes, as `Reshape` does here.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.Flatten()(x).shape
        (800,)
    """

    traits = Traits(moves_only=True)

    def __init__(
        self, name: Name = None, axis: int = 1, *, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        self.axis = expect_int(
            name, "axis", axis, advice="axis 0 is the batch: use axis=1 to flatten each sample"
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """s → (∏ s[axis-1:],); a sample without axes is a row of one."""
        if isinstance(in_shapes, list) or max(len(in_shapes), 1) < self.axis:
            raise self.shape_error(
                f"one input with at least {self.axis} sample axes",
                str(in_shapes),
                "use axis=1 to flatten each sample",
            )
        return (prod(in_shapes[self.axis - 1 :]),)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the elements in the row-major order of the sample."""
        ctx.save(x_shape=x.shape)
        return x.reshape(prod(x.shape[: self.axis]), prod(x.shape[self.axis :]))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` in the shape of the input."""
        return dy.reshape(ctx.saved["x_shape"]), {}


class Permute(Layer):
    """A layer that permutes axes: axis k of the output is axis ``dims[k - 1]`` of the input.

    Both count the batch axis, which stays first. As in Keras, ``dims=(2, 1)`` transposes samples of
    two axes.

    Args:
        name: Name of the layer, a string.
        dims: Sequence of ints, the input axes in the order of the output, from 1.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (4, 3))
        >>> singanet.layers.Permute(dims=(2, 1))(x).shape
        (3, 4)
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self,
        name: Name = None,
        dims: Sequence[int] = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        several = isinstance(dims, (tuple, list)) and all(is_int(axis) for axis in dims)
        if not several or sorted(dims) != list(range(1, len(dims) + 1)):
            raise ArgumentError(
                f"layer {name!r}, argument dims",
                expected="each of the sample's axes 1, 2, ... once",
                received=brief(dims),
                advice="use (2, 1) to transpose; omit axis 0, the batch",
            )
        self.dims = tuple(int(axis) for axis in dims)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → its extents in the order of ``dims``."""
        shape = self.expect_rank(
            in_shapes, len(self.dims), f"of {len(self.dims)} axes", "name each axis once in dims"
        )
        return tuple(shape[axis - 1] for axis in self.dims)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return a view."""
        return x.transpose(0, *self.dims)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` with the axes in the original order, as a view."""
        back = [self.dims.index(axis) + 1 for axis in range(1, len(self.dims) + 1)]
        return dy.transpose(0, *back), {}


class Slice(Layer):
    """A layer that cuts its input at each of ``slice_point``: n points give n + 1 outputs.

    ``axis`` counts the batch axis; it is at least 1.

    Args:
        name: Name of the layer, a string.
        axis: Int that counts the batch axis, at least 1.
        slice_point: List of ints, the indices of the cuts.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (5,))
        >>> [y.shape for y in singanet.layers.Slice(axis=1, slice_point=[2])(x)]
        [(2,), (3,)]
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self,
        name: Name = None,
        axis: int = REQUIRED,
        slice_point: list[int] = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        given = [slice_point] if is_int(slice_point) else slice_point
        points: list[Any] = list(given) if isinstance(given, (list, tuple)) else []
        rising = all(is_int(p) for p in points) and sorted(set(points)) == points
        if not points or not rising or not is_int(axis):
            raise ArgumentError(
                f"layer {name!r}",
                expected="an axis of at least 1 and rising positive slice points",
                received=f"axis={axis}, slice_point={slice_point}",
                advice="slice_point=[2] cuts after the first two",
            )
        self.axis = axis
        self.slice_point = points

    def setup(self, in_shapes: Any) -> Shapes:
        """s → a list of sample shapes."""
        k = self.axis - 1
        fits = not isinstance(in_shapes, list) and k < len(in_shapes)
        if not fits or in_shapes[k] <= self.slice_point[-1]:
            raise self.shape_error(
                f"one input longer than {self.slice_point[-1]} along axis {self.axis},"
                " counted with the batch axis",
                str(in_shapes),
                "choose slice points inside the input",
            )
        bounds = [0, *self.slice_point, in_shapes[k]]
        return [
            (*in_shapes[:k], end - first, *in_shapes[k + 1 :])
            for first, end in itertools.pairwise(bounds)
        ]

    def forward(self, ctx: Context, x: Array) -> list[Array]:
        """Return views of the input."""
        bounds = [0, *self.slice_point, x.shape[self.axis]]
        before = (slice(None),) * self.axis
        return [x[(*before, slice(first, end))] for first, end in itertools.pairwise(bounds)]

    def backward(self, ctx: Context, dy: list[Array]) -> tuple[Array, dict[str, Array]]:
        """Return the concatenated gradients."""
        return ctx.ops.concat(dy, self.axis), {}


class Split(Layer):
    """A layer that returns its input ``num_outputs`` times.

    Nets from SINGA use it; here the output of any layer may have several readers.

    Args:
        name: Name of the layer, a string.
        num_outputs: Positive int.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (5,))
        >>> [y.shape for y in singanet.layers.Split(num_outputs=2)(x)]
        [(5,), (5,)]
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self,
        name: Name = None,
        num_outputs: int = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.num_outputs = expect_int(
            name, "num_outputs", num_outputs, advice="pass the number of consumers", most=10_000
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """s → num_outputs times s."""
        return [expect_one_input(self, in_shapes)] * self.num_outputs

    def forward(self, ctx: Context, x: Array) -> list[Array]:
        """Return the input for every output, without a copy."""
        return [x] * self.num_outputs

    def backward(self, ctx: Context, dy: list[Array]) -> tuple[Array, dict[str, Array]]:
        """Return the sum of the gradients."""
        return (dy[0] if len(dy) == 1 else ctx.ops.add_all(dy)), {}


class Concat(Layer):
    """A layer that concatenates its inputs along ``axis``.

    Args:
        name: Name of the layer, a string.
        axis: Int that counts the batch axis. 0 stacks batches; 1 is the first axis of the sample,
            the channels of an image; -1 is the last. With a later axis than 1 the mask of the steps
            remains.
        input_shape: List of sample shapes, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (5,)), singanet.Input("b", (2,))
        >>> singanet.layers.Concat(axis=1)(a, b).shape
        (7,)
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self,
        name: Name = None,
        axis: int = REQUIRED,
        *,
        input_shape: Sequence[GivenShape] | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.axis = expect_int(
            name, "axis", axis, least=-99, advice="axis=1 joins along the first axis of the samples"
        )
        if self.axis == 0:
            self.traits = replace(self.traits, samples="stacked")
        elif self.axis > 1 or self.axis == -1:
            self.traits = replace(self.traits, masks="keeps")

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes that agree except on ``axis`` → one."""
        shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
        self._expect_fit(shapes)
        if self.axis == 0:
            return shapes[0]
        k = self._of(len(shapes[0]) + 1) - 1
        joined = [shape[k] for shape in shapes]
        return (*shapes[0][:k], -1 if -1 in joined else sum(joined), *shapes[0][k + 1 :])

    def _of(self, rank: int) -> int:
        return self.axis if self.axis >= 0 else rank + self.axis

    def _expect_fit(self, shapes: Sequence[Shape]) -> None:
        rank = len(shapes[0]) if shapes else -1
        axis = self._of(rank + 1)
        rests = {(*shape[: max(axis - 1, 0)], *shape[axis:]) for shape in shapes}
        fits = axis <= rank and (axis > 0 or self.axis == 0)
        if not fits or any(len(s) != rank for s in shapes) or len(rests) > 1:
            raise self.shape_error(
                f"inputs that have the axis {self.axis}, counted with the batch axis,"
                " and agree on all others",
                str(shapes),
                "axis=1 joins along the first axis of the samples",
            )

    def forward(self, ctx: Context, x: Sequence[Array] | Array) -> Array:
        """Return one array; the extents of the inputs are saved."""
        parts: list[Any] = list(x) if isinstance(x, (list, tuple)) else [x]
        self._expect_fit([part.shape[1:] for part in parts])
        axis = self._of(parts[0].ndim)
        ctx.save(extents=[part.shape[axis] for part in parts])
        return ctx.ops.concat(parts, axis)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Return the part of ``dy`` for each input, as views."""
        ends = list(accumulate(ctx.saved["extents"]))
        before = (slice(None),) * self._of(dy.ndim)
        parts = [
            dy[(*before, slice(first, end))] for first, end in zip([0, *ends], ends, strict=False)
        ]
        return (parts if len(parts) > 1 else parts[0]), {}


class Cast(Layer):
    """A layer that converts x to an integer type, "bool", or "float", the net's float type.

    Floats are truncated towards zero. Only a float that is cast to the net's own type has a
    gradient.

    Args:
        name: Name of the layer, a string.
        dtype: Name of the type, "float" by default.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Cast(dtype="int64", input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[1.5, -1.5]]))
        array([[ 1, -1]])
    """

    traits = Traits(input_kinds=("any",), any_extent=True, masks="keeps")

    def __init__(
        self, name: Name = None, dtype: str = "float", *, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        try:
            kind = np.dtype(dtype)
        except TypeError:
            kind = np.dtype(object)
        if kind.kind not in "iubf" or (kind.kind == "f" and dtype != "float"):
            raise ArgumentError(
                f"layer {name!r}, argument dtype",
                expected="'float', 'bool' or an integer type",
                received=brief(dtype),
                advice="the net's float type is set by net.as_type",
            )
        self.dtype = "float" if kind.kind == "f" else kind.name
        whole = self.dtype != "float"
        self.traits = replace(self.traits, gives_integers=whole, stops_gradient=whole)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the numbers in the other type; only whether they were floats is saved."""
        ctx.save(floats=x.dtype.kind == "f")
        return x.astype(ctx.dtype if self.dtype == "float" else self.dtype, copy=False)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Return ``dy`` for floats."""
        return dy if ctx.saved["floats"] and not self.traits.stops_gradient else None, {}


class StopGradient(Layer):
    """A layer that returns x and sends no gradient to it.

    Backward skips layers that only such layers read: their parameters are not trained and their
    contexts are not saved.

    Args:
        name: Name of the layer, a string.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.StopGradient(input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[1.0, 2.0]]))
        array([[1., 2.]], dtype=float32)
    """

    traits = Traits(moves_only=True, any_extent=True, masks="keeps", stops_gradient=True)

    def setup(self, in_shapes: Shapes) -> Shapes:
        """Any sample shape."""
        return in_shapes

    def forward(self, ctx: Context, x: Any) -> Any:
        """Return x."""
        return x

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """Return None: there is no gradient."""
        return [None] * len(dy) if isinstance(dy, list) else None, {}


class Dummy(Layer):
    """A layer that returns x; it names the place of an input or of a gradient in a net.

    An integer or boolean ``dtype`` is for labels or indices, which are fed as that type and have no
    gradient. With ``sparse`` it is an input for SciPy's sparse matrices, which only `Dense` layers
    read.

    Args:
        name: Name of the layer, a string.
        input_shape: Sample shape, to set the layer up at once.
        dtype: Name of an integer type or "bool" for labels and indices; None for floats.
        sparse: Whether the input is a sparse matrix.

    Examples:
        >>> x = singanet.Input("x", (5,))
        >>> singanet.layers.Dummy()(x).shape
        (5,)
    """

    traits = Traits(moves_only=True, any_extent=True, masks="keeps")

    def __init__(
        self,
        name: Name = None,
        input_shape: GivenShapes | None = None,
        *,
        dtype: str | None = None,
        sparse: bool = False,
    ) -> None:
        super().__init__(name, input_shape)
        self.dtype = None if dtype is None else _checked_type(name, dtype)
        whole = self.dtype is not None
        kinds: tuple[InputKind, ...] = ("integers",) if whole else ()
        self.traits = replace(self.traits, input_kinds=kinds, gives_integers=whole, sparse=sparse)

    def setup(self, in_shapes: Shapes) -> Shapes:
        """Any sample shape; (n,) if it is sparse."""
        if self.traits.sparse and (self.dtype is not None or not _is_vector(in_shapes)):
            raise self.shape_error(
                "floats of sample shape (n,), as its input is sparse",
                f"{in_shapes}" if self.dtype is None else f"dtype {self.dtype}",
                "omit sparse, or feed a row for every sample",
            )
        return in_shapes

    def forward(self, ctx: Context, x: Any) -> Any:
        """Return x."""
        return x

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """Return dy."""
        return dy, {}

    def _typed(self, x: Array) -> Array:
        """Return ``x`` in the type of the input. Errors: a type that would change some values."""
        if self.dtype is None or x.dtype == self.dtype:
            return x
        if not np.can_cast(x.dtype, self.dtype):
            raise DataError(
                f"input {self.name!r}",
                expected=f"{self.dtype}, or numbers that it represents exactly",
                received=f"an array of type {x.dtype}",
                advice=f"convert it with array.astype('{self.dtype}')",
            )
        return x.astype(self.dtype)


@checked_call
def Input(  # noqa: N802 - reads as the layer it makes
    name: Name = None, shape: GivenShape = REQUIRED, dtype: Any = None, sparse: bool = False
) -> Symbol:
    """Return a symbol for an array of the sample ``shape``, fed by ``name``.

    Errors: other types than those below.

    Args:
        name: Name of the input, a string; by default "input" and a number.
        shape: Sample shape, a tuple of ints without the batch axis; None for any extent.
        dtype: Integer or boolean type, such as "int64", for labels and indices, which are fed as
            that type; None or any float type for numbers, which have the net's float type.
        sparse: Whether the input is SciPy's sparse matrices of ``shape`` (n,), CSR, CSC or COO,
            which `Dense` layers read.
    """
    if name is not None and not isinstance(name, str):
        name, shape = None, name
    if shape is REQUIRED:
        raise SignatureError(
            "Input",
            expected="the arguments name, shape, dtype, sparse",
            received="nothing for shape",
            advice="write Input(shape=...)",
        )
    name = Unnamed("input") if name is None else name
    found = _type(dtype)
    floats = dtype is None or (found is not None and found.kind == "f")
    kind = None if floats else found.name if found else dtype
    layer = Dummy(name, shape, dtype=kind, sparse=sparse)
    layer.build(shape)
    return source(layer, layer.out_shapes)  # type: ignore[arg-type]


def _is_vector(shape: Any) -> bool:
    return isinstance(shape, tuple) and len(shape) == 1 and shape[0] > 0


def _type(dtype: Any) -> np.dtype[Any] | None:
    try:
        return np.dtype(dtype)
    except TypeError:
        return None


def _checked_type(name: str, dtype: Any) -> np.dtype[Any]:
    found = _type(dtype)
    if found is None or found.kind not in "iub":
        raise ArgumentError(
            f"input {name!r}, argument dtype",
            expected="an integer type or 'bool'; floats have the net's type",
            received=brief(dtype),
            advice="write 'int64' for labels and indices; omit it for floats",
        )
    return found
