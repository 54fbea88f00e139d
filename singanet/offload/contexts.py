"""Contexts of layers whose parameters are elsewhere, and divided updates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from singanet.base.elsewhere import is_library
from singanet.base.heap import address
from singanet.checkpoint import Entry
from singanet.engine.backward import root_of
from singanet.layers.context import Context
from singanet.offload.shelf import OffloadStore
from singanet.optimizer.chain import UpdateChain
from singanet.params.param import Param
from singanet.params.storage import SMALL
from singanet.program.ir import map_leaves
from singanet.types import Array, Shape

Groups = Callable[[list[tuple[str, ...]]], list[tuple[str, ...]]]
"""What a walk back needs together, in order, by the names of what each context holds."""


class _ShelvedBytes:
    """Bytes that were put into ``shelf``, for as long as somebody has this."""

    __slots__ = ("__weakref__", "name", "shelf")

    def __init__(self, shelf: OffloadStore, name: str) -> None:
        self.shelf, self.name = shelf, name

    def __del__(self) -> None:
        self.shelf.forget(self.name)


@dataclass(frozen=True, slots=True)
class _Away:
    """An array that lies in ``memory`` from byte ``offset`` on."""

    memory: _ShelvedBytes
    offset: int
    dtype: np.dtype[Any]
    shape: Shape
    strides: Shape

    def array(self) -> Array:
        """It, in memory."""
        data = self.memory.shelf.get(self.memory.name)
        return np.ndarray(self.shape, self.dtype, data, self.offset, self.strides)


class OffloadedContexts:
    """As `ContextStore`, for one pass: arrays go to ``shelf``, by the memory in which they lie.

    What contexts hold of the same memory goes there once. In memory stay what is no array or is
    not NumPy's alone, memory of up to 64 KiB, and what somebody else has anyway: the arrays
    ``here``. ``groups`` tells the order of the walk back.
    """

    def __init__(self, shelf: OffloadStore, here: Iterable[Array], groups: Groups) -> None:
        self._shelf, self._groups = shelf, groups
        self._here = {id(root_of(array)) for array in here}
        self._names: list[tuple[str, ...]] = []
        self._all: set[str] = set()
        # Of what may be met again in the forward: what is in memory may have been written.
        self._known: dict[int, tuple[weakref.ref[Array], _ShelvedBytes]] = {}

    def put(self, ctx: Context) -> None:
        """As `ContextStore`. Errors: `FileAccessError`."""
        names: list[str] = []

        def moved(array: Array) -> Any:
            away = self._away(array)
            if away is None:
                return array
            names.append(away.memory.name)
            return away

        _replace(ctx.saved, np.ndarray, moved)
        self._names.append(tuple(dict.fromkeys(names)))
        self._all.update(names)

    def abandon(self) -> None:
        """Drop everything, since no walk follows or goes on."""
        self._shelf.abandon(self._all)

    def bring(self, ctx: Context) -> None:
        """As `ContextStore`. Errors: `FileAccessError`."""
        if self._names:
            self._shelf.follow(self._groups(self._names))
            self._names, self._known = [], {}
        self._shelf.sweep()
        _replace(ctx.saved, _Away, _Away.array)

    def _away(self, array: Array) -> _Away | None:
        """``array``, once its memory is in the shelf; None if it stays."""
        root = root_of(array)
        if type(array) is not np.ndarray or type(root) is not np.ndarray or root.base is not None:
            return None
        if root.nbytes <= SMALL or root.dtype.hasobject or id(root) in self._here:
            return None
        known = self._known.get(id(root))
        if known is None or known[0]() is not root:
            flat = as_strided(root, (root.size,), (root.itemsize,)).view(np.uint8)
            memory = _ShelvedBytes(self._shelf, self._shelf.put(flat))
            known = self._known[id(root)] = weakref.ref(root), memory
        offset = address(array) - address(root)
        return _Away(known[1], offset, array.dtype, array.shape, array.strides)


def _replace(saved: dict[str, Any], kind: type, change: Callable[[Any], Any]) -> None:
    """Change all of ``kind`` in ``saved``; lists and dicts without stay the objects they are."""
    for key, value in saved.items():
        others: list[Any] = []

        def seen(leaf: Any, others: list[Any] = others) -> Any:
            made = change(leaf)
            others += [made] * (made is not leaf)
            return made

        changed = map_leaves(value, kind, seen)
        if others:
            saved[key] = changed


PART = 8 << 20
"""Bytes of an array that are in memory at a time; one of fewer is there as a whole."""


def rows_of_parts(chain: UpdateChain, param: Param) -> list[slice]:
    """The rows of a parameter that ``chain`` may update one after the other; none for all at once.

    So it may where the rule treats each element alike, and no stage has arrays of its shape.
    """
    rule, slots = chain.own_rule, chain.slots_of(param).values()
    nbytes = prod(param.shape) * chain.rule_type(param).itemsize
    if rule is None or nbytes <= PART or {shape for shape, _ in slots} != {param.shape}:
        return []
    penalty = rule._spec_of(param).regularizer or rule.regularizer
    alike = chain.treats_alike(param) and (penalty is None or is_library(type(penalty)))
    if not alike or not all(stage.traits.needs_norm for stage in chain.stages):
        return []
    count = max(1, PART * param.shape[0] // nbytes)
    return [slice(at, min(at + count, param.shape[0])) for at in range(0, param.shape[0], count)]


def state_at_a_time(chain: UpdateChain, param: Param) -> int:
    """The bytes of the state of a parameter that are in memory together."""
    rows, nbytes = rows_of_parts(chain, param), chain.state_bytes(param)
    return nbytes * (rows[0].stop - rows[0].start) // param.shape[0] if rows else nbytes


def part_of(entry: Entry, rows: slice) -> Entry:
    """The place for some rows of an array."""
    shape = rows.stop - rows.start, *entry.shape[1:]
    nbytes = prod(shape) * entry.dtype.itemsize
    return Entry(f"{entry.name}[{rows.start}:{rows.stop}]", shape, entry.dtype, nbytes)
