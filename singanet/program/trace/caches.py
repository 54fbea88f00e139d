"""KV caches of a recorded read: a replay finds the caches of its own sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from singanet.layers.kv_cache import Counts, KVCache
from singanet.ops.interface import Ops
from singanet.program.ir import NotRecordableError
from singanet.program.trace.tape import Tape
from singanet.types import Array


class ReplayCaches:
    """The KV caches of a replay by node, ``now``."""

    def __init__(self, now: Mapping[str, KVCache], tape: Tape) -> None:
        self.now, self.tape = now, tape
        # Arrays that depend on the numbers of steps, for all layers.
        self._by_starts: dict[Any, Array] = {}

    def recorded(self) -> dict[str, RecordedCache]:
        """Return a cache for each node that writes on the tape."""
        return {name: RecordedCache(self, name) for name in self.now}

    def forget(self) -> None:
        """Drop the tape, which replays do not need, and the caches."""
        self.now, self._by_starts = {}, {}
        del self.tape

    def by_starts(self, past: RecordedCache, function: Callable[..., Array], given: Any) -> Array:
        """Return an array that each replay fills again."""
        key = function, given
        found = self._by_starts.get(key)
        if found is None:
            first = function(past.now.starts, *given)
            made: Any = self.tape.new(first.shape, first.dtype)
            fill = partial(past.fill, function, given)
            call = self.tape.add(fill, (), {}, (made,), "first", name="starts")
            call.barrier = True
            found = self._by_starts[key] = made
        return found


class RecordedCache:
    """A placeholder for the `KVCache` of a node, whose reads and writes are calls of each replay.

    No recorded array depends on the number of steps: `KVCache.extended` is for calls.
    """

    def __init__(self, caches: ReplayCaches, name: str) -> None:
        self._caches, self._name = caches, name

    @property
    def now(self) -> KVCache:
        """The cache of the replay."""
        return self._caches.now[self._name]

    @property
    def fixed(self) -> frozenset[int]:
        """The inputs that are the same for all parts."""
        return self.now.fixed

    @property
    def begun(self) -> bool:
        """Whether any sequence has earlier steps; programs of both cases differ."""
        return self.now.begun

    @property
    def starts(self) -> Counts:
        """Refused, since it differs between replays."""
        raise NotRecordableError("a number of earlier steps")

    before = starts

    def by_starts(self, ops: Ops, function: Callable[..., Array], *given: Any) -> Array:
        """Record `KVCache.by_starts`."""
        return self._caches.by_starts(self, function, given)

    def fill(self, function: Callable[..., Array], given: Any, out: Array) -> None:
        """Write ``function(starts, *given)`` to ``out``."""
        out[...] = function(self.now.starts, *given)

    def get(self, key: str) -> Any:
        """Return arrays that each replay fills with the state."""
        states = self.now.get(key)
        if states is None:
            return None
        tape = self._caches.tape
        made = [tape.like(array) for array in states]
        tape.add(partial(self._load, key), (), {}, made, "first", name="state").barrier = True
        return made

    def _load(self, key: str, *out: Array) -> None:
        for array, state in zip(out, self.now.get(key), strict=True):
            array[...] = state

    def put(self, key: str, arrays: list[Array]) -> None:
        """Store copies of ``arrays`` in each replay."""
        store, tape = partial(self._store, key), self._caches.tape
        tape.add(store, tuple(arrays), {}, (), "hidden", name="state").barrier = True

    def _store(self, key: str, *arrays: Array) -> None:
        self.now.put(key, [array.copy() for array in arrays])

    def extended(self, *_: Any) -> Array:
        """Refused, since its extent differs between replays."""
        raise NotRecordableError("an array as long as the sequence so far")

    kept = shown_from = extended
