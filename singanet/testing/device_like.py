"""Arrays that are as strict as a GPU's, for tests on a machine without one.

They contain NumPy arrays, but like CuPy's they never convert to NumPy by themselves, and refuse
NumPy arrays as operands; sums and elements are 0-d arrays. ``device_like`` replaces ``numpy`` or
``cupy``, with streams and graphs in ``device_like.cuda``. Work is done at once, but work that a GPU
might do in another order is refused, and `watch_device` counts the operations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from singanet.device import Device
from singanet.ops import add_array_module, ops_for
from singanet.testing.device_parts import (
    CapturedCall,
    DeviceMemory,
    MemoryPlace,
    Pointer,
    cuda,
    expect_no_capture,
    get_current_stream,
    given_out,
    mapped,
)
from singanet.testing.device_watch import launched, learnt_by_host, noted
from singanet.types import Array, Shape

__all__ = ["DeviceArray", "device_like", "strict_device"]

_FROM_HOST = frozenset(("asarray", "array", "ascontiguousarray", "asanyarray"))
"""The functions that copy arrays to the device."""

_MAY_RETURN_ARGUMENT = frozenset(("asarray", "asanyarray", "ascontiguousarray", "astype"))
"""Functions that may return their argument."""

_UNINITIALIZED = frozenset(("empty", "empty_like"))
"""Functions that return uninitialized memory."""

_BY_VALUES = frozenset(("nonzero", "flatnonzero", "argwhere", "unique", "bincount", "extract"))
"""Functions with a result size that depends on values, for which the host waits."""

_JUDGING = frozenset(("array_equal", "array_equiv", "allclose"))
"""Functions with a boolean of the host as NumPy's result."""

_PRODUCTS = frozenset(("dot", "einsum", "inner", "matmul", "tensordot", "vdot"))
"""Functions by cuBLAS, which CuPy cannot capture."""


