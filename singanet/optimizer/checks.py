"""Checks of what an optimizer is asked to update, made before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.ops import ops_for
from singanet.optimizer.state import ParamState
from singanet.params.served import ServedStandIn
from singanet.types import Array, RowSparse, Shape

Grad = Array | RowSparse | tuple[Array, Array] | None


def check_lists(where: str, names: Sequence[str], values: Sequence[Any], grads: Any) -> None:
    """The three lists have one length and no name comes twice."""
    if not len(names) == len(values) == len(grads):
        raise ArgumentError(
            where,
            expected="as many names as values and gradients",
            received=f"{len(names)} names, {len(values)} values and {len(grads)} gradients",
            advice="pass one item of net.backward as it is",
        )
    if len(names) > 1 and len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ArgumentError(
            where,
            expected="names that differ, since state is kept by name",
            received=f"{twice!r} more than once",
            advice="sum the gradients of a shared parameter",
        )


def check_type(where: str, name: str, dtype: np.dtype[Any]) -> None:
    """An optimizer updates parameters of the type ``dtype``."""
    if dtype.name not in ("float32", "float64"):
        raise _not_float(f"{where}, parameter {name!r}", f"an array of {dtype}")


def _not_float(where: str, received: str) -> ArgumentError:
    return ArgumentError(
        where,
        expected="an array of float32 or float64",
        received=received,
        advice="train float16 by net.compile(..., mixed_precision='float16')"
        if received.endswith("float16")
        else "pass the live parameter array",
    )


def check_fit(where: str, name: str, value: Any, grad: Any, known: Shape | None) -> None:
    """``grad`` fits ``value``, and ``value`` the shape its state was made for."""
    shape = getattr(value, "shape", None)
    if shape is None:
        raise _not_float(f"{where}, parameter {name!r}", type(value).__name__)
    if known is None:
        check_type(where, name, value.dtype)
    if known is not None and known != shape:
        raise ShapeError(
            f"{where}, parameter {name!r}",
            expected=f"shape {known}, which its state has",
            received=f"a value of shape {shape}",
            advice="give every parameter its own name, or start a new optimizer",
        )
    if not isinstance(grad, tuple) and isinstance(value, ServedStandIn):
        raise ArgumentError(
            f"{where}, parameter {name!r}",
            expected="gradients of the rows that were looked up, since a table has them",
            received="a gradient of all rows",
            advice="let an Embedding alone read the table",
        )
    if isinstance(grad, tuple):
        _check_rows(f"{where}, parameter {name!r}", shape, *grad)
    elif getattr(grad, "shape", None) != shape:
        raise ShapeError(
            f"{where}, parameter {name!r}",
            expected=f"a gradient of the value's shape {shape}",
            received=f"shape {grad.shape}" if hasattr(grad, "shape") else type(grad).__name__,
            advice="pass names, values and gradients in the same order",
        )


def check_loaded(where: str, state: ParamState, sizes: Sequence[int], value: Array) -> None:
    """State that was loaded fits the parameter that it meets for the first time."""
    received = tuple(array.size for array in state.arrays)
    if received != tuple(sizes):
        raise ShapeError(
            f"{where}, parameter {state.name!r}",
            expected=f"state of {tuple(sizes)} elements for a value of shape {value.shape}",
            received=f"loaded state of {received} elements",
            advice="load the state of the same net and the same kind of optimizer",
        )


def checked_name(where: str, name: str | None) -> str:
    """``name``, which SINGA lets one leave out."""
    if not isinstance(name, str):
        raise ArgumentError(
            where,
            expected="the parameter's name, since state is kept by name",
            received=f"name={name!r}",
            advice="pass name=",
        )
    return name


def no_rate(where: str) -> ArgumentError:
    """The error for an update at no rate, which a caller of `apply_with_lr` may leave out."""
    return ArgumentError(
        where,
        expected="a learning rate",
        received="lr=None",
        advice="construct the optimizer with lr=, or call apply_with_lr",
    )


def not_finite(where: str, name: str, rate: float, step: int) -> ArgumentError:
    """The error for the ``rate`` of parameter ``name`` at ``step``."""
    return ArgumentError(
        f"{where}, parameter {name!r}",
        expected="a finite learning rate",
        received=f"{rate} at step {step}",
        advice="mend the schedule or the multiplier",
    )


def _check_rows(where: str, shape: Shape, indices: Array, rows: Array) -> None:
    fits = indices.ndim == 1 and shape and rows.shape == indices.shape + shape[1:]
    if not fits or indices.dtype.kind not in "iu":
        raise ShapeError(
            where,
            expected=f"integer indices (n,) and rows (n, ...) of a value of shape {shape}",
            received=f"indices {indices.shape} of {indices.dtype} and rows {rows.shape}",
            advice="pass RowSparse(indices, rows)",
        )
    if not indices.size:
        return
    xp = ops_for(indices).xp
    first, last = int(indices[0]), int(indices[-1])
    if not bool(xp.all(indices[1:] > indices[:-1])) or first < 0 or last >= shape[0]:
        raise DataError(
            where,
            expected=f"row indices that rise strictly from 0 to below {shape[0]}",
            received=f"{indices.size} indices from {first} to {last}",
            advice="sort them and sum the rows of equal ones",
        )


def checked_every(where: str, every: SupportsIndex) -> int:
    """``every``, a number of micro-batches."""
    return checked_count(where, "every", every, 1, advice="1 updates at every micro-batch")


def refuse_rows(where: str, names: Sequence[str], grads: Sequence[Grad]) -> None:
    """Raise where a gradient is row-sparse."""
    for name, grad in zip(names, grads, strict=False):
        if isinstance(grad, tuple):
            raise ArgumentError(
                f"{where}, parameter {name!r}",
                expected="a dense gradient",
                received="a row-sparse one",
                advice="use Accumulator, which keeps track of the rows",
            )


def loaded_count(where: str, own: Mapping[str, Array], key: str) -> int:
    """The number of steps under ``key`` of a stage's state. Errors: none, or no count."""
    done = own.get(key)
    if done is None or done.size != 1 or done.dtype.kind not in "iu" or done.min() < 0:
        raise DataError(
            f"{where}.load_state_dict",
            expected=f"the key {key!r}, a count",
            received="a state without it" if done is None else f"{done}"[:40],
            advice=f"load the state of a {where}",
        )
    return int(done.reshape(-1)[0])
