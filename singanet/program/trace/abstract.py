"""Abstract arrays: places in pieces of memory, whose arithmetic is written on the tape."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from singanet.program.ir import (
    Call,
    NotRecordableError,
    Ref,
    Token,
    gather,
    map_leaves,
    scatter,
    store,
)
from singanet.program.trace.strides import (
    broadcast,
    completed,
    element_wise,
    element_wise_layout,
    extent,
    indexed,
    is_packed,
    normalized,
    order_of_copy,
    order_of_join,
    order_of_operands,
    packed,
    reduced_type,
    reshaped,
    result_types,
)
from singanet.types import Array, Shape

Filled = Literal["out", "first", "last", "hidden"]
"""How a call takes the arrays that it fills: by the keyword out, as arguments, or not at all."""


class CallWriter(Protocol):
    """A tape: it makes arrays of its memory, and writes down the calls that fill them."""

    ops: Any
    calls: list[Call]
    tokens: list[Token]
    lowering: Any
    outside: dict[Ref, Array]
    scalars: dict[Any, None]
    gone: set[int]
    log: Any

    def freed(self, owner: int) -> None:
        """Note in the log that no array lies in the memory of a token any more."""

    def new(self, shape: Any, dtype: Any, order: tuple[int, ...] | None = None) -> AbstractArray:
        """Return a new array of planned memory."""

    def like(self, array: Any) -> AbstractArray:
        """Return a new array that is laid out as a copy of ``array``."""

    def filled_like(self, value: Any, array: Any, *args: Any, **kwargs: Any) -> AbstractArray:
        """Return an array of equal values, laid out as NumPy's ``full_like`` does."""

    def hold(self, array: Any) -> AbstractArray:
        """Return the place of an array from outside."""

    def ref(self, array: Any) -> Ref:
        """Return the place of an array, which may be one from outside."""

    def add(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        outs: Sequence[Any],
        place: Filled = "out",
        *,
        changes: bool = False,
        elementwise: bool = False,
        name: str = "",
    ) -> Call:
        """Write down a call of ``function`` that fills ``outs``."""


_active = threading.local()


def current_tape() -> Any:
    """The tape on which this thread is recording, or None."""
    return getattr(_active, "tape", None)


def set_tape(tape: CallWriter | None) -> None:
    """Let this thread record on ``tape``."""
    _active.tape = tape


@contextmanager
def not_recording() -> Iterator[None]:
    """A block in which this thread computes with values."""
    tape = current_tape()
    set_tape(None)
    try:
        yield
    finally:
        set_tape(tape)


class ChangingNumber:
    """A number that is another one at each replay."""

    __slots__ = ()
    recorded = True

    def array(self, dtype: np.dtype[Any]) -> Array:
        """Return the array without axes from which kernels read the number."""
        raise NotImplementedError


class ArrayRegion:
    """A piece of memory: the token ``number`` of ``tape``, which is notified at its end."""

    __slots__ = ("number", "tape")

    def __init__(self, number: int, tape: CallWriter | None = None) -> None:
        self.number, self.tape = number, tape

    def __del__(self) -> None:
        tape = self.tape
        if tape is not None:
            tape.gone.add(self.number)
            if tape.log is not None:
                tape.freed(self.number)


class Flags:
    """The order of the elements of an abstract array, which owns no memory."""

    __slots__ = ("_array",)
    aligned = writeable = True
    owndata = False

    def __init__(self, array: AbstractArray) -> None:
        self._array = array

    @property
    def c_contiguous(self) -> bool:
        """Whether the elements are contiguous in C order."""
        array = self._array
        return is_packed(array.shape, array.strides, array.dtype.itemsize)

    contiguous = c_contiguous

    @property
    def f_contiguous(self) -> bool:
        """Whether the elements are contiguous in Fortran order."""
        array = self._array
        return is_packed(array.shape[::-1], array.strides[::-1], array.dtype.itemsize)

    @property
    def forc(self) -> bool:
        """Whether the elements are contiguous in C or Fortran order."""
        return self.c_contiguous or self.f_contiguous