class DeviceArray:
    """An array that pretends to be on a device; ``get()`` returns a copy on the host."""

    __slots__ = ("__weakref__", "_near", "base", "memory")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: Pointer | None = None,
        strides: Shape | None = None,
        order: Any = "C",
    ) -> None:
        # As in CuPy: new memory, or memory at a pointer.
        self.base: DeviceArray | None = None
        if memptr is None:
            self._near: Array = np.empty(shape, dtype, order)
            self.memory = _memory_of(self._near)
        else:
            self.memory = memptr.memory
            self._near = np.ndarray(shape, dtype, self.memory.flat, memptr.offset, strides)

    @property
    def data(self) -> Pointer:
        """The pointer to the first element."""
        return Pointer(self.memory, MemoryPlace.of(self._near, self.memory).offset)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        near = self._near
        return {
            "shape": near.shape,
            "typestr": near.dtype.str,
            "data": (self.data.ptr, False),
            "strides": near.strides,
            "version": 3,
        }

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> Any:
        """Return a NumPy copy, in ``out`` if given."""
        noted("transfers", "array.get", "to_host", self._near.nbytes)
        near = self._read("array.get")
        if out is None:
            return np.array(near)
        out[...] = near
        return out

    def set(self, array: Any, stream: Any = None) -> None:
        """Copy the NumPy ``array`` to this array."""
        expect_no_capture("array.set")
        noted("transfers", "array.set", "to_device", self._near.nbytes)
        _use([], [self])
        self._near[...] = array

    def _read(self, what: str) -> Array:
        """Return the values, for which the host waits."""
        expect_no_capture(what)
        noted("reads", what, "reads")
        _use([self], [])
        learnt_by_host(get_current_stream().lane.now())
        return self._near

    def __array__(self, *options: Any, **named: Any) -> Any:
        raise TypeError(
            f"NumPy, given an array of the device: expected NumPy arrays; received an array of"
            f" shape {self._near.shape}; copy it to the host with array.get()"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return _run(name, getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _called(function, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        if any(getattr(part, "dtype", None) == np.bool for part in parts):
            self._read("an index of truths")
        return _run("index", _picked, (self, _brought_index(key)), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(part, (DeviceArray, np.ndarray, list)) for part in parts):
            _run("assignment", operator.setitem, (self, _brought_index(key), value), {})
        else:
            # Only this part is written.
            _run("assignment", operator.setitem, (self[key], ..., value), {})

    def __len__(self) -> int:
        return len(self._near)

    def __iter__(self) -> Iterator[Any]:
        # Elements stay on the device.
        return (self[k] for k in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __copy__(self) -> Any:
        return _run("copy", np.ndarray.copy, (self,), {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()

    def __reduce__(self) -> Any:
        return _brought, (self.get(),)

    def __repr__(self) -> str:
        return repr(self._read("repr"))

    def __str__(self) -> str:
        return str(self._read("str"))

    def __format__(self, spec: str) -> str:
        return format(self._read("format")[()], spec)


def _run(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run NumPy's ``function`` on the values of device arrays, as a device operation."""
    _refuse_host(name, args, kwargs)
    capture = get_current_stream().capture
    if name in _BY_VALUES:
        expect_no_capture(name)
        noted("reads", name, "reads")
    if capture is not None and name in _PRODUCTS and kwargs.get("out") is None:
        raise NotImplementedError(f"{name} without out cannot be captured")
    met: dict[int, DeviceArray] = {}

    def near(array: DeviceArray) -> Array:
        return met.setdefault(id(array._near), array)._near

    given = mapped((args, kwargs), DeviceArray, near)
    if capture is not None:
        capture.meet([array._near for array in met.values()])
    made = function(*given[0], **given[1])
    fresh: list[DeviceArray] = []
    result = _wrapped(np.bool(made) if name in _JUDGING else made, met, fresh)
    if made is None:
        # It has written to the first one.
        written = [*met.values()][:1]
    else:
        written = [met[id(part)] for part in _flat(made) if id(part) in met]
    if name in _MAY_RETURN_ARGUMENT:
        written = []
    if name in _UNINITIALIZED or not (written or fresh):
        return result
    reads = [array for array in met.values() if not any(array is out for out in written)]
    if capture is None:
        launched()
        _use(reads, written + fresh)
    else:
        places = (
            [MemoryPlace.of(a._near, a.memory) for a in each] for each in (reads, written, fresh)
        )
        far = mapped((args, kwargs), DeviceArray, lambda a: MemoryPlace.of(a._near, a.memory))
        capture.calls.append(CapturedCall(function, *far, *places))
    return result


def _use(reads: Sequence[DeviceArray], writes: Sequence[DeviceArray]) -> None:
    """Record an operation of the current stream. Errors: it precedes its inputs."""
    lane = get_current_stream().lane
    tick = lane.next()
    for arrays, written in ((reads, False), (writes, True)):
        for array in arrays:
            array.memory.used(array._near, lane, tick, written)


def _wrapped(made: Any, met: Mapping[int, DeviceArray], fresh: list[DeviceArray]) -> Any:
    """Return ``made`` as a device result: new arrays, and 0-d arrays for numbers.

    Arrays of new memory are added to ``fresh``.
    """
    if id(made) in met:
        return met[id(made)]
    if isinstance(made, (np.ndarray, np.generic)):
        near = np.asarray(made)
        root = _root(near)
        for array in met.values():
            if array.memory.near is root:
                return _array(near, array.memory, array if array.base is None else array.base)
        found = _owner(root)
        if near.size:
            fresh.append(found)
        return found if near is root else _array(near, found.memory, found)
    if isinstance(made, (tuple, list)):
        parts = [_wrapped(part, met, fresh) for part in made]
        return type(made)(*parts) if hasattr(made, "_fields") else type(made)(parts)
    return made


def _array(near: Array, memory: DeviceMemory, base: DeviceArray | None) -> DeviceArray:
    made = object.__new__(DeviceArray)
    made._near, made.memory, made.base = near, memory, base
    return made


def _owner(near: Array) -> DeviceArray:
    """Return an array of new memory, the memory of ``near``."""
    return _array(near, _memory_of(near), None)


def _memory_of(near: Array) -> DeviceMemory:
    memory = DeviceMemory(near, get_current_stream().lane)
    given_out(memory)
    return memory


def _root(near: Array) -> Array:
    """Return the array that owns the memory."""
    while (base := getattr(near, "base", None)) is not None:
        near = base
    return near


def _brought(host: Any, function: Callable[..., Any] = np.asarray, *args: Any, **named: Any) -> Any:
    """Copy ``host`` to the device."""
    expect_no_capture("an array of the host")
    near = np.array(function(host, *args, **named))
    noted("transfers", "an array of the host", "to_device", near.nbytes)
    made = _owner(near)
    _use([], [made])
    return made


def _brought_index(key: Any) -> Any:
    """Return ``key`` with host arrays and lists copied to the device, as CuPy does."""
    parts = key if isinstance(key, tuple) else (key,)
    parts = tuple(_brought(p) if type(p) in (np.ndarray, list) else p for p in parts)
    return parts if isinstance(key, tuple) else parts[0]


def _picked(near: Array, key: Any) -> Any:
    """Return ``near[key]``, for an element a view without axes."""
    made = near[key]
    if isinstance(made, np.ndarray):
        return made
    parts = key if isinstance(key, tuple) else (key,)
    return near[(*parts, ...)]


def _called(function: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of the module."""
    name = function.__name__
    if name in _FROM_HOST and not any(isinstance(part, DeviceArray) for part in _flat(args[0])):
        return _brought(args[0], function, *args[1:], **kwargs)
    return _run(name, function, args, kwargs)


class _Module(ModuleType):
    """A module of NumPy with functions of `DeviceArray`."""

    ndarray = DeviceArray

    def __init__(self, name: str, source: ModuleType) -> None:
        super().__init__(name)
        self._source = source

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        if isinstance(found, ModuleType):
            return _Module(name, found)
        return _Function(found) if callable(found) and not isinstance(found, type) else found


class _Function:
    """A function of the module."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _called(self.function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.function, name)
        return _Function(found) if callable(found) else found


def _refuse_host(where: str, args: Any, kwargs: Any) -> None:
    for value in (*_flat(args), *_flat(tuple(kwargs.values()))):
        if isinstance(value, np.ndarray):
            raise TypeError(
                f"{where}: expected only device arrays; received a NumPy array of shape"
                f" {value.shape}; copy it to the device with xp.asarray"
            )


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [part for inner in value for part in _flat(inner)]
    return [value]


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self._near, name))


def _view(name: str) -> property:
    return property(lambda self: _run(name, lambda near: getattr(near, name), (self,), {}))


def _method(name: str) -> Any:
    function = getattr(np.ndarray, name)
    return lambda self, *args, **kwargs: _run(name, function, (self, *args), kwargs)


def _reading(name: str) -> Any:
    function = getattr(np.ndarray, name)
    return lambda self, *args: function(self._read(name.strip("_")), *args)


def _operator(function: Any) -> Any:
    return lambda self, other: _run(function.__name__, function, (self, other), {})


def _reflected(function: Any) -> Any:
    return lambda self, other: _run(function.__name__, function, (other, self), {})


def _in_place(function: Any) -> Any:
    return lambda self, other: _run(function.__name__, function, (self, other), {"out": self})


_OPERATORS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "matmul": np.matmul,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}
_COMPARING = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
_OF_ONE = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
_ATTRIBUTES = "dtype", "flags", "itemsize", "nbytes", "ndim", "shape", "size", "strides"
_VIEWS = "T", "imag", "real"
_METHODS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "clip",
    "compress", "conj", "copy", "cumprod", "cumsum", "diagonal", "dot", "fill", "flatten", "max",
    "mean", "min", "nonzero", "partition", "prod", "put", "ravel", "repeat", "reshape", "round",
    "searchsorted", "sort", "squeeze", "std", "sum", "swapaxes", "take", "trace", "transpose",
    "var", "view",
)  # fmt: skip
_READS = (
    "__bool__", "__complex__", "__float__", "__index__", "__int__", "item", "tobytes", "tolist",
)  # fmt: skip


def _complete() -> None:
    """Add the attributes, views, methods and operators of NumPy arrays to `DeviceArray`."""
    for make, names in ((_attribute, _ATTRIBUTES), (_view, _VIEWS), (_method, _METHODS)):
        for name in names:
            setattr(DeviceArray, name, make(name))
    for name in _READS:
        setattr(DeviceArray, name, _reading(name))
    for name, function in _OPERATORS.items():
        setattr(DeviceArray, f"__{name}__", _operator(function))
        setattr(DeviceArray, f"__r{name}__", _reflected(function))
        setattr(DeviceArray, f"__i{name}__", _in_place(function))
    for name, function in _COMPARING.items():
        setattr(DeviceArray, f"__{name}__", _operator(function))
    for name, function in _OF_ONE.items():
        setattr(DeviceArray, f"__{name}__", _method_of(function))


def _method_of(function: Any) -> Any:
    return lambda self: _run(function.__name__, function, (self,), {})


_complete()
DeviceArray.__module__ = "device_like"
device_like: Any = _Module("device_like", np)
device_like.cuda = cuda
add_array_module("device_like", device_like)


class _StrictDevice(Device):
    """The device of `DeviceArray`."""

    def __reduce__(self) -> Any:
        return strict_device, ()


def strict_device() -> Device:
    """Return a device with arrays as strict as a GPU's: ``net.to_device(strict_device())``."""
    return _StrictDevice("strict", ops_for(device_like.zeros(1)), 0)
