"""The parameters in memory and the room that they take.

Two files, the generations, take turns. A step reads one of them and writes its changes to the
other; at its end the rest is copied and the text file ``latest`` is replaced by one that names the
other. So there is a whole checkpoint at any moment, and each array is written once a step.
Programs read ahead and write behind; other readers of an array wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.files import replacing
from singanet.base.heap import LentMemory, own_pages
from singanet.base.processes import free_in_children
from singanet.checkpoint import Entry
from singanet.checkpoint.entry import bytes_of
from singanet.checkpoint.formats import LATEST
from singanet.device import Device, cpu
from singanet.offload.generation import Generation, PassFile
from singanet.ops.transfers import Transfers
from singanet.program.layout import ALIGNMENT
from singanet.program.loads import LoadRun
from singanet.types import Array

Move = Callable[[memoryview], None]
"""Fills bytes from a file, or writes them to it."""


class Room:
    """The CPU's memory."""

    xp: Any = np

    def new(self, nbytes: int) -> Array:
        """Allocate ``nbytes`` in pages of their own, which return to the system when freed."""
        return np.frombuffer(own_pages(nbytes) if nbytes else b"", np.uint8)

    def put(self, array: Array) -> Array:
        """Return ``array`` as an array of this memory."""
        return np.asarray(array)

    def fill(self, array: Array, read: Move) -> None:
        """Have ``read`` fill ``array``."""
        read(bytes_of(array))

    def drain(self, array: Array, write: Move) -> None:
        """Have ``write`` write ``array``."""
        write(bytes_of(array))

    def lock(self, array: Array) -> None:
        """Make ``array`` read-only, if this memory can forbid writing."""
        array.flags.writeable = False


class DeviceRoom(Room):
    """The memory of ``device``, whose arrays cannot be made read-only; copies are `Transfers`."""

    def __init__(self, device: Device) -> None:
        self.xp = device.ops.xp
        self._device = device
        self._transfers = Transfers(self.xp, device.scope)
        # A program's thread makes transfers, and whoever reads an array.
        self._one = free_in_children(threading.Lock())

    def new(self, nbytes: int) -> Array:
        return self._transfers.new((nbytes,), np.dtype(np.uint8))

    def put(self, array: Array) -> Array:
        return self._device.put(array)

    def fill(self, array: Array, read: Move) -> None:
        with self._one:
            read(bytes_of(self._transfers.staged(array)))
            self._transfers.send(array)

    def drain(self, array: Array, write: Move) -> None:
        with self._one:
            write(bytes_of(self._transfers.fetch(array)))

    def lock(self, array: Array) -> None:
        """Do nothing: a device's arrays cannot be read-only."""


def room_on(device: Device) -> Room:
    """The memory for the arrays of a net on ``device``."""
    return Room() if device.ops.xp is np else DeviceRoom(device)


def on_host(array: Array) -> Array:
    """``array`` as NumPy's, in one piece."""
    return np.ascontiguousarray(cpu().put(array))


FILES = ("a.safetensors", "b.safetensors")
_PIECE = 4 << 20


class _LoadedArray:
    """An array in ``memory`` of the shelf; ``lent`` if a caller may change it."""

    __slots__ = ("array", "lent", "memory")

    def __init__(self, array: Array, memory: LentMemory) -> None:
        self.array, self.memory, self.lent = array, memory, False


