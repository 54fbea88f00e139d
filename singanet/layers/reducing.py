"""Reductions, and selection of elements by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from singanet.base.arguments import is_int
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, DataError, brief
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Name, expect_int, expect_one_input, expect_one_of
from singanet.ops.interface import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, GivenShapes, InputKind, Shape, Shapes, Traits

_MODES = ("sum", "mean", "max", "min", "logsumexp")
_NEUTRAL = {"sum": 0.0, "mean": 0.0, "max": -inf, "min": inf, "logsumexp": -inf}


class Reduce(Layer):
    """A layer that computes the sum, mean, max, min or log(sum(exp(x))) over ``axis``.

    Several equal extremes share the gradient equally. A mask (N, T) as second input excludes steps,
    if the layer reduces over axis 1; if all are excluded, the result is 0.

    Args:
        name: Name of the layer, a string.
        mode: "sum", "mean", "max", "min" or "logsumexp".
        axis: One axis or several, counting the batch axis; None for all but the batch.
        keepdims: Whether reduced axes stay, with size 1.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Reduce(mode="sum", input_shape=(3,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[1.0, 2.0, 3.0]]))
        array([6.], dtype=float32)
    """

    traits = Traits(any_extent=True)

    def __init__(
        self,
        name: Name = None,
        mode: str = REQUIRED,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        given: Any = [axis] if is_int(axis, -99) else axis
        whole = isinstance(given, (tuple, list)) and given and all(is_int(k, -99) for k in given)
        if given is not None and not (whole and 0 not in given):
            raise ArgumentError(
                f"layer {name!r}, argument axis",
                expected="axes of the sample, from 1, or negative to count from the last",
                received=brief(axis),
                advice="axis 0 is the batch; None takes all others",
            )
        self.mode = expect_one_of(name, "mode", mode, _MODES)
        self.axis = None if given is None else tuple(given)
        self.keepdims = bool(keepdims)
        if self.axis is None or 1 in self.axis:
            self.traits = replace(self.traits, masks="ends")
        elif self.axis == (-1,):
            self.traits = replace(self.traits, masks="keeps")

    def _reads_mask(self, shapes: Sequence[Shape]) -> int | None:
        """Return the only input, if the layer reduces over steps."""
        return 0 if self.traits.masks == "ends" and len(shapes) == 1 else None

    def _input_kind(self, k: int) -> InputKind:
        """Return "floats", and "any" for a mask."""
        return "any" if k else "floats"

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → s without the axes, or with 1 in their places."""
        if isinstance(in_shapes, list) and in_shapes[1:] == [in_shapes[0][:1]] != [()]:
            in_shapes = in_shapes[0] if self.traits.masks == "ends" else in_shapes
        shape = expect_one_input(self, in_shapes)
        rank = len(shape) + 1
        axes = self._over(rank)
        if not shape or axes[0] < 1 or axes[-1] >= rank or len(set(axes)) < len(axes):
            raise self.shape_error(
                f"samples with each of the axes {self.axis} once, counted with the batch axis",
                f"sample shape {shape}",
                "axis=None takes all of a sample's",
            )
        if 0 in shape:
            raise self.shape_error("samples of at least one element", f"{shape}", "reduce more")
        kept = [(k, size) for k, size in enumerate(shape, 1) if self.keepdims or k not in axes]
        return tuple(1 if k in axes else size for k, size in kept)

    def _over(self, rank: int) -> list[int]:
        if self.axis is None:
            return list(range(1, rank))
        return sorted(k if k > 0 else rank + k for k in self.axis)

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the reduced array; max, min and logsumexp save their input and output."""
        ops, there = ctx.ops, None
        if isinstance(x, list):
            x, mask = x
            there = ops.xp.not_equal(mask, 0).reshape(*mask.shape, *(1,) * (x.ndim - 2))
            x = ops.where(there, x, _NEUTRAL[self.mode])
        axes = tuple(self._over(x.ndim))
        if self.mode == "logsumexp":
            y = _log_sum_exp(ops, x, axes)
        elif there is None:
            y = self._of_all(x, axes)
        else:
            y = self._of_some(ops, x, there, axes)
        if self.mode == "logsumexp" and there is not None:
            y = ops.where(there.any(axis=1, keepdims=True), y, 0)
        ctx.save(shape=x.shape, there=there)
        if self.mode in ("max", "min", "logsumexp"):
            ctx.save(x=x, y=y)
        out: Any = self.out_shapes
        return y.reshape(len(x), *out)

    @in_float32
    def _of_all(self, x: Array, axes: Shape) -> Array:
        y: Array = getattr(x, self.mode)(axis=axes, keepdims=True)
        return y

    @in_float32
    def _of_some(self, ops: Ops, x: Array, there: Array, axes: Shape) -> Array:
        """Return the values of unmasked steps, and neutral ones for the others."""
        y: Array = getattr(x, self.mode if self.mode != "mean" else "sum")(axis=axes, keepdims=True)
        if self.mode == "mean":
            return ops.divide(y, self._number(ops, x, there, axes))
        return y if self.mode == "sum" else ops.where(there.any(axis=1, keepdims=True), y, 0)

    def _number(self, ops: Ops, like: Array, there: Array, axes: Shape) -> Array:
        """Return the number of unmasked elements of each sample, at least 1."""
        each = prod(like.shape[k] for k in axes if k > 1)
        count = there.sum(axis=1, keepdims=True) * each
        return ops.maximum(count, 1).astype(like.dtype)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Return ``dy`` for each element, divided by their number, or for the extremes only."""
        there = ctx.saved["there"]
        dx = self._spread_back(ctx, dy, there)
        return dx if there is None else [ctx.ops.where(there, dx, 0), None], {}

    def _spread_back(self, ctx: Context, dy: Array, there: Array | None) -> Array:
        shape = ctx.saved["shape"]
        axes = tuple(self._over(len(shape)))
        dy = dy.reshape(tuple(1 if k in axes else size for k, size in enumerate(shape)))
        if self.mode == "logsumexp":
            return _share_back(ctx.ops, dy, ctx.saved["x"], ctx.saved["y"])
        if self.mode in ("max", "min"):
            is_extreme = (ctx.saved["x"] == ctx.saved["y"]).astype(dy.dtype)
            # If all steps are masked, no element is the extreme.
            number = ctx.ops.maximum(is_extreme.sum(axis=axes, keepdims=True), 1)
            return ctx.ops.multiply(is_extreme, ctx.ops.divide(dy, number))
        y = _spread(ctx, dy, shape)
        if self.mode == "mean" and there is not None:
            return ctx.ops.divide(y, self._number(ctx.ops, y, there, axes))
        if self.mode == "mean":
            ctx.ops.multiply(y, 1.0 / prod(shape[k] for k in axes), out=y)
        return y


