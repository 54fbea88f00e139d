"""PyTorch's storages and tensors, as the pickle of a file mentions them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.base.arguments import is_int
from singanet.base.budget import Refusal, checked_shape
from singanet.checkpoint.halves import BFLOAT
from singanet.checkpoint.safetensors.header import DTYPES
from singanet.data.pickles import ALLOWED, Global, Made
from singanet.errors import SingaNetError
from singanet.types import Shape

# PyTorch's names of types, by those of safetensors.
_TYPES = {
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "HalfStorage": "F16",
    "BFloat16Storage": BFLOAT,
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
}
_BYTES = "UntypedStorage"
_TENSORS = ("_rebuild_tensor_v2", "_rebuild_tensor_v3")
_PARAMETER = "_rebuild_parameter"
# What a training keeps beside its arrays; nothing is made of it.
_OTHERS = ("Size", "device", "float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
NAMES = frozenset(
    {
        *ALLOWED,
        ("torch.storage", _BYTES),
        *(("torch._utils", name) for name in (*_TENSORS, _PARAMETER)),
        *(("torch", name) for name in (*_TYPES, *_OTHERS, _BYTES)),
    }
)
"""Every name that a file of PyTorch's may mention; NumPy's are in trainings."""


@dataclass(slots=True)
class Storage:
    """A run of ``count`` elements of ``kind``, or of bytes where it has none, kept as ``key``."""

    key: str
    kind: str
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.count * width(self.kind)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A view of ``storage``; ``start`` and ``strides`` are in elements of ``kind``."""

    storage: Storage
    kind: str
    start: int
    shape: Shape
    strides: Shape
    negated: bool = False
    """Whether it is what lies there with the sign turned, as ``z.conj().imag`` is."""

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the array that is read: bfloat16 becomes float32."""
        return np.dtype("<f4" if self.kind == BFLOAT else DTYPES[self.kind])


def width(kind: str) -> int:
    """Bytes of an element."""
    return 2 if kind == BFLOAT else np.dtype(DTYPES[kind]).itemsize if kind else 1


def storage_of(told: Any, seen: dict[str, Storage]) -> Storage:
    """The storage that a persistent id names; ``seen`` has those before.

    Raises TypeError or ValueError for anything else, and for one key as two kinds.
    """
    tag, kind, key, _, count, *view = told
    if tag != "storage" or not isinstance(kind, Global) or any(view):
        raise TypeError
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and is_int(count, 0)):
        raise TypeError
    if len(key) > 20 or count >= 1 << 62:
        raise ValueError
    name = "" if kind.name == _BYTES else _TYPES[kind.name]
    found = seen.setdefault(key, Storage(key, name, count))
    if (found.kind, found.count) != (name, count):
        raise ValueError
    return found


def tensor_of(value: Any, limit: int, refuse: Refusal) -> StoredTensor | None:
    """The tensor that ``value`` stands for, None where it stands for none.

    It claims at most ``limit`` bytes, and lies inside its storage. Errors: those of ``refuse``.
    """
    if isinstance(value, Made) and value.maker == _PARAMETER:
        value = value.args[0] if value.args else None
    if not isinstance(value, Made) or value.maker not in _TENSORS:
        return None
    try:
        storage, start, shape, strides, _, _, *more = value.args
        kind = storage.kind
        if value.maker == _TENSORS[1]:
            kind = _TYPES[more.pop(0).name]
        negated = _negated(more, kind)
        shape, strides = _sizes(shape), _sizes(strides)
        axes = checked_shape(shape, width(kind), limit, refuse)
        if not kind or not is_int(start, 0) or len(strides) != len(axes):
            raise TypeError
        if any(not is_int(step, 0) for step in strides):
            raise TypeError
    except SingaNetError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError):
        raise refuse("a tensor as PyTorch writes it", "one put together otherwise") from None
    found = StoredTensor(storage, kind, int(start), axes, tuple(map(int, strides)), negated)
    if (found.start + found.span) * width(kind) > storage.nbytes:
        received = f"{found.span} behind the first {found.start}"
        raise refuse(f"elements within the {storage.nbytes} bytes of a storage", received)
    return found


def _negated(more: Sequence[Any], kind: str) -> bool:
    """The mark that may stand last. Errors: TypeError for others, which change what is meant."""
    marks = {name: mark for told in more if told for name, mark in dict(told).items() if mark}
    if marks.keys() - {"neg"} or (marks and kind not in ("F16", "F32", "F64")):
        raise TypeError
    return bool(marks)


def _sizes(value: Any) -> Sequence[Any]:
    """A tuple, or one called ``torch.Size``."""
    if isinstance(value, Made) and value.maker == "Size":
        (value,) = value.args
    if type(value) is not tuple:
        raise TypeError
    return value