class AbstractArray(NDArrayOperatorsMixin):
    """An array without values: the elements of ``region`` from byte ``offset`` on.

    Views are arrays of the same region. Functions of arrays are calls on the recording tape. An
    operation that needs values raises `NotRecordableError`.
    """

    __slots__ = ("__weakref__", "_ref", "dtype", "offset", "region", "shape", "strides")
    recorded = True
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, region: ArrayRegion, offset: int, shape: Shape, strides: Shape, dtype: np.dtype[Any]
    ) -> None:
        self.region, self.offset = region, offset
        self.shape, self.strides, self.dtype = shape, strides, dtype
        self._ref: Ref | None = None

    @property
    def ref(self) -> Ref:
        """The place of this array; `Tape.ref` is for calls."""
        if self._ref is not None:
            return self._ref
        place = self.region.number, self.offset, self.shape, self.strides, self.dtype
        # Half the time of a call of the class.
        return tuple.__new__(Ref, place)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def flags(self) -> Flags:
        """The order of the elements, as NumPy's flags."""
        return Flags(self)

    @property
    def base(self) -> None:
        """None: views are recognised by their region."""

    @staticmethod
    def kernels() -> Any:
        """The ops that serve these arrays: the recording ones."""
        return recording().ops

    # -- views ------------------------------------------------------------------------------

    def viewed(
        self, shape: Shape, strides: Shape, offset: int = 0, dtype: Any = None
    ) -> AbstractArray:
        """Return the view that starts ``offset`` bytes after this array."""
        kind = self.dtype if dtype is None else dtype
        return AbstractArray(self.region, self.offset + offset, shape, strides, kind)

    @property
    def T(self) -> AbstractArray:  # noqa: N802
        """The transposed view."""
        return self.viewed(self.shape[::-1], self.strides[::-1])

    @property
    def mT(self) -> AbstractArray:  # noqa: N802
        """The view with the last two axes exchanged."""
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: Any) -> AbstractArray:
        """As NumPy's."""
        if not axes or axes == (None,):
            return self.T
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        shape, strides = self.shape, self.strides
        order = normalized(tuple(given), len(shape))
        if len(order) != len(shape):
            raise ValueError("axes don't match array")
        return self.viewed(tuple([shape[k] for k in order]), tuple([strides[k] for k in order]))

    def swapaxes(self, one: int, other: int) -> AbstractArray:
        """As NumPy's."""
        axes = [*range(self.ndim)]
        axes[one], axes[other] = axes[other], axes[one]
        return self.transpose(axes)

    def squeeze(self, axis: Any = None) -> AbstractArray:
        """As NumPy's."""
        ones = [k for k, size in enumerate(self.shape) if size == 1]
        gone = ones if axis is None else normalized(axis, self.ndim)
        if not {*gone} <= {*ones}:
            raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
        kept = [k for k in range(self.ndim) if k not in gone]
        return self.viewed(
            tuple([self.shape[k] for k in kept]), tuple([self.strides[k] for k in kept])
        )

    def view(self, dtype: Any = None) -> AbstractArray:
        """As NumPy's, for a type of the same size."""
        kind = self.dtype if dtype is None else np.dtype(dtype)
        if kind.itemsize != self.dtype.itemsize:
            raise NotRecordableError(f"a view of {self.dtype} as {kind}")
        return self.viewed(self.shape, self.strides, dtype=kind)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> AbstractArray:
        """As NumPy's in C order: a view, or a recorded copy."""
        if order != "C":
            raise NotRecordableError(f"reshape in order {order}")
        given = shape[0] if len(shape) == 1 and not hasattr(shape[0], "__index__") else shape
        wanted = completed(self.shape, [int(size) for size in given])
        strides = reshaped(self.shape, self.strides, wanted, self.dtype.itemsize)
        if strides is not None and not copy:
            return self.viewed(wanted, strides)
        return self._copied(self.dtype, "C", "reshape").viewed(
            wanted, packed(wanted, self.dtype.itemsize)
        )

    def ravel(self, order: str = "C") -> AbstractArray:
        """As NumPy's, in C order."""
        if order != "C":
            raise NotRecordableError(f"ravel in order {order}")
        # A view with gaps is copied, unlike by reshape.
        return self.reshape(-1, copy=not self.flags.c_contiguous)

    def broadcast_to(self, shape: Sequence[int]) -> AbstractArray:
        """As `numpy.broadcast_to`."""
        wanted = tuple(shape)
        added = len(wanted) - self.ndim
        if added < 0 or broadcast((self.shape, wanted)) != wanted:
            raise ValueError(f"an array of shape {self.shape} is not broadcast to {wanted}")
        pairs = zip(self.shape, self.strides, wanted[added:], strict=True)
        steps = [0 if have == 1 and want != 1 else step for have, step, want in pairs]
        return self.viewed(wanted, (*[0] * added, *steps))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: Any) -> AbstractArray:
        if _is_basic(index):
            return self.viewed(*indexed(self.shape, self.strides, index))
        _expect_no_mask(index)
        return taken(self, index, gather)

    def __setitem__(self, index: Any, value: Any) -> None:
        tape = recording()
        if not _is_basic(index):
            if np.ndim(value):
                _expect_no_mask(index)
            tape.add(scatter, (index, value), {}, (self,), "first", changes=True, name="put")
            return
        part = self.viewed(*indexed(self.shape, self.strides, index))
        if isinstance(value, AbstractArray) and value.ref == part.ref:
            # An operation in place has filled the part.
            return
        if hasattr(value, "shape") and value.shape != part.shape:
            broadcast((part.shape, value.shape[max(0, len(value.shape) - part.ndim) :]))
        tape.add(np.copyto, (value,), {"casting": "unsafe"}, (part,), "first")

    # -- copies -----------------------------------------------------------------------------

    def astype(
        self, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: bool = True,
        copy: bool = True,
    ) -> AbstractArray:  # fmt: skip
        """As NumPy's."""
        if not copy and self.dtype == dtype and order == "K":
            return self
        return self._copied(dtype, order, "copy")

    def copy(self, order: Any = "C") -> AbstractArray:
        """As NumPy's."""
        return self._copied(self.dtype, order, "copy")

    def flatten(self, order: Any = "C") -> AbstractArray:
        """As NumPy's, in C order."""
        return self.copy().ravel(order)

    def fill(self, value: Any) -> None:
        """As NumPy's."""
        self[...] = value

    def _copied(self, dtype: Any, order: Any, name: str) -> AbstractArray:
        tape = recording()
        made = tape.new(self.shape, dtype, copy_order(self, order))
        cast = {"casting": "unsafe"}
        tape.add(np.copyto, (self,), cast, (made,), "first", elementwise=True, name=name)
        return made

    # -- arithmetic -------------------------------------------------------------------------

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        """As NumPy's: a sum, in float32 for float16 and in float64 for integers, and a division."""
        half = dtype is None and self.dtype == np.float16
        kind = np.float32 if half else np.float64 if self.dtype.kind in "iub" else None
        named = {"axis": axis, "dtype": dtype or kind, "out": out, "keepdims": keepdims}
        total: Any = record_ufunc(np.add, "reduce", (self,), named)
        count = self.size // max(total.size, 1)
        total = np.true_divide(total, count, out=total, casting="unsafe")
        return total.astype(np.float16) if half and out is None else total

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Write a universal function down."""
        return record_ufunc(ufunc, method, inputs, keywords)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Write a function of NumPy's down."""
        return record_function(func, args, kwargs)


