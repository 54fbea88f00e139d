"""Losses of a user's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, DataError, ShapeError, brief
from singanet.functional import compares_samples
from singanet.layers.context import Context
from singanet.layers.shapes import Input
from singanet.layers.symbol import BATCH, Symbol, calls_between
from singanet.loss.loss import Loss
from singanet.ops import Ops
from singanet.types import Array, Shape


def from_function(
    fn: Callable[[Any, Any], Any],
    gradient: Callable[[Array, Array], Array] | None = None,
    reduction: str = "mean",
) -> Loss:
    """Return the loss ``fn(x, y)``, a number for every sample.

    With a ``gradient`` both functions compute with arrays, and recorded programs run them as
    Python; a sample's loss may depend on this sample alone. Without it ``fn`` gets symbols, once
    for each shape, and computes with operators and `singanet.functional`, whose gradients are
    known; it may compare the samples of a batch. `singanet.testing.check_loss` compares the
    gradient with a numerical one. Errors: arguments that are not functions.

    Args:
        fn: A function of outputs and targets, (B, ...), which returns the losses (B,).
        gradient: A function of both, which returns the gradient of the sum of the losses by the
            outputs, in their shape; None to derive it from ``fn``.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> loss = singanet.loss.from_function(
        ...     lambda x, y: ((x - y) ** 4).sum(axis=1), lambda x, y: 4 * (x - y) ** 3
        ... )
        >>> loss.evaluate(False, np.array([[2.0], [1.0]]), np.zeros((2, 1)))
        8.5
        >>> from singanet import functional as F
        >>> loss = singanet.loss.from_function(lambda x, y: F.sum(F.abs(x - y), axis=1))
        >>> loss.evaluate(False, np.array([[2.0], [1.0]]), np.zeros((2, 1)))
        1.5
    """
    if gradient is None:
        return TracedLoss(fn, reduction)
    return FunctionLoss(fn, gradient, reduction)


class FunctionLoss(Loss):
    """See `from_function`."""

    runs_functions = True

    def __init__(self, fn: Any, gradient: Any, reduction: str = "mean") -> None:
        super().__init__(reduction)
        _expect_function("fn", fn, "the losses (B,)")
        _expect_function("gradient", gradient, "the gradient of their sum, in the shape of x")
        self._fn, self._slope = fn, gradient

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        _expect_targets(self, x, y)
        return _checked(ops, "fn", self._fn(x, y), x, x.shape[:1], "a loss a sample"), (x, y)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        x, y = saved
        return _checked(ops, "gradient", self._slope(x, y), x, x.shape, "the outputs' shape")


class TracedLoss(Loss):
    """See `from_function`: a loss whose gradient is that of the layers which its function draws."""

    def __init__(self, fn: Any, reduction: str = "mean") -> None:
        super().__init__(reduction)
        _expect_function("fn", fn, "the losses (B,)")
        self._fn = fn
        self._traces: dict[Any, Trace] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without traces, which a copy makes again."""
        return {**super().__getstate__(), "_traces": {}}

    @property
    def _compares_samples(self) -> bool:  # type: ignore[override]
        """Whether a sample's loss depends on others; True before the first batch tells."""
        traces = self._traces.values()
        return not traces or any(trace.compares_samples for trace in traces)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        _expect_targets(self, x, y)
        whole = y.dtype.kind in "iub"
        key = x.shape[1:], y.shape[1:], y.dtype if whole else None
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = Trace(self._fn, *key)
        if not len(x):
            return ops.zeros((0,), x), (trace, x, None)
        y = y if whole or y.dtype == x.dtype else y.astype(x.dtype)
        losses, contexts = trace.forward(ops, x, y)
        # A copy, since weights and means are multiplied in place.
        return losses.copy(), (trace, x, contexts)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return self._weighed_gradient(ops, (saved, None), 1.0)

    def _weighed_gradient(self, ops: Ops, saved: Any, factor: Any) -> Array:
        # Losses may depend on several samples: their factors come before the gradient.
        (trace, x, contexts), _ = saved
        if contexts is None:
            return ops.zeros(x.shape, x)
        dy = ops.zeros(x.shape[:1], x)
        dy += factor
        return trace.backward(ops, dy, x, contexts)


