"""Losses of a user's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from singanet.errors import ArgumentError, DataError, ShapeError, brief
from singanet.loss.loss import Loss
from singanet.ops import Ops
from singanet.types import Array, Shape


def from_function(
    fn: Callable[[Array, Array], Array],
    gradient: Callable[[Array, Array], Array] | None = None,
    reduction: str = "mean",
) -> Loss:
    """Return the loss ``fn(x, y)``, a number for every sample.

    A sample's loss may depend on this sample alone. `singanet.testing.check_loss` compares the
    gradient with a numerical one. In recorded programs the functions run as Python. Errors:
    arguments that are not functions.

    Args:
        fn: A function of outputs and targets, (B, ...), which returns the losses (B,).
        gradient: A function of both, which returns the gradient of the sum of the losses by the
            outputs, in their shape.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> loss = singanet.loss.from_function(
        ...     lambda x, y: ((x - y) ** 4).sum(axis=1), lambda x, y: 4 * (x - y) ** 3
        ... )
        >>> loss.evaluate(False, np.array([[2.0], [1.0]]), np.zeros((2, 1)))
        8.5
    """
    return FunctionLoss(fn, gradient, reduction)


class FunctionLoss(Loss):
    """See `from_function`."""

    runs_functions = True

    def __init__(self, fn: Any, gradient: Any, reduction: str = "mean") -> None:
        super().__init__(reduction)
        for name, given, gives in (
            ("fn", fn, "the losses (B,)"),
            ("gradient", gradient, "the gradient of their sum, in the shape of x"),
        ):
            if not callable(given):
                raise ArgumentError(
                    f"loss.from_function({name}=)",
                    expected=f"a function of outputs x and targets y that returns {gives}",
                    received=brief(given),
                    advice="write it, and compare both by singanet.testing.check_loss",
                )
        self._fn, self._slope = fn, gradient

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        if y.shape[:1] != x.shape[:1]:
            raise ShapeError(
                type(self).__name__,
                expected=f"targets of {len(x)} samples, as of the outputs",
                received=f"shape {y.shape}",
                advice="pass a target for every sample",
            )
        return _checked(ops, "fn", self._fn(x, y), x, x.shape[:1], "a loss a sample"), (x, y)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        x, y = saved
        return _checked(ops, "gradient", self._slope(x, y), x, x.shape, "the outputs' shape")


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