class OffloadStore:
    """The arrays of a folder by name; at most ``keep`` bytes of unlent ones are in memory.

    This memory is ``room``. The generation ``latest`` is a checkpoint, ``next`` becomes one; the
    arrays ``fresh`` have their last values in ``next``.
    """

    def __init__(
        self, folder: Path, keep: int, latest: Generation, following: Generation, room: Room
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.room = room
        self.latest = latest
        self.next = following
        self.fresh: set[str] = set()
        # The arrays that are zeros until they are written.
        self._blank: set[str] = set()
        self._parts: Mapping[str, Sequence[Entry]] = {}
        # The most recently used arrays are last.
        self._held: dict[str, _LoadedArray] = {}
        self._free: list[LentMemory] = []
        # A program's thread reads and writes meanwhile.
        self._lock = free_in_children(threading.RLock())
        self.peak = 0
        # The arrays that a program uses now, its run, and whether that meets its caller; the views
        # that this one got; and the memory that programs have: whose it is, and the names of the
        # arrays in it.
        self.loaded: dict[str, Array] = {}
        self._run_now: LoadRun | None = None
        self._rests = False
        self._handed: list[Array] = []
        self._program: tuple[Any, Array] | None = None
        self._on_top = 0
        self._kept: frozenset[str] = frozenset()

    # -- for programs ---------------------------------------------------------------------------

    def claim(self, program: object, nbytes: int, beside: int) -> Array:
        """Return memory for ``program``, the same as before if no other program had it meanwhile.

        There is room for ``beside`` further bytes.
        """
        self.leave()
        self.put_back()
        with self._lock:
            for name in list(self._held):
                self._evict(name)
            self._free.clear()
            if self._program is None or self._program[0] is not program:
                memory = None if self._program is None else self._program[1]
                self._kept = frozenset()
                most = max(nbytes, self.keep - beside)
                if memory is None or not nbytes <= memory.nbytes - ALIGNMENT <= most:
                    self._drop_program()
                    memory = self.room.new(nbytes + ALIGNMENT)
                self._program = program, memory
                # Arrays that the program's calls compute are not counted.
                self._on_top = ALIGNMENT + max(-beside, 0)
                self.peak = max(self.peak, self._total())
            return self._program[1]

    def _drop_program(self) -> None:
        if self._program is not None:
            self._program[0].forget()
        self._program, self._kept = None, frozenset()

    @property
    def replays(self) -> bool:
        """Whether a program runs, so that no other code may change arrays."""
        return self._run_now is not None and not self._rests

    def begin(self, run: LoadRun) -> frozenset[str]:
        """Start the replay of ``run``; return the names of the arrays in the memory."""
        self._run_now, names, self._kept = run, self._kept, frozenset()
        return names

    def end(self, names: frozenset[str]) -> None:
        """End a replay; the arrays ``names`` stay in its memory."""
        self.rest(False)
        self.loaded.clear()
        self._run_now, self._kept = None, names

    def rest(self, rests: bool) -> None:
        """Set whether the replay ``rests``, so that its caller may use the store.

        Arrays that it got are read-only afterwards.
        """
        if not rests:
            for array in self._handed:
                self.room.lock(array)
            self._handed.clear()
            self.put_back()
        self._rests = rests

    def leave(self) -> None:
        """End a replay that rests."""
        if self._rests and self._run_now is not None:
            self._run_now.leave()

    def scratch(self) -> PassFile:
        """Return a file for arrays that the calls of a run compute."""
        return PassFile(self.folder)

    def fill(self, name: str, array: Array) -> None:
        """Read an array."""
        self.room.fill(array, partial(self._read, name))

    def _read(self, name: str, out: memoryview) -> None:
        if name in self._blank:
            np.frombuffer(out, np.uint8)[...] = 0
        else:
            (self.next if name in self.fresh else self.latest).read(name, out)

    def drain(self, name: str, array: Array) -> None:
        """Write an array."""
        self.room.drain(array, partial(self.next.write, name))
        with self._lock:
            # Python may have read the values before.
            self._held.pop(name, None)
            self._is_fresh(name)

    # -- for the thread of the net --------------------------------------------------------------

    def entry(self, name: str) -> Entry:
        """Type and shape of an array."""
        for known in (self.next.units, self.next.entries):
            if name in known:
                return known[name]
        return self.latest.units[name]

    def read(self, name: str) -> Array:
        """The array, read-only."""
        if name in self.loaded:
            found = self.loaded[name].view()
        else:
            if self._run_now is not None:
                self._run_now.settle(name)
            with self._lock:
                found = self._get(name).array.view()
        self.room.lock(found)
        return found

    def lend(self, name: str) -> Array:
        """The array, which may be changed until `put_back`."""
        if name in self.loaded:
            self._handed.append(self.loaded[name].view())
            return self._handed[-1]
        self._pause(name)
        with self._lock:
            held = self._get(name)
            held.lent = True
            self._kept -= {name}
            return held.array

    def _pause(self, name: str) -> None:
        """Have the run that rests read the array ``name`` anew, if it needs it."""
        if self._run_now is not None and self._rests:
            self._run_now.pause(name)

    def put_back(self, names: Iterable[str] | None = None, changed: bool = True) -> None:
        """End the loan of ``names``, or of all; ``changed`` arrays are written.

        Other references to them become read-only.
        """
        with self._lock:
            for name in list(self._held) if names is None else names:
                held = self._held.get(name)
                if held is None or not held.lent:
                    continue
                if changed:
                    self.room.drain(held.array, partial(self.next.write, name))
                    self._is_fresh(name)
                mine = held.array.view()
                self.room.lock(held.array)
                held.array, held.lent = mine, False

    def write(self, name: str, array: Array) -> None:
        """Write ``array`` as the values of ``name``, before this returns."""
        if name in self.loaded:
            self.loaded[name][...] = self.room.put(array).reshape(self.loaded[name].shape)
            return
        self._pause(name)
        entry = self.entry(name)
        data = on_host(array).astype(entry.dtype, copy=False).reshape(entry.shape)
        with self._lock:
            self._held.pop(name, None)
            self._kept -= {name}
            self.next.write(name, bytes_of(data))
            self._is_fresh(name)

    def blank(self, name: str) -> None:
        """Have zeros as the values of ``name``, until it is written."""
        with self._lock:
            self._held.pop(name, None)
            self._kept -= {name}
            self._blank.add(name)
            self.fresh.discard(name)
            self.next.behind.add(name)

    def lay_out(self, entries: Sequence[Entry], small: Callable[[], Mapping[str, Array]]) -> bool:
        """Have places for ``entries`` from now on; ``small`` is as for `commit`.

        Returns whether they are others than before.
        """
        if self.next.entries == {entry.name: entry for entry in entries}:
            return False
        if self.fresh:
            self.commit(small())
        self.next.lay_out(entries)
        return True

    def divide(
        self, parts: Mapping[str, Sequence[Entry]], small: Callable[[], Mapping[str, Array]]
    ) -> bool:
        """Have ``parts`` in the place of the arrays that they are listed by, and of no others.

        ``small`` is as for `commit`. Returns whether they are others than before.
        """
        if parts == self._parts:
            return False
        if self.fresh or self._blank:
            # Zeros that are not written have no place in the latest generation.
            self.commit(small())
        changed = [each for known in (self._parts, parts) for each in known.items()]
        with self._lock:
            for name, each in changed:
                for unit in (name, *(part.name for part in each)):
                    self._held.pop(unit, None)
            for file in (self.latest, self.next):
                file.divide(parts)
            self._parts, self._kept = parts, frozenset()
        return True

    def commit(self, small: Mapping[str, Array]) -> None:
        """Make the folder a checkpoint of all that was written, and of the arrays ``small``."""
        for name in sorted(self.next.behind - small.keys()):
            self._copy(name)
            if name in self._blank:
                self._is_fresh(name)
        for name, array in small.items():
            self.next.write(name, bytes_of(on_host(array)))
        self.next.flush()
        with replacing(self.folder / LATEST) as beside:
            beside.write_text(self.next.path.name, "ascii")
        with self._lock:
            self.latest, self.next = self.next, self.latest
            self.latest.behind = set()
            self.next.behind |= self.fresh
            self.fresh = set()
        self.next.lay_out(self.latest.entries.values())

    def roll_back(self) -> None:
        """Return to the last `commit`, dropping later loans and writes."""
        with self._lock:
            for name in list(self._held):
                if name in self.fresh or self._held[name].lent:
                    del self._held[name]
            self.next.behind |= self.fresh
            self.fresh, self._kept = set(), frozenset()
            self._blank.clear()

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            self._held.clear()
            self._free.clear()
            self._program = None

    def _get(self, name: str) -> _LoadedArray:
        """The array in memory, which is read if it is not there."""
        held = self._held.pop(name, None)
        if held is None:
            entry = self.entry(name)
            memory = self._memory(entry.nbytes)
            held = _LoadedArray(memory.lend(entry.shape, entry.dtype), memory)
            self.fill(name, held.array)
        self._held[name] = held
        self.peak = max(self.peak, self._total())
        return held

    def _is_fresh(self, name: str) -> None:
        self.fresh.add(name)
        self._blank.discard(name)
        self.next.behind.discard(name)

    def _copy(self, name: str) -> None:
        """Copy the values of the latest generation to the next; zeros if it has none."""
        entry = self.next.units[name]
        there = self.latest.units.get(name) == entry and name not in self._blank
        piece = bytearray(min(entry.nbytes, _PIECE))
        for start in range(0, entry.nbytes, _PIECE):
            part = memoryview(piece)[: min(entry.nbytes - start, _PIECE)]
            if there:
                self.latest.read(name, part, start)
            self.next.write(name, part, start)

    def _total(self) -> int:
        free = sum(memory.nbytes for memory in self._free)
        held = sum(held.array.nbytes for held in self._held.values())
        of_program = 0 if self._program is None else self._program[1].nbytes - self._on_top
        return free + held + of_program

    def _memory(self, nbytes: int) -> LentMemory:
        """Return memory for an array; the arrays that were not requested are dropped first."""
        while (total := self._total()) + nbytes > self.keep:
            if total <= self.keep and any(memory.nbytes == nbytes for memory in self._free):
                break
            victim = next((name for name, held in self._held.items() if not held.lent), None)
            if self._free:
                self._free.pop()
            elif victim is not None:
                self._evict(victim)
            elif self._program is not None and self._run_now is None:
                self._drop_program()
            else:
                # Lent arrays have to stay.
                break
        for k, memory in enumerate(self._free):
            if memory.nbytes == nbytes:
                return self._free.pop(k)
        return LentMemory(self.room.new(nbytes))

    def _evict(self, name: str) -> None:
        memory = self._held.pop(name).memory
        # Somebody may still have a view of it, as a layer's context.
        if not memory.is_lent:
            self._free.append(memory)
