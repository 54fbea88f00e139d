"""Values fed to a net, and how they are matched to its inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages
from singanet.base.columns import (
    by_rows,
    columns_of,
    expect_columns,
    has_frame,
    is_frame,
    is_sparse,
    matrix,
    names_of,
    numbers,
)
from singanet.base.kinds import reshaping
from singanet.device import Device
from singanet.engine.plan import NodeStep, Plan
from singanet.errors import (
    ArgumentError,
    DataError,
    ShapeError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.layers.shapes import Dummy
from singanet.loss.loss import NUMBERED
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.data.table import Table


def check_feed(
    plan: Plan,
    x: Any,
    device: Device,
    dtype: np.dtype[Any],
    where: str = "net.forward",
    parts: Collection[str] = (),
) -> dict[str, Any]:
    """``x`` as a dict input name → array(s) on ``device``.

    An array that a layer computes with has the type ``dtype``. A list has one value per input in
    the order of the symbols, else in topological order. ``parts`` are inputs that may have fewer
    steps than the net declares. Errors: a value that is not a suitable array; unequal batch sizes
    in one layer.
    """
    if isinstance(x, (list, tuple)) and len(x) == len(plan.listed) > 1:
        x = dict(zip(plan.listed, x, strict=True))
    if not isinstance(x, Mapping):
        if len(plan.inputs) != 1:
            raise ArgumentError(
                where,
                expected=f"a dict with the inputs {one_of(plan.inputs)}",
                received=type(x).__name__,
                advice="pass {layer name: array}",
            )
        x = {plan.inputs[0]: x}
    _expect_same_names(f"{where}, argument x", x, plan)
    feed = {
        name: _check_input(plan.by_name[name], x[name], device, dtype, name in parts)
        for name in plan.inputs
    }
    if plan.joins:
        _expect_one_batch(plan, feed)
    return feed


def _expect_one_batch(plan: Plan, feed: Mapping[str, Any]) -> None:
    """Errors: `ShapeError` if inputs of unequal batch sizes reach one layer."""
    sizes = {name: _sizes(part) for name, part in feed.items()}
    if len({size for some in sizes.values() for size in some}) == 1 and not plan.stacks:
        return
    counts: list[int | None] = [None] * len(plan.slot_shapes)
    for step in plan.steps:
        given = sizes[step.name] if step.fed else [counts[slot] for slot in step.in_slots]
        count = step.samples(given)
        for slot in step.out_slots:
            counts[slot] = count


def _sizes(x: Any) -> list[int | None]:
    return [part.shape[0] for part in x] if isinstance(x, list) else [x.shape[0]]


def _check_input(step: NodeStep, x: Any, device: Device, dtype: np.dtype[Any], part: bool) -> Any:
    layer = step.layer
    shapes = layer.in_shapes
    if part and isinstance(shapes, tuple):
        shapes = (-1, *shapes[1:])
    if isinstance(shapes, list):
        parts = list(x) if isinstance(x, (list, tuple)) else [x]
        if len(parts) != len(shapes):
            raise layer.shape_error(
                f"a list of {len(shapes)} arrays", f"{len(parts)}", "pass one array an input"
            )
        pairs = zip(parts, shapes, strict=True)
        return [
            _check_array(step, k, part, shape, device, dtype)
            for k, (part, shape) in enumerate(pairs)
        ]
    return _check_array(step, 0, x, shapes or (), device, dtype)


def _check_array(
    step: NodeStep, k: int, x: Any, shape: Shape, device: Device, dtype: np.dtype[Any]
) -> Any:
    if step.layer.traits.sparse is not is_sparse(x):
        raise ArgumentError(
            f"layer {step.name!r}, input",
            expected="a sparse matrix of SciPy" if step.layer.traits.sparse else "an array",
            received=type(x).__name__,
            advice="convert it with scipy.sparse.csr_array"
            if step.layer.traits.sparse
            else "draw Input(..., sparse=True), or feed x.toarray()",
        )
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise ArgumentError(
            f"layer {step.name!r}, input",
            expected="an array",
            received=type(x).__name__,
            advice="convert it with numpy.asarray",
        )
    if not x.shape or not _fits(tuple(x.shape[1:]), shape):
        raise ShapeError(
            f"layer {step.name!r}, input",
            expected=f"an array of shape {batch_of(shape)}",
            received=f"shape {tuple(x.shape)}",
            advice=_shape_advice(x.shape, shape),
        )
    if x.dtype.kind not in "fiub":
        raise ArgumentError(
            f"layer {step.name!r}, input",
            expected="numbers",
            received=f"an array of type {x.dtype}",
            advice="convert it with array.astype('float32')",
        )
    if step.layer.traits.sparse:
        return by_rows(f"layer {step.name!r}, input", x).mapped(device.put, dtype)
    if isinstance(step.layer, Dummy) and step.layer.dtype is not None:
        return device.put(step.layer._typed(x))
    x = device.put(x)
    if not (k in step.integers or x.dtype == dtype):
        return x.astype(dtype)
    # Kernels treat arrays with gaps in another way, and programs have none.
    return x if type(x) is not np.ndarray or x.flags.forc or _is_dense(x) else x.copy(order="K")


def _is_dense(array: Array) -> bool:
    """Whether the elements are contiguous in any order of the axes."""
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return bool(array.transpose(axes).flags.c_contiguous)


def _fits(received: Shape, shape: Shape) -> bool:
    """Whether ``received`` matches ``shape``, in which -1 matches any extent."""
    return received == shape or (
        -1 in shape
        and len(received) == len(shape)
        and all(want in (-1, got) for got, want in zip(received, shape, strict=True))
    )


def _shape_advice(received: Shape, shape: Shape) -> str:
    if tuple(received) == shape:
        return "add the batch axis in front: x[None]"
    own, wanted = ([n for n in each if n != 1] for each in (received[1:], shape))
    if len(received) == 4 and len(shape) == 3 and (received[3], *received[1:3]) == shape:
        return "images are NCHW: use x.transpose(0, 3, 1, 2)"
    # Axes of length 1 can be added and removed, and flat rows reshaped, without harm.
    if None not in shape and own in (wanted, [math.prod(wanted)]):
        return f"lay the samples out anew: {reshaping('x', shape)}"
    if len(received) == len(shape) + 1:
        return f"give it samples of this shape, or build the net with input_shape={received[1:]}"
    return "the batch axis comes first, then the layer's input sample shape"


def check_gradients(
    plan: Plan, dy: Any, shapes: Mapping[str, Any], device: Device, dtype: np.dtype[Any]
) -> dict[int, Array]:
    """``dy`` as a dict slot → gradient; every array has the shape of the output it belongs to."""
    if not isinstance(dy, Mapping):
        if len(plan.outputs) != 1:
            raise ArgumentError(
                "net.backward",
                expected=f"a dict with gradients for outputs among {one_of(plan.outputs)}",
                received=type(dy).__name__,
                advice="pass {layer name: gradient}",
            )
        dy = {plan.outputs[0]: dy}
    for name in dy:
        if name not in shapes:
            raise UnknownNameError(
                "net.backward, argument dy",
                expected=f"names among {one_of(shapes)}",
                received=brief(name),
                advice=did_you_mean(name, shapes, "name it in the output of forward"),
            )
    if not dy:
        raise ArgumentError(
            "net.backward, argument dy",
            expected=f"gradients for outputs among {one_of(shapes)}",
            received="an empty dict",
            advice="pass the gradient of at least one output",
        )
    slot_grads: dict[int, Array] = {}
    for name, given in dy.items():
        step = plan.by_name[name]
        parts = list(given) if step.many_out else [given]
        expected = shapes[name] if step.many_out else [shapes[name]]
        for slot, part, shape in zip(step.out_slots, parts, expected, strict=False):
            if not hasattr(part, "shape") or tuple(part.shape) != shape:
                raise _wrong_gradient(name, shape, part)
            part = device.put(part)
            slot_grads[slot] = part if part.dtype == dtype else part.astype(dtype)
        if len(parts) != len(step.out_slots):
            raise _wrong_gradient(name, f"list of {len(step.out_slots)} arrays", given)
    return slot_grads


def _wrong_gradient(name: str, shape: Any, part: Any) -> ShapeError:
    received = getattr(part, "shape", type(part).__name__)
    return ShapeError(
        f"net.backward, gradient of layer {name!r}",
        expected=f"shape {shape}, as the layer's output",
        received=f"shape {received}" if isinstance(received, tuple) else f"{received}",
        advice="pass the gradient of the loss with respect to that output",
    )


def _expect_same_names(where: str, given: Mapping[str, Any], plan: Plan) -> None:
    known = plan.inputs
    for name in given:
        if name not in known:
            inner = name in plan.by_name
            raise UnknownNameError(
                where,
                expected=f"the inputs {one_of(known)}",
                received=f"the extra key {name!r}" + ", which reads other layers" * inner,
                advice="add a Dummy layer for its data, and name that layer"
                if inner
                else MESSAGES
                if are_messages(given)
                else did_you_mean(str(name), known, "remove it"),
            )
    for name in known:
        if name not in given:
            raise UnknownNameError(
                where,
                expected=f"the inputs {one_of(known)}",
                received=f"keys without {name!r}",
                advice=f"add an array for {name!r}",
            )


def shapes_of(value: Any) -> Any:
    """The shape of an array, or the list of shapes of several."""
    if isinstance(value, (list, tuple)):
        return [tuple(part.shape) for part in value]
    return tuple(value.shape)


def batch_of(shape: Shape) -> str:
    """``shape`` written with its batch axis."""
    return "(batch" + "".join(f", {'any' if axis == -1 else axis}" for axis in shape) + ")"


def is_own(x: Any) -> bool:
    """Whether ``x`` is an array of NumPy or CuPy, a sparse matrix or a frame."""
    return _is_own_array(x) or is_sparse(x) or is_frame(x)


def _is_own_array(x: Any) -> bool:
    kind = type(x)
    if kind is np.ndarray or isinstance(x, np.ndarray):
        return True
    # PyTorch's tensors have the attribute too, and are converted.
    return hasattr(kind, "__cuda_array_interface__") and not hasattr(kind, "detach")


def is_own_or_dict(x: Any) -> bool:
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

    A list of numbers becomes an array. A list of arrays is one array of samples if ``inputs``,
    names with sample shapes, have one array, else it stays a list. Other values are returned
    unchanged. Errors: as `as_array`.
    """
    if x is None or is_own_or_dict(x):
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
    """Whether ``x`` is an array with axes, of whatever library, or a buffer but bytes."""
    if getattr(x, "ndim", 0) and not is_frame(x):
        return True
    if hasattr(type(x), "__dlpack__"):
        return True
    if hasattr(type(x), "__array__"):
        return not isinstance(x, np.generic)
    return is_buffer(x)