@in_float32
def _log_sum_exp(ops: Ops, x: Array, axes: Shape) -> Array:
    top = x.max(axis=axes, keepdims=True)
    total = ops.exp(ops.subtract(x, _finite(ops, top))).sum(axis=axes, keepdims=True)
    # The sum is at least 1, unless all elements are -inf, and then the result is.
    return ops.add(ops.log(ops.maximum(total, 1.0)), top)


@in_float32
def _share_back(ops: Ops, dy: Array, x: Array, y: Array) -> Array:
    return ops.multiply(dy, ops.exp(ops.subtract(x, _finite(ops, y))))


def _finite(ops: Ops, y: Array) -> Array:
    return ops.where(ops.xp.isfinite(y), y, 0.0)


class Expand(Layer):
    """A layer that broadcasts samples to ``shape``; an axis of -1 does not change.

    Args:
        name: Name of the layer, a string.
        shape: Sequence of ints, the sample shape of the output.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (4, 1))
        >>> singanet.layers.Expand(shape=(-1, 3))(x).shape
        (4, 3)
    """

    traits = Traits(moves_only=True)

    def __init__(
        self,
        name: Name = None,
        shape: Sequence[int] = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        several = isinstance(shape, (tuple, list)) and len(shape) > 0
        if not several or not all(is_int(size, -1) and size != 0 for size in shape):
            raise ArgumentError(
                f"layer {name!r}, argument shape",
                expected="a size for each axis of the sample, -1 to keep its size",
                received=brief(shape),
                advice="omit the batch axis",
            )
        self.shape = tuple(shape)

    def setup(self, in_shapes: Any) -> Shapes:
        """A sample shape of as many axes → ``shape``."""
        given = expect_one_input(self, in_shapes)
        pairs = list(zip(given, self.shape, strict=False))
        fits = all(size in (1, wanted) or wanted == -1 for size, wanted in pairs)
        if len(given) != len(self.shape) or not fits:
            raise self.shape_error(
                f"samples of {len(self.shape)} axes, of extent 1 or the extents {self.shape}",
                f"sample shape {given}",
                "put Reshape before it, which adds axes of extent 1",
            )
        return tuple(size if wanted == -1 else wanted for size, wanted in pairs)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the repeated samples; no array is saved."""
        ctx.save(shape=x.shape)
        out: Any = self.out_shapes
        return _spread(ctx, x, (len(x), *out))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the sum of ``dy`` over the repetitions."""
        return ctx.ops.sum_to(dy, ctx.saved["shape"]), {}


class RepeatVector(Layer):
    """A layer that repeats a sample s ``n`` times: (n, *s), a sequence of equal steps.

    Args:
        name: Name of the layer, a string.
        n: Positive int, the number of repetitions.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (5,))
        >>> singanet.layers.RepeatVector(n=3)(x).shape
        (3, 5)
    """

    traits = Traits(moves_only=True, gives_steps=True)

    def __init__(
        self, name: Name = None, n: int = REQUIRED, *, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        self.n = expect_int(name, "n", n)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → (n, *s)."""
        return (self.n, *expect_one_input(self, in_shapes))

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the repeated samples; no array is saved."""
        return _spread(ctx, x[:, None], (len(x), self.n, *x.shape[1:]))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the sum over the steps."""
        return ctx.ops.sum(dy, axis=1), {}


def _spread(ctx: Context, x: Array, shape: Shape) -> Array:
    y = ctx.ops.empty(shape, x)
    ctx.ops.copyto(y, x)
    return y


class TopIndices(Layer):
    """A layer that returns the indices of the ``k`` largest elements along ``axis``.

    ``axis`` counts the batch axis. The first index is the largest element, or with
    ``largest=False`` the smallest; of equal ones the first is first. `Gather` with the same axis
    returns the elements, with gradients: together they are ``torch.topk``.

    Args:
        name: Name of the layer, a string.
        k: Positive int, the number of indices.
        axis: Int that counts the batch axis.
        largest: Whether to return the largest elements, not the smallest.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.TopIndices(k=2, input_shape=(3,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[5.0, 7.0, 6.0]]))
        array([[1, 2]])
    """

    traits = Traits(gives_integers=True, stops_gradient=True)

    def __init__(
        self,
        name: Name = None,
        k: int = 1,
        axis: int = -1,
        largest: bool = True,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.k = expect_int(name, "k", k)
        if not is_int(axis, -99) or axis == 0:
            raise ArgumentError(
                f"layer {name!r}, argument axis",
                expected="an axis of the sample, counted from 1 or -1",
                received=brief(axis),
                advice="axis 0 is the batch",
            )
        self.axis, self.largest = axis, bool(largest)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → s with k elements along the axis."""
        shape = expect_one_input(self, in_shapes)
        at = self._at(len(shape) + 1) - 1
        if not 0 <= at < len(shape) or shape[at] < self.k:
            raise self.shape_error(
                f"samples with at least k={self.k} elements along axis {self.axis}",
                f"sample shape {shape}",
                "the axis counts the batch: 1 is the first of the sample",
            )
        return (*shape[:at], self.k, *shape[at + 1 :])

    def _at(self, rank: int) -> int:
        return self.axis if self.axis > 0 else rank + self.axis

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return int64; no array is saved."""
        at = self._at(x.ndim)
        if self.k == 1:
            first = x.argmax(at) if self.largest else x.argmin(at)
            return first.reshape(*x.shape[:at], 1, *x.shape[at + 1 :])
        xp = ctx.ops.xp
        found: Array = xp.argsort(xp.negative(x) if self.largest else x, axis=at, kind="stable")
        return found[(*(slice(None),) * at, slice(self.k))]

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Array]]:
        """Return None: there is no gradient."""
        return None, {}


class Gather(Layer):
    """A layer that returns the elements of x at ``indices`` along ``axis``.

    ``axis`` counts the batch axis. The indices are the same for all samples, as in ``a[:, [0, 2]]``
    of a symbol. Without them a second input of integers has indices for each sample, as in
    `numpy.take_along_axis` and ``torch.gather``: it has as many axes as x, and both broadcast over
    extents of 1. Negative indices count from the end. The gradients of repeated indices are added.

    Args:
        name: Name of the layer, a string.
        axis: Int that counts the batch axis.
        indices: Sequence of ints, or None for a second input.
        input_shape: Sample shape, or a list of two, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Gather(indices=[0, 2], input_shape=(3,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[5.0, 6.0, 7.0]]))
        array([[5., 7.]], dtype=float32)
    """

    traits = Traits(input_kinds=("any", "integers"), moves_only=True)

    def __init__(
        self,
        name: Name = None,
        axis: int = 1,
        indices: Sequence[int] | None = None,
        *,
        input_shape: GivenShapes | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        listed = [] if indices is None else [*indices]
        whole = all(is_int(k, -(2**62)) for k in listed) and (indices is None or listed)
        if not whole or not is_int(axis, -99) or axis == 0:
            raise ArgumentError(
                f"layer {name!r}",
                expected="an axis of the sample, counted from 1 or -1, and whole numbers",
                received=f"axis={axis!r}, indices={indices!r}",
                advice="axis 0 is the batch; without indices a second input has them",
            )
        self.axis = axis
        self.indices = None if indices is None else listed

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s, and the shape of the indices → s with as many elements along the axis."""
        of_samples = self.indices is None
        shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
        rank = len(shapes[0])
        at = self._at(rank + 1) - 1
        constant = [len(self.indices or ()) if k == at else 1 for k in range(rank)]
        indexed = shapes[-1] if of_samples else tuple(constant)
        pairs = [{1, *p} for k, p in enumerate(zip(shapes[0], indexed, strict=False)) if k != at]
        if (
            len(shapes) != 1 + of_samples
            or not 0 <= at < rank == len(indexed)
            or any(len(extents) > 2 for extents in pairs)
        ):
            raise self.shape_error(
                f"an input with an axis {self.axis}"
                + ", and indices with the same number of axes, of equal extent or 1" * of_samples,
                f"{in_shapes}",
                "give the argument indices, or a second input; Reshape adds axes of extent 1",
            )
        if not of_samples:
            self._expect_within(shapes[0][at], np.array(self.indices))
        return tuple(indexed[k] if k == at else max(shapes[0][k], indexed[k]) for k in range(rank))

    def _at(self, rank: int) -> int:
        return self.axis if self.axis > 0 else rank + self.axis

    def _places(self, ctx: Context, x: Array, *indices: Array) -> tuple[Any, ...]:
        """Return the index of x whose result is y."""
        at, xp = self._at(x.ndim), ctx.ops.xp
        if not indices:
            return (*(slice(None) for _ in range(at)), xp.asarray(self.indices))
        if indices[0].dtype.kind not in "iu":
            raise DataError(
                f"layer {self.name!r}, input 1",
                expected="whole numbers, the indices",
                received=f"an array of type {indices[0].dtype}",
                advice="feed integers, or draw Cast('indices', 'int64')",
            )
        ctx.ops.check(partial(self._expect_within, x.shape[at]), indices[0])
        ones = [(1,) * k + (-1,) + (1,) * (x.ndim - 1 - k) for k in range(x.ndim)]
        every = [xp.arange(size).reshape(ones[k]) for k, size in enumerate(x.shape)]
        return (*every[:at], indices[0], *every[at + 1 :])

    def _expect_within(self, size: int, indices: Array) -> None:
        if indices.size and not -size <= int(indices.min()) <= int(indices.max()) < size:
            raise DataError(
                f"layer {self.name!r}",
                expected=f"indices from 0 to {size - 1}, or negative to count from the end",
                received=f"from {int(indices.min())} to {int(indices.max())}",
                advice="the axis counts the batch: 1 is the first of the sample",
            )

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the elements; their indices are saved."""
        x, *indices = x if isinstance(x, list) else [x]
        places = self._places(ctx, x, *indices)
        ctx.save(places=places, shape=x.shape, given=len(indices))
        # With slices and indices, NumPy returns another memory order.
        return x[places] if indices else x.take(places[-1], axis=len(places) - 1)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Add ``dy`` at the indices of x; None for the indices."""
        dx = ctx.ops.zeros(ctx.saved["shape"], dy)
        ctx.ops.xp.add.at(dx, ctx.saved["places"], dy)
        return [dx, None] if ctx.saved["given"] else dx, {}
