"""The memory that arrays really take: each buffer once, however many views show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from singanet.layers.context import Context


def buffers(value: Any) -> dict[int, Any]:
    """The arrays that own the memory of all arrays in ``value``, by identity.

    Looks into containers, contexts and data classes, as layers save them.
    """
    return {id(owner): owner for owner in map(_owner, _arrays(value))}


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, np.generic):
        return
    if hasattr(value, "dtype") and hasattr(value, "nbytes"):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _arrays(part)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from _arrays(part)
    elif isinstance(value, Context):
        yield from _arrays(value.saved)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name, None))


def _owner(array: Any) -> Any:
    while hasattr(array.base, "nbytes") and hasattr(array.base, "dtype"):
        array = array.base
    return array


class HeldBuffers:
    """Bytes of the buffers held at a moment; one that several hold counts once.

    Buffers are kept alive while they are counted, so that no other takes their identity.
    """

    def __init__(self) -> None:
        self.total = 0
        self._holders: dict[int, tuple[Any, int]] = {}

    def add(self, found: Mapping[int, Any]) -> int:
        """Hold ``found`` once more; returns the bytes that were not held before."""
        before = self.total
        for key, owner in found.items():
            _, count = self._holders.get(key, (owner, 0))
            self._holders[key] = (owner, count + 1)
            self.total += 0 if count else int(owner.nbytes)
        return self.total - before

    def drop(self, found: Mapping[int, Any]) -> None:
        """Undo one `add` of ``found``."""
        for key in found:
            owner, count = self._holders.pop(key)
            if count > 1:
                self._holders[key] = (owner, count - 1)
            else:
                self.total -= int(owner.nbytes)