def is_buffer(x: Any) -> bool:
    """Whether ``x`` has a buffer of numbers, as `array.array` and arrays of ctypes do."""
    # Numbers first, which long lists have.
    if isinstance(x, (float, int, list, tuple, dict, str, bytes, bytearray)) or x is None:
        return False
    try:
        return memoryview(x).ndim > 0
    except (TypeError, ValueError, BufferError):
        return False


def is_mapped(x: Any) -> bool:
    """Whether ``x``, or an array of a dict or list, is in a file, so that all may not fit."""
    if isinstance(x, (Mapping, list, tuple)) and not is_frame(x):
        parts = x.values() if isinstance(x, Mapping) else x
        return any(isinstance(part, np.memmap) for part in parts)
    return isinstance(x, np.memmap)


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
            " MultiLoss(losses, weights={name: number}), and targets of a loss.from_function may"
            " have weights"
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


_NUMBERS = {
    "c": "take numpy.abs(x), or join x.real and x.imag",
    "M": "count for example days: (x - x.min()) / numpy.timedelta64(1, 'D')",
    "m": "count for example days: x / numpy.timedelta64(1, 'D')",
}
"""By kind of NumPy's type: how its values become numbers."""


def _number_advice(where: str, value: Any, array: Array) -> str:
    """The advice for a ``value`` that cannot become an array of numbers."""
    if isinstance(value, (str, PathLike)):
        return "read the file first: singanet.data.load(path)"
    if are_messages(value):
        return MESSAGES
    if array.ndim == 0 and "batch" in where:
        return "put several samples into a batch: numpy.stack makes one array of them"
    if array.ndim == 0:
        return "pass a list or an array of all samples"
    if array.dtype.kind in _NUMBERS:
        return _NUMBERS[array.dtype.kind]
    if any(isinstance(each, Mapping) for each in array.flat):
        return "make a row of each dict: numpy.array([[*row.values()] for row in x], 'float32')"
    if any(each is None for each in array.flat):
        return "leave out the samples that are None, or fill them"
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
        # NumPy lacks bfloat16; float32 represents all of its numbers.
        return np.asarray(value.float() if "bfloat16" in str(value.dtype) else value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


class ColumnAdapter:
    """The columns of frames that a net was trained on.

    ``table`` converts raw frames to arrays, if there is one. ``columns`` contains the column names
    of each input that was trained on a frame, in order.
    """

    def __init__(
        self, table: Table | None = None, columns: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.table = table
        self.columns = {name: tuple(names) for name, names in (columns or {}).items()}

    def copy(self) -> ColumnAdapter:
        """Return a copy."""
        return ColumnAdapter(self.table, self.columns)

    def leaves(self, x: Any) -> bool:
        """Whether `arrays` returns ``x`` unchanged. A quick check, as it mostly does."""
        return is_own_or_dict(x) and (self.table is None or type(x) is not dict)

    def arrays(self, where: str, x: Any, inputs: Mapping[str, Any]) -> Any:
        """``x`` with arrays of NumPy or CuPy alone; ``inputs`` are names with sample shapes.

        `own_arrays` converts lists and other libraries' arrays. A frame for one input becomes a
        matrix, its columns in the order of training. If there are several inputs, each gets the
        column of its name. A dict of all columns of the ``table`` is treated as a frame. Errors:
        missing columns, columns other than in training, columns without numbers, another number of
        columns than the input has.
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
        """Whether ``x`` is a dict of raw columns with one axis for the table.

        It has all columns of the table, or some of them instead of an input: then others are
        missing.
        """
        table = self.table
        if table is None or not isinstance(x, Mapping) or is_frame(x):
            return False
        names = (*table.categories, *table.measures)
        there = [name in x and np.ndim(x[name]) == 1 for name in names]
        return all(there) or (any(there) and not inputs.keys() <= x.keys())

    def remember(self, x: Any, names: Sequence[str]) -> None:
        """Store the order of the columns in ``x``, the data of a net with inputs ``names``."""
        if isinstance(x, (list, tuple)) and len(x) == len(names):
            x = dict(zip(names, x, strict=True))
        if is_frame(x):
            x = {names[0]: x} if len(names) == 1 and self.table is None else {}
        for name, part in x.items() if isinstance(x, Mapping) else ():
            if is_frame(part) and name not in self.columns:
                self.columns[name] = names_of("net.columns", part)

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """A block that may remember columns; after an error they are forgotten."""
        before = dict(self.columns)
        try:
            yield
        except BaseException:
            self.columns = before
            raise

    def _features(self, where: str, name: str, frame: Any, shape: Any) -> Array:
        """The features of an input. A frame is refused for an image's shape.

        columns lack its order.
        """
        given, known = names_of(where, frame), self.columns.get(name)
        if known is not None:
            expect_columns(where, given, known)
        if isinstance(shape, tuple) and shape not in ((len(given),), (-1,)):
            fits = f"{shape[0]} columns" if len(shape) == 1 else f"an array of shape {shape} a row"
            raise ShapeError(
                where,
                expected=fits,
                received=f"a frame of {len(given)}",
                advice=f"pass an array: {reshaping('x.to_numpy()', shape)}"
                if math.prod(shape) == len(given)
                else "choose columns with frame[names]",
            )
        return np.ascontiguousarray(matrix(where, columns_of(where, frame, known)))