def _by_ufunc(ufunc: np.ufunc) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(("axis", "dtype", "out"), args, strict=False))
        return record_ufunc(ufunc, "reduce", (self,), {"axis": None, **named, **kwargs})

    method.__doc__ = "As NumPy's."
    return method


def _by_function(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return record_function(getattr(np, name), (self, *args), kwargs)

    method.__doc__ = "As NumPy's."
    return method


def _refused(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotRecordableError(f"{name}, which looks at values")

    method.__doc__ = "Refused: no replay would look again."
    return method


AbstractArray.sum = _by_ufunc(np.add)  # type: ignore[attr-defined]
AbstractArray.prod = _by_ufunc(np.multiply)  # type: ignore[attr-defined]
_AS_FUNCTIONS = """
    max min any all take repeat argmax argmin argsort cumsum dot clip round var std diagonal trace
"""
for _name in _AS_FUNCTIONS.split():
    setattr(AbstractArray, _name, _by_function(_name))
_LOOKS = """
    item tolist tobytes tofile dump dumps nonzero compress sort partition argpartition put choose
    searchsorted byteswap resize __bool__ __int__ __float__ __complex__ __index__ __contains__
    __format__ __reduce__ __reduce_ex__ __deepcopy__ __array__
"""
for _name in _LOOKS.split():
    setattr(AbstractArray, _name, _refused(_name))


def recording() -> Any:
    """The running tape. Raises `NotRecordableError` for an array that outlived its recording."""
    tape = getattr(_active, "tape", None)
    if tape is None:
        raise NotRecordableError("an array of a recording that has ended")
    return tape


def taken(array: AbstractArray, index: Any, function: Callable[..., object]) -> AbstractArray:
    """Return the elements at ``index`` in a new array, which a call of ``function`` fills."""
    tape = recording()
    if _is_array(index) and array.flags.c_contiguous and index.flags.c_contiguous:
        made = tape.new((*index.shape, *array.shape[1:]), array.dtype)
    else:
        # The order depends on the index, too.
        made = tape.like(hollow(array)[map_leaves(index, AbstractArray, partial(hollow, value=0))])
    tape.add(function, (array, index), {}, (made,), "last", name="take")
    return made


def hollow(array: AbstractArray, value: Any = None) -> Array:
    """Return an array of NumPy's laid out as ``array``, filled with ``value`` unless it is None.

    Its memory costs nothing before it is touched.
    """
    if 0 in array.shape:
        return np.empty(array.shape, array.dtype)
    start, end = extent(array.shape, array.strides, array.dtype.itemsize)
    memory = np.empty(end - start, np.uint8)
    made: Array = np.ndarray(array.shape, array.dtype, memory, -start, array.strides)
    if value is not None:
        made[...] = value
    return made


def copy_order(array: Any, order: Any) -> tuple[int, ...] | None:
    """Return the axes of a copy of ``array`` from the outermost, None for C order."""
    if order in ("C", None) or (order == "A" and not array.flags.f_contiguous):
        return None
    if order in ("F", "A"):
        return tuple(range(array.ndim)[::-1])
    return order_of_copy(array.shape, array.strides, array.dtype.itemsize)


def _is_basic(index: Any) -> bool:
    """Whether the index gives a view: integers, slices, None and an ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(type(part) in _BASIC or isinstance(part, np.integer) for part in parts)


_BASIC = frozenset((type(None), type(Ellipsis), slice, int))


def _expect_no_mask(index: Any) -> None:
    """Refuse a selection by a boolean mask, whose size depends on values."""
    for part in index if isinstance(index, tuple) else (index,):
        kind = part.dtype if hasattr(part, "dtype") else np.asarray(part).dtype
        if kind.kind == "b":
            raise NotRecordableError("a selection by truth values")


def _operands(tape: CallWriter, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """``inputs`` with arrays in the place of numbers that change from step to step."""
    types = [value.dtype for value in inputs if _is_array(value)]
    if not types or types[0].kind != "f":
        raise NotRecordableError("a number of the step without an array of floats")
    given: list[Any] = []
    for value in inputs:
        if isinstance(value, ChangingNumber):
            tape.scalars[value] = None
            value = tape.hold(value.array(types[0]))
        given.append(value)
    return tuple(given)


_is_none = partial(operator.is_, None)


def _is_array(value: Any) -> bool:
    return hasattr(value, "strides") and not isinstance(value, np.generic)


def _form(value: Any) -> Any:
    """The form of an operand for `element_wise`, or the type of a number."""
    kind = type(value)
    if kind is AbstractArray or kind is np.ndarray:
        return value.shape, value.strides, value.dtype
    if kind in (int, float, complex):
        return kind
    if _is_array(value):
        return value.shape, value.strides, value.dtype
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


def record_ufunc(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], keywords: dict[str, Any]
) -> Any:
    """Write a universal function down, with the arrays that it fills."""
    tape = recording()
    outs = keywords.pop("out", None)
    outs = outs if isinstance(outs, tuple) else () if outs is None else (outs,)
    operands = tuple(inputs)
    for value in operands:
        if isinstance(value, ChangingNumber):
            operands = _operands(tape, operands)
            break
    if method == "at":
        tape.add(ufunc.at, operands[1:], keywords, operands[:1], "first", changes=True)
        return None
    calls = method == "__call__"
    by_element = calls and ufunc.signature is None
    results: Sequence[Any] = outs
    if not outs or any(map(_is_none, outs)):
        made = _made_by(tape, ufunc, method, operands, keywords)
        results = [m if o is None else o for m, o in zip_longest(made, outs)] if outs else made
    elif by_element:
        for out in results:
            for value in operands:
                own = getattr(value, "shape", ())
                if own and own != out.shape:
                    _expect_broadcast(own, out.shape)
    tape.add(
        ufunc if calls else getattr(ufunc, method),
        operands,
        keywords,
        results,
        changes=outs != () and "where" in keywords,
        elementwise=by_element,
        name=ufunc.__name__ if calls else f"{ufunc.__name__}.{method}",
    )
    return tuple(results) if calls and ufunc.nout > 1 else results[0]


def _expect_broadcast(shape: Shape, wanted: Shape) -> None:
    """Refuse, as NumPy does, an operand that does not broadcast to what is filled."""
    if broadcast((shape, wanted)) != wanted:
        raise ValueError(f"an operand of shape {shape} is not broadcast to {wanted}")


def _made_by(
    tape: CallWriter,
    ufunc: np.ufunc,
    method: str,
    operands: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Sequence[AbstractArray]:
    """The new arrays that a universal function fills."""
    simple = not keywords or keywords.keys() <= {"dtype", "casting"}
    if method == "__call__" and simple and ufunc.signature is None:
        shape, order, kinds = element_wise(ufunc, keywords.get("dtype"), *map(_form, operands))
        return [tape.new(shape, kind, order) for kind in kinds]
    if method == "reduce" and keywords.get("where", True) is True and _is_array(operands[0]):
        array, *rest = operands
        named = {**dict(zip(("axis", "dtype", "out", "keepdims"), rest, strict=False)), **keywords}
        kind = reduced_type(ufunc, array.dtype, named.get("dtype"))
        return [_reduced(tape, array, named.get("axis", 0), named.get("keepdims", False), kind)]
    if method == "__call__" and simple and ufunc is np.matmul:
        a, b = operands
        axes = {len(a.shape), len(b.shape)}
        if 0 not in axes and a.shape[-1] == b.shape[-2:][0]:
            (kind,) = result_types(ufunc, a.dtype, b.dtype)
            if 1 not in axes:
                return [_product(tape, a, b, kind)]
            if axes == {1, 2}:
                return [tape.new((*a.shape[:-1], *b.shape[1:]), kind)]
    ones = map_leaves((tuple(operands), dict(keywords)), AbstractArray, _ones)
    found = getattr(ufunc, method)(*ones[0], **ones[1])
    return [*map(tape.like, map(np.asarray, found if isinstance(found, tuple) else (found,)))]


def _ones(array: AbstractArray) -> Array:
    return hollow(array, 1)


def _element_wise(tape: CallWriter, arrays: Sequence[Any], dtype: Any) -> AbstractArray:
    """The result of an element-wise function of ``arrays``."""
    shape, order = element_wise_layout(tuple(map(_form, arrays)))
    return tape.new(shape, dtype, order)


def _reduced(tape: CallWriter, array: Any, axis: Any, keepdims: bool, dtype: Any) -> AbstractArray:
    """The result of a reduction of ``array`` over ``axis``, None for all axes."""
    shape, every = array.shape, range(array.ndim)
    gone = {*every} if axis is None else {*normalized(axis, array.ndim)}
    order = order_of_operands(((shape, array.strides),), array.ndim)
    if keepdims:
        return tape.new(tuple([1 if k in gone else shape[k] for k in every]), dtype, order)
    kept = [k for k in every if k not in gone]
    return tape.new(
        tuple([shape[k] for k in kept]), dtype, tuple([kept.index(k) for k in order if k in kept])
    )


def _product(tape: CallWriter, a: Any, b: Any, dtype: Any) -> AbstractArray:
    """The result of ``a @ b`` for arrays of at least two axes; matrices are in C order."""
    batch = broadcast((a.shape[:-2], b.shape[:-2]))
    axes = len(batch)
    order = (
        *order_of_operands(tuple([(v.shape[:-2], v.strides[:-2]) for v in (a, b)]), axes),
        axes,
        axes + 1,
    )
    return tape.new((*batch, a.shape[-2], b.shape[-1]), dtype, order)


_TELL_SHAPES = frozenset((np.shape, np.ndim, np.size))
_TELL_TYPES = frozenset(
    (np.result_type, np.can_cast, np.min_scalar_type, np.iscomplexobj, np.isrealobj, np.common_type,
     np.shares_memory, np.may_share_memory)
)  # fmt: skip
_LIKE: dict[Any, int | None] = {np.empty_like: None, np.zeros_like: 0, np.ones_like: 1}
_TAKE_OUT = frozenset(
    (np.concatenate, np.stack, np.dot, np.clip, np.cumsum, np.cumprod, np.argmax, np.argmin,
     np.mean, np.var, np.std, np.round, np.einsum)
)  # fmt: skip
_REDUCTIONS: dict[Any, np.ufunc] = {
    np.sum: np.add,
    np.prod: np.multiply,
    np.max: np.maximum,
    np.amax: np.maximum,
    np.min: np.minimum,
    np.amin: np.minimum,
    np.any: np.logical_or,
    np.all: np.logical_and,
}
_BY_METHODS: dict[Any, Callable[..., Any]] = {
    np.reshape: AbstractArray.reshape,
    np.ravel: AbstractArray.ravel,
    np.transpose: AbstractArray.transpose,
    np.swapaxes: AbstractArray.swapaxes,
    np.squeeze: AbstractArray.squeeze,
    np.broadcast_to: AbstractArray.broadcast_to,
    np.copy: AbstractArray.copy,
    np.astype: AbstractArray.astype,
}
_SIZED_BY_VALUES = frozenset(
    (np.unique, np.nonzero, np.flatnonzero, np.argwhere, np.extract, np.compress, np.bincount)
)


def record_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call that fills the result of ``func``."""
    tape = recording()
    name = getattr(func, "__name__", func)
    if func in _SIZED_BY_VALUES or (func is np.where and len(args) == 1):
        raise NotRecordableError(f"{name}, whose result is as long as the values say")
    if func is np.where and any(isinstance(value, ChangingNumber) for value in args):
        args = args[0], *_operands(tape, args[1:])
    if func is np.copyto:
        tape.add(func, args[1:], kwargs, args[:1], "first", changes="where" in kwargs)
        return None
    if func in _REDUCTIONS and not {"initial", "where", "out"} & kwargs.keys():
        # The reductions that these functions call.
        axis = args[1] if len(args) > 1 else kwargs.get("axis")
        rest = {key: value for key, value in kwargs.items() if key not in ("a", "axis")}
        array = args[0] if args else kwargs["a"]
        return _REDUCTIONS[func].reduce(array, axis, **rest)
    out = kwargs.get("out")
    if out is not None:
        tape.add(func, args, {k: v for k, v in kwargs.items() if k != "out"}, (out,))
        return out
    if func in _TELL_SHAPES and isinstance(args[0], AbstractArray):
        return getattr(args[0], name)
    if func in _BY_METHODS and args and isinstance(args[0], AbstractArray):
        return _BY_METHODS[func](*args, **kwargs)
    if func in _LIKE:
        return tape.filled_like(_LIKE[func], *args, **kwargs)
    made = _made_by_law(tape, func, args, kwargs)
    if made is None:
        return _made_by_trial(tape, func, args, kwargs)
    return _filled(tape, func, made, args, kwargs)


def _made_by_law(tape: CallWriter, func: Any, args: Any, kwargs: Any) -> AbstractArray | None:
    """The new array that ``func`` fills, None if no law for it is known here."""
    if func in (np.concatenate, np.stack) and kwargs.keys() <= {"axis"}:
        arrays, axis = [*args[0]], (*args[1:], kwargs.get("axis", 0))[0]
        if axis is not None and all(map(_is_array, arrays)):
            return _joined(tape, arrays, axis, new=func is np.stack)
    if func is np.where and not kwargs:
        arrays = [value for value in args if _is_array(value)]
        kind = np.result_type(*[v.dtype if hasattr(v, "dtype") else v for v in args[1:]])
        return _element_wise(tape, arrays, kind)
    axis = kwargs.get("axis")
    if func in (np.argmax, np.argmin) and kwargs.keys() == {"axis"} and type(axis) is int:
        shape = args[0].shape
        (gone,) = normalized(axis, len(shape))
        return tape.new((*shape[:gone], *shape[gone + 1 :]), np.intp)
    if func is np.take and len(args) in (2, 3) and kwargs.keys() <= {"axis"} and _is_array(args[0]):
        # A trial's index may be beyond the axis.
        shape, axis = args[0].shape, args[2] if len(args) == 3 else kwargs.get("axis")
        along, end = 0, len(shape)
        if axis is not None:
            (along,) = normalized(axis, len(shape))
            end = along + 1
        taken = (*shape[:along], *np.shape(args[1]), *shape[end:])
        return tape.new(taken, args[0].dtype)
    if func is np.clip and not kwargs and _is_array(args[0]):
        arrays = [value for value in args if _is_array(value)]
        few = [np.ones((1,) * v.ndim, v.dtype) if _is_array(v) else v for v in args]
        return _element_wise(tape, arrays, np.clip(*few).dtype)
    return None


def _joined(tape: CallWriter, arrays: Sequence[Any], axis: int, new: bool) -> AbstractArray | None:
    """The result of `np.concatenate`, or of `np.stack` along a ``new`` axis."""
    first = arrays[0]
    (along,) = normalized(axis, first.ndim + new)
    pairs = [(tuple(array.shape), tuple(array.strides)) for array in arrays]
    if new:
        pairs = [
            ((*shape[:along], 1, *shape[along:]), (*at[:along], 0, *at[along:]))
            for shape, at in pairs
        ]
    if len({(*shape[:along], *shape[along + 1 :]) for shape, _ in pairs}) > 1:
        return None
    shape = list(pairs[0][0])
    shape[along] = sum(own[along] for own, _ in pairs)
    kind = np.result_type(*[array.dtype for array in arrays])
    return tape.new(tuple(shape), kind, order_of_join(pairs))


def _made_by_trial(tape: CallWriter, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of ``func``: views, or an array laid out as the result for arrays of ones."""
    standing: list[tuple[Array, AbstractArray]] = []

    def ones(array: AbstractArray) -> Array:
        made = hollow(array, None if func in _TELL_TYPES else 1)
        standing.append((made, array))
        return made

    given, named = map_leaves((args, kwargs), AbstractArray, ones)
    result = func(*given, **named)
    if func in _TELL_TYPES:
        return result
    if isinstance(result, np.generic):
        result = np.asarray(result)
    if isinstance(result, np.ndarray):
        view = _view_of(result, standing)
        return _filled(tape, func, tape.like(result), args, kwargs) if view is None else view
    if isinstance(result, (list, tuple)):
        views = [_view_of(part, standing) if np.size(part) else tape.like(part) for part in result]
        if all(view is not None for view in views):
            return type(result)(views)
    raise NotRecordableError(f"{getattr(func, '__name__', func)}, which looks at values")


def _view_of(result: Any, standing: Sequence[tuple[Array, AbstractArray]]) -> AbstractArray | None:
    """The view of an abstract array, if ``result`` shares memory with its placeholder."""
    for stands, array in standing:
        if isinstance(result, np.ndarray) and np.may_share_memory(result, stands):
            start, of = (a.__array_interface__["data"][0] for a in (stands, result))
            return array.viewed(result.shape, result.strides, of - start, result.dtype)
    return None


def _filled(
    tape: CallWriter, func: Any, made: AbstractArray, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AbstractArray:
    """``made``, filled by a call of ``func``."""
    if func is np.where:
        chosen, yes, no = args
        tape.add(np.copyto, (no,), {}, (made,), "first", name="where")
        rest = {"where": chosen}
        tape.add(np.copyto, (yes,), rest, (made,), "first", changes=True, name="where")
    elif func in _TAKE_OUT:
        tape.add(func, args, kwargs, (made,), "out")
    else:
        tape.add(store, (func, args, kwargs), {}, (made,), "first", name=func.__name__)
    return made
