"""Checks of targets and arguments that several losses and metrics read the same way."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from singanet.base.byte_order import native
from singanet.base.text import reshaping
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.ops.interface import Ops
from singanet.types import Array, Shape

__all__ = [
    "checked_gamma",
    "checked_positive",
    "checked_smoothing",
    "class_labels",
    "real_targets",
    "unit_targets",
]


def class_labels(
    where: str, ops: Ops, x: Array, y: Array, ignore: int | None = None
) -> tuple[Array, Array | None]:
    """Labels (N,) for outputs ``x`` (..., C), and where they count (None: everywhere).

    ``y`` is integers of shape (...) or (..., 1), in [0, C) or equal to ``ignore``; an ignored
    label comes back as 0 with False in the mask.
    """
    if y.dtype.kind not in "iu":
        raise DataError(
            where,
            expected="integer labels",
            received=f"labels of type {y.dtype} and shape {y.shape}",
            advice=_cast_advice(ops, x.shape, y),
        )
    if y.shape != x.shape[:-1] and y.shape != (*x.shape[:-1], 1):
        raise ShapeError(
            where,
            expected=f"labels of shape {x.shape[:-1]} for outputs of shape {x.shape}",
            received=f"labels of shape {y.shape}",
            advice=_label_advice(x.shape, y.shape),
        )
    labels = native(y, ops.xp).reshape(-1)
    if labels.size == 0:
        return labels, None
    mask = None
    if ignore is not None:
        mask = labels != ignore
        labels = ops.where(mask, labels, 0)
    ops.check(_ExpectClasses(where, x.shape), labels)
    return labels, mask


def _cast_advice(ops: Ops, scores: Shape, y: Array) -> str:
    if y.dtype.kind in "USO":
        return f"number them: {NUMBERED}"
    if y.size == math.prod(scores):
        return f"give a distribution the shape of the outputs: {reshaping('y', scores[1:])}"
    if y.dtype.kind == "f" and not bool((y == ops.xp.rint(y)).all()):
        return (
            "number the classes from 0 on; of what is measured a regression loss such as "
            "SquaredError is made for"
        )
    return "cast them with y.astype(int), or pass a distribution of the outputs' shape"


def _label_advice(scores: Shape, labels: Shape) -> str:
    for given in (labels, labels[:-1] if labels[-1:] == (1,) else labels):
        if len(scores) > 2 and given == (scores[0], *scores[2:]):
            axes = (*range(2, len(scores)), 1)
            return f"classes stand last: end the net with Permute('last', {axes})"
    return (
        "pass one integer label for every sample or position; for one a sample put"
        " Flatten before the last Dense"
    )


NUMBERED = "classes, y = numpy.unique(y, return_inverse=True)"
"""How labels that are words become numbers, and numbers words again."""


class _ExpectClasses:
    """Refuses labels beyond the classes of outputs of ``shape``."""

    def __init__(self, where: str, shape: Shape) -> None:
        self._where = where
        self._shape = shape

    def __call__(self, labels: Array) -> None:
        self.at(labels)()

    def at(self, labels: Array) -> Callable[[], None]:
        """The check of whatever stands in ``labels`` when it is called."""
        # Seen as unsigned, a negative label is a huge one: one comparison finds both mistakes.
        unsigned = labels.view(f"u{labels.dtype.itemsize}")
        largest, classes = unsigned.max, self._shape[-1]

        def look() -> None:
            # A number of the host: on a device each comparison were a launch more.
            if int(largest()) >= classes:
                self._refuse(labels, int((unsigned >= classes).argmax()))

        return look

    def _refuse(self, labels: Array, wrong: int) -> None:
        shape = self._shape
        raise DataError(
            self._where,
            expected=f"labels from 0 to {shape[-1] - 1}",
            received=f"label {int(labels[wrong])} at index {_index(wrong, shape[:-1])}",
            advice="give the net as many outputs as there are classes, or mend the labels",
        )


def _target_advice(outputs: Shape, targets: Shape) -> str:
    if math.prod(outputs) == math.prod(targets):
        return f"give the targets the shape of the outputs: {reshaping('y', outputs[1:])}"
    if len(outputs) == 2 and targets in ((outputs[0],), (outputs[0], 1)):
        return "end the net with a layer of one output, as there is one number for a sample"
    return "give both one shape: change the last layer, or the targets"


def real_targets(where: str, x: Array, y: Array) -> Array:
    """``y`` as an array of the shape and type of ``x``."""
    if y.shape != x.shape:
        raise ShapeError(
            where,
            expected=f"targets of the outputs' shape {x.shape}",
            received=f"targets of shape {y.shape}",
            advice=_target_advice(x.shape, y.shape),
        )
    if y.dtype == x.dtype:
        return y
    if y.dtype.kind not in "fiub":
        raise DataError(
            where,
            expected="targets that are numbers",
            received=f"targets of type {y.dtype}",
            advice="pass floats or integers",
        )
    return y.astype(x.dtype)


def unit_targets(where: str, ops: Ops, x: Array, y: Array) -> Array:
    """`real_targets` that lie in [0, 1]."""
    y = real_targets(where, x, y)
    ops.check(partial(_expect_units, where), y)
    return y


def _expect_units(where: str, y: Array) -> None:
    # As a look at what is right: NaN is neither below nor above.
    if y.size and not (float(y.min()) >= 0 and float(y.max()) <= 1):
        flat = y.reshape(-1)
        wrong = int((~((flat >= 0) & (flat <= 1))).argmax())
        raise DataError(
            where,
            expected="targets from 0 to 1",
            received=f"{float(flat[wrong])} at index {_index(wrong, y.shape)}",
            advice="pass 0 and 1, or probabilities",
        )


def _index(flat: int, shape: tuple[int, ...]) -> int | tuple[int, ...]:
    """The index of element ``flat`` of an array of ``shape``, a plain int for one axis."""
    index: list[int] = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return index[0] if len(index) == 1 else tuple(reversed(index))


def checked_gamma(where: str, gamma: Any) -> float:
    """``gamma`` of a focal loss. Errors: anything but a number from 0 on."""
    if isinstance(gamma, bool) or not isinstance(gamma, (int, float)) or not 0 <= gamma < 1e3:
        raise ArgumentError(
            f"{where}(gamma=)",
            expected="a finite number of at least 0",
            received=repr(gamma),
            advice="2 is usual; 0 is the cross-entropy",
        )
    return float(gamma)


def checked_smoothing(where: str, smoothing: Any) -> float:
    """The ``label_smoothing`` of a loss. Errors: anything but a number in [0, 1)."""
    if not isinstance(smoothing, (int, float)) or not 0.0 <= smoothing < 1.0:
        raise ArgumentError(
            f"{where}(label_smoothing=)",
            expected="a number in [0, 1)",
            received=repr(smoothing),
            advice="0.1 is usual, 0 smooths nothing",
        )
    return float(smoothing)


def checked_positive(where: str, value: Any) -> float:
    """``value`` as a float. Errors: anything but a finite number above 0."""
    if not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        raise ArgumentError(
            where, expected="a finite number above 0", received=repr(value), advice="1 is usual"
        )
    return float(value)