class Trace:
    """The layers that ``fn`` draws for outputs and targets of the sample shapes ``x`` and ``y``.

    ``dtype`` is the type of targets that are whole numbers, None for floats. Errors:
    `ArgumentError` if ``fn`` does not compute with symbols, `ShapeError` if it returns no loss a
    sample.
    """

    def __init__(self, fn: Any, x: Shape, y: Shape, dtype: Any) -> None:
        where = "loss.from_function, result of fn"
        self._inputs = Input("x", x), Input("y", y, dtype)
        try:
            found = fn(*self._inputs)
        except (TypeError, ArgumentError) as error:
            raise ArgumentError(
                "loss.from_function(fn=)",
                expected="a function of operators and singanet.functional, as gradient=None",
                received=f"{type(error).__name__}: {error}"[:160],
                advice="use singanet.functional in place of NumPy, or pass gradient",
            ) from error
        if not isinstance(found, Symbol):
            raise ArgumentError(
                where,
                expected="a symbol",
                received=type(found).__name__,
                advice="compute it from x and y by singanet.functional, or pass gradient",
            )
        if found.full != (BATCH,):
            raise ShapeError(
                where,
                expected="a loss a sample, (batch,)",
                received=f"{found!r}",
                advice="reduce the axes of a sample, from axis 1, not the batch",
            )
        self._end = found.call.born
        self._calls = [call for call in calls_between(None, [found]) if call.inputs]
        self.compares_samples = compares_samples([found]) is not None
        # The layers of functions draw nothing.
        self._rng = np.random.default_rng(0)

    def forward(self, ops: Ops, x: Array, y: Array) -> tuple[Array, list[Context]]:
        """Return the losses (B,), and the contexts of the layers for `backward`."""
        values: dict[int, Any] = {
            symbol.call.born: [array] for symbol, array in zip(self._inputs, (x, y), strict=True)
        }
        contexts = []
        for call in self._calls:
            layer: Any = call.layer
            params = {
                suffix: ops.xp.asarray(param.value, x.dtype)
                for suffix, param in layer.params.items()
            }
            ctx = Context(ops, self._rng, params, True, dtype=x.dtype)
            given = [values[symbol.call.born][symbol.index] for symbol in call.inputs]
            made = layer.forward(ctx, given if len(given) > 1 else given[0])
            values[call.born] = made if isinstance(made, list) else [made]
            ctx.out_shapes = [part.shape for part in values[call.born]]
            contexts.append(ctx)
        return values[self._end][0], contexts

    def backward(self, ops: Ops, dy: Array, x: Array, contexts: list[Context]) -> Array:
        """Return the gradient by ``x`` for the gradient ``dy`` of the losses."""
        grads: dict[tuple[int, int], Array] = {(self._end, 0): dy}
        for call, ctx in zip(reversed(self._calls), reversed(contexts), strict=True):
            layer: Any = call.layer
            several = isinstance(layer.out_shapes, list)
            parts = [grads.pop((call.born, k), None) for k in range(len(ctx.out_shapes))]
            if layer.traits.stops_gradient or all(part is None for part in parts):
                continue
            whole = [
                ops.zeros(shape, x) if part is None else part
                for part, shape in zip(parts, ctx.out_shapes, strict=True)
            ]
            found = layer.backward(ctx, whole if several else whole[0])[0]
            for symbol, part in zip(
                call.inputs, found if isinstance(found, list) else [found], strict=True
            ):
                key = symbol.call.born, symbol.index
                if part is not None:
                    grads[key] = ops.add(grads[key], part) if key in grads else part
        made = grads.get((self._inputs[0].call.born, 0))
        # A copy: views may repeat elements, and weights are multiplied in place.
        return ops.zeros(x.shape, x) if made is None else made.astype(x.dtype, order="C")


def _expect_function(name: str, given: Any, gives: str) -> None:
    if not callable(given):
        raise ArgumentError(
            f"loss.from_function({name}=)",
            expected=f"a function of outputs x and targets y that returns {gives}",
            received=brief(given),
            advice="write it, and compare both by singanet.testing.check_loss",
        )


def _expect_targets(loss: Loss, x: Array, y: Array) -> None:
    if y.shape[:1] != x.shape[:1]:
        raise ShapeError(
            type(loss).__name__,
            expected=f"targets of {len(x)} samples, as of the outputs",
            received=f"shape {y.shape}",
            advice="pass a target for every sample",
        )


def _checked(ops: Ops, name: str, found: Any, x: Array, shape: Shape, meaning: str) -> Array:
    """Return a copy of ``found`` in the dtype of ``x``. Errors: another shape, or no numbers."""
    array = ops.xp.asarray(found)
    where = f"loss.from_function, result of {name}"
    if array.shape != shape:
        raise ShapeError(
            where,
            expected=f"shape {shape}, {meaning}",
            received=f"shape {array.shape}",
            advice="sum over the axes of a sample, not over the batch",
        )
    if array.dtype.kind not in "fiub":
        raise DataError(
            where,
            expected="numbers",
            received=f"type {array.dtype}",
            advice="compute it from x and y",
        )
    # A copy, since weights and means are multiplied in place, and it may be an array of the user.
    return array.astype(x.dtype)
