"""How frames, lists and arrays of other libraries become what a net is fed with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages
from singanet.base.columns import (
    columns_of,
    expect_columns,
    has_frame,
    is_frame,
    matrix,
    names_of,
    numbers,
)
from singanet.base.csr import is_sparse
from singanet.errors import DataError, ShapeError, one_of
from singanet.loss.targets import NUMBERED
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.data.table import Table


def is_own(x: Any) -> bool:
    """Whether ``x`` is an array of NumPy or CuPy, a sparse matrix or a frame."""
    return _is_own_array(x) or is_sparse(x) or is_frame(x)


def _is_own_array(x: Any) -> bool:
    kind = type(x)
    if kind is np.ndarray or isinstance(x, np.ndarray):
        return True
    # PyTorch's tensors have the attribute too, and are converted.
    return hasattr(kind, "__cuda_array_interface__") and not hasattr(kind, "detach")


def holds_own(x: Any) -> bool:
    """Whether ``x`` is an array of NumPy or CuPy, a sparse matrix, or a dict of NumPy arrays.

    Mostly it is, so that this is quick.
    """
    if type(x) is np.ndarray:
        return True
    if type(x) is dict:
        return set(map(type, x.values())) == {np.ndarray}
    return is_own(x) and not is_frame(x)


def own_arrays(where: str, x: Any, inputs: Mapping[str, Any] | None = None) -> Any:
    """``x``, or the values of a dict, with NumPy arrays in place of other libraries' arrays.

    A list of numbers becomes an array. A list of arrays is taken for samples if ``inputs``, names
    with sample shapes, want one array, and else stays a list. Anything else comes back as it is.
    Errors: as `as_array`.
    """
    if x is None or holds_own(x):
        return x
    if isinstance(x, Mapping) and not is_frame(x):
        of_names = {name: {name: shape} for name, shape in (inputs or {}).items()}
        return {
            name: own_arrays(f"{where}[{name!r}]", part, of_names.get(name))
            for name, part in x.items()
        }
    if isinstance(x, (list, tuple)):
        if not any(map(is_array, x)):
            return as_array(where, x) if x and not any(map(is_frame, x)) else x
        if inputs is None or len(inputs) > 1 or list in map(type, inputs.values()):
            parts = [own_arrays(where, part) for part in x]
            return x if all(a is b for a, b in zip(x, parts, strict=True)) else parts
        return as_array(where, x[0] if len(x) == 1 else x)
    return as_array(where, x) if not is_own(x) and is_array(x) else x


def is_array(x: Any) -> bool:
    """Whether ``x`` is an array with axes, of whatever library."""
    if getattr(x, "ndim", 0) and not is_frame(x):
        return True
    return hasattr(type(x), "__dlpack__") or (
        hasattr(type(x), "__array__") and not isinstance(x, np.generic)
    )


def as_array(where: str, value: Any) -> Array:
    """``value`` as a NumPy or CuPy array.

    PyTorch's tensors come to the host, without their gradients. A frame's columns are put side by
    side. Errors: `DataError` for rows of unequal length, and for anything but numbers.
    """
    if is_frame(value):
        return matrix(where, columns_of(where, value))
    if _is_own_array(value):
        array = value
    else:
        try:
            array = _from_elsewhere(value)
        except (ValueError, TypeError, RuntimeError, BufferError) as error:
            raise DataError(
                where,
                expected="numbers that fit into one array",
                received=f"a {type(value).__name__}: {error}"[:160],
                advice="bring all samples to one shape, in an array of NumPy",
            ) from None
    if isinstance(value, Mapping):
        raise DataError(
            where,
            expected="one array, whose first axis is the samples",
            received=f"a dict of {one_of(map(str, value))}",
            advice="a sample weighs the same for all outputs; outputs are weighed by"
            " MultiLoss(losses, weights={name: number})"
            if where.endswith("sample_weight")
            else "pass the array itself",
        )
    if array.ndim == 0 or array.dtype.kind not in "fiub":
        raise DataError(
            where,
            expected="an array of numbers whose first axis is the samples",
            received=f"{type(value).__name__} of type {array.dtype} and shape {array.shape}",
            advice=_number_advice(where, value, array),
        )
    return array


def _number_advice(where: str, value: Any, array: Array) -> str:
    """What to do with a ``value`` that is no array of numbers."""
    if isinstance(value, str):
        return "read the file first: singanet.data.load(path)"
    if are_messages(value):
        return MESSAGES
    if array.ndim == 0:
        return "pass a list or an array of all samples"
    words = array.dtype.kind in "US" or any(isinstance(each, str) for each in array.flat)
    if not words:
        return "convert it with numpy.asarray(..., 'float32')"
    if re.search(r"\by\b", where):
        return f"number the classes: {NUMBERED}"
    return "make numbers of words: singanet.data.Table takes columns, a tokenizer texts"


def _from_elsewhere(value: Any) -> Array:
    """``value`` as a NumPy array. Errors: as its library raises."""
    if isinstance(value, (list, tuple)) and any(hasattr(part, "detach") for part in value):
        return np.stack([_from_elsewhere(part) for part in value])
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # NumPy has no bfloat16; float32 can hold all of its numbers.
        return np.asarray(value.float() if "bfloat16" in str(value.dtype) else value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


class Intake:
    """What a net knows of frames.

    ``table`` makes arrays of raw ones, if it is there. ``columns`` has, for each input that was
    trained on the columns of a frame as features, their names in that order.
    """

    def __init__(
        self, table: Table | None = None, columns: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.table = table
        self.columns = {name: tuple(names) for name, names in (columns or {}).items()}

    def copy(self) -> Intake:
        """Another one, which knows the same."""
        return Intake(self.table, self.columns)

    def leaves(self, x: Any) -> bool:
        """Whether `arrays` is sure to leave ``x`` as it is; mostly it is, so that this is quick."""
        return holds_own(x) and (self.table is None or type(x) is not dict)

    def arrays(self, where: str, x: Any, inputs: Mapping[str, Any]) -> Any:
        """``x`` with arrays of NumPy or CuPy alone; ``inputs`` are names with sample shapes.

        `own_arrays` converts lists and other libraries' arrays. A frame for one input becomes a
        matrix, its columns in the order of training. If there are several inputs, each gets the
        column of its name. A dict of all columns of the ``table`` is as a frame. Errors: columns
        that are missing, not those of training, or no numbers; more or fewer than the input takes.
        """
        if self.table is not None and self._has_columns(x, inputs):
            return self.table.arrays(x, list(inputs), where)
        x = own_arrays(where, x, inputs)
        if not has_frame(x):
            return x
        names = list(inputs)
        if isinstance(x, (list, tuple)) and len(x) == len(names):
            x = dict(zip(names, x, strict=True))
        if not is_frame(x):
            return {
                name: self._features(f"{where}[{name!r}]", name, part, inputs.get(name))
                if is_frame(part)
                else part
                for name, part in dict(x).items()
            }
        if self.table is not None:
            return self.table.arrays(x, names, where)
        if len(names) == 1:
            return self._features(where, names[0], x, inputs[names[0]])
        found = columns_of(where, x, names)
        return {
            name: numbers(where, name, column)[:, None]
            if inputs[name] != ()
            else numbers(where, name, column)
            for name, column in found.items()
        }

    def _has_columns(self, x: Any, inputs: Mapping[str, Any]) -> bool:
        """Whether ``x`` is a dict of raw columns, of one axis, for the table.

        It has each that the table knows, or some instead of an input: then others are missing.
        """
        table = self.table
        if table is None or not isinstance(x, Mapping) or is_frame(x):
            return False
        names = (*table.categories, *table.measures)
        there = [name in x and np.ndim(x[name]) == 1 for name in names]
        return all(there) or (any(there) and not inputs.keys() <= x.keys())

    def remember(self, x: Any, names: Sequence[str]) -> None:
        """Keep the order of the columns in ``x``, which a net with inputs ``names`` learnt of."""
        if isinstance(x, (list, tuple)) and len(x) == len(names):
            x = dict(zip(names, x, strict=True))
        if is_frame(x):
            x = {names[0]: x} if len(names) == 1 and self.table is None else {}
        for name, part in x.items() if isinstance(x, Mapping) else ():
            if is_frame(part) and name not in self.columns:
                self.columns[name] = names_of("net.columns", part)

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """Inside, columns may be remembered; an error lets them be forgotten."""
        before = dict(self.columns)
        try:
            yield
        except BaseException:
            self.columns = before
            raise

    def _features(self, where: str, name: str, frame: Any, shape: Any) -> Array:
        """Features of an input; of a shape like an image's they would be in no order."""
        given, known = names_of(where, frame), self.columns.get(name)
        if known is not None:
            expect_columns(where, given, known)
        if isinstance(shape, tuple) and shape not in ((len(given),), (-1,)):
            fits = f"{shape[0]} columns" if len(shape) == 1 else f"an array of shape {shape} a row"
            raise ShapeError(
                where,
                expected=fits,
                received=f"a frame of {len(given)}",
                advice="choose columns with frame[names]",
            )
        return np.ascontiguousarray(matrix(where, columns_of(where, frame, known)))
