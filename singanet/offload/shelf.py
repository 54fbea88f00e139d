"""The parameters in memory and the room that they take.

Two files, the generations, take turns. A step reads one of them and writes its changes to the
other; at its end the rest is copied and the text file ``latest`` is replaced by one that names the
other. So there is a whole checkpoint at any moment, and each array is written once a step. One
thread reads ahead and writes back.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.files import replacing
from singanet.base.heap import LentMemory
from singanet.checkpoint import Entry
from singanet.checkpoint.entry import bytes_of
from singanet.checkpoint.formats import LATEST
from singanet.device import Device, cpu
from singanet.offload.generation import AccessOrder, Generation, PassFile
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
        return np.frombuffer(mmap.mmap(-1, nbytes) if nbytes else b"", np.uint8)

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

    def new(self, nbytes: int) -> Array:
        return self._transfers.new((nbytes,), np.dtype(np.uint8))

    def put(self, array: Array) -> Array:
        return self._device.put(array)

    def fill(self, array: Array, read: Move) -> None:
        read(bytes_of(self._transfers.staged(array)))
        self._transfers.send(array)

    def drain(self, array: Array, write: Move) -> None:
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
_IDLE = 0.2
"""Seconds that the thread waits for more to do before it ends."""


class _LoadedArray:
    """An array in memory; ``memory`` is the shelf's that lends it, or None."""

    __slots__ = ("array", "memory", "state")

    def __init__(self, array: Array, memory: LentMemory | None, state: str) -> None:
        self.array = array
        self.memory = memory
        self.state = state  # "reading", "clean", "lent" or "writing"


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
        self._schedule = AccessOrder()
        self._held: dict[str, _LoadedArray] = {}
        self._free: list[LentMemory] = []
        self._writes: deque[str] = deque()
        self._demand: str | None = None
        self._error: tuple[str, Exception] | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
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
        self._drain()
        with self._changed:
            self._changed.wait_for(self._is_quiet)
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
            if self._held:
                self.put_back()
                self._drain()
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
        with self._changed:
            # Python may have read the values before.
            self._drop_when_idle(name)
            self._is_fresh(name)

    # -- for the thread of the net --------------------------------------------------------------

    def follow(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Read ahead in the order of ``groups``, which comes again and again."""
        with self._changed:
            if [group for group in groups if group] != self._schedule.groups:
                self._schedule = AccessOrder(groups)

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
            with self._changed:
                found = self._get(name, ("reading",)).array.view()
        self.room.lock(found)
        return found

    def lend(self, name: str) -> Array:
        """The array, which may be changed until `put_back`."""
        if name in self.loaded:
            self._handed.append(self.loaded[name].view())
            return self._handed[-1]
        self._pause(name)
        with self._changed:
            held = self._get(name, ("reading", "writing"))
            held.state = "lent"
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
        with self._changed:
            for name in list(self._held) if names is None else names:
                held = self._held.get(name)
                if held is None or held.state != "lent":
                    continue
                mine = held.array.view()
                self.room.lock(held.array)
                held.array, held.state = mine, "clean"
                if changed:
                    self._write_later(name, held)
            self._wake()

    def write(self, name: str, array: Array) -> None:
        """Write ``array`` as the values of ``name``, before this returns."""
        if name in self.loaded:
            self.loaded[name][...] = self.room.put(array).reshape(self.loaded[name].shape)
            return
        self._pause(name)
        entry = self.entry(name)
        data = on_host(array).astype(entry.dtype, copy=False).reshape(entry.shape)
        with self._changed:
            self._drop_when_idle(name)
            self._kept -= {name}
        self.next.write(name, bytes_of(data))
        self._is_fresh(name)

    def blank(self, name: str) -> None:
        """Have zeros as the values of ``name``, until it is written."""
        with self._changed:
            self._drop_when_idle(name)
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
        self._drain()
        if self.fresh:
            self.commit(small())
        self._move(entries)
        return True

    def divide(
        self, parts: Mapping[str, Sequence[Entry]], small: Callable[[], Mapping[str, Array]]
    ) -> bool:
        """Have ``parts`` in the place of the arrays that they are listed by, and of no others.

        ``small`` is as for `commit`. Returns whether they are others than before.
        """
        if parts == self._parts:
            return False
        self._drain()
        if self.fresh:
            self.commit(small())
        changed = [each for known in (self._parts, parts) for each in known.items()]
        with self._changed:
            self._changed.wait_for(self._is_quiet)
            for name, each in changed:
                for unit in (name, *(part.name for part in each)):
                    self._drop_when_idle(unit)
            for file in (self.latest, self.next):
                file.divide(parts)
            self._parts, self._kept = parts, frozenset()
        return True

    def commit(self, small: Mapping[str, Array]) -> None:
        """Make the folder a checkpoint of all that was written, and of the arrays ``small``."""
        self._drain()
        for name in sorted(self.next.behind - small.keys()):
            self._copy(name)
            if name in self._blank:
                self._is_fresh(name)
        for name, array in small.items():
            self.next.write(name, bytes_of(on_host(array)))
        self.next.flush()
        with replacing(self.folder / LATEST) as beside:
            beside.write_text(self.next.path.name, "ascii")
        with self._changed:
            self.latest, self.next = self.next, self.latest
            self.latest.behind = set()
            self.next.behind |= self.fresh
            self.fresh = set()
        self._move(self.latest.entries.values())

    def roll_back(self) -> None:
        """Return to the last `commit`, dropping later loans and writes."""
        with self._changed:
            self._writes.clear()
            self._changed.wait_for(self._is_quiet)
            self._error = None
            for name in list(self._held):
                if name in self.fresh or self._held[name].state not in ("clean",):
                    del self._held[name]
            self.next.behind |= self.fresh
            self.fresh, self._kept = set(), frozenset()
            self._blank.clear()

    def close(self) -> None:
        """Free the memory, and end the thread."""
        with self._changed:
            self._schedule = AccessOrder()
            self._writes.clear()
            self._changed.wait_for(self._is_quiet)
            self._held.clear()
            self._free.clear()
            self._program = None

    def _get(self, name: str, busy: tuple[str, ...]) -> _LoadedArray:
        self._schedule.advance(name)
        try:
            while True:
                self._complain()
                held = self._held.get(name)
                if held is not None and held.state not in busy:
                    self._wake()
                    return held
                self._demand = name
                self._wake()
                self._changed.wait()
        finally:
            self._demand = None

    def _hold(self, name: str, held: _LoadedArray) -> _LoadedArray:
        self._held[name] = held
        self.peak = max(self.peak, self._total())
        return held

    def _drop_when_idle(self, name: str) -> None:
        busy = ("reading", "writing")
        self._changed.wait_for(lambda: name not in self._held or self._held[name].state not in busy)
        self._held.pop(name, None)

    def _is_fresh(self, name: str) -> None:
        self.fresh.add(name)
        self._blank.discard(name)
        self.next.behind.discard(name)

    def _drain(self) -> None:
        with self._changed:
            self._wake()
            self._changed.wait_for(lambda: self._error is not None or not self._is_writing())
            self._complain()

    def _move(self, entries: Iterable[Entry]) -> None:
        """Have places for ``entries`` in the next file, while nobody reads or writes there."""
        with self._changed:
            self._changed.wait_for(self._is_quiet)
            self.next.lay_out(entries)

    def _is_writing(self) -> bool:
        return any(held.state == "writing" for held in self._held.values())

    def _is_quiet(self) -> bool:
        return self._thread is None or not any(
            held.state in ("reading", "writing") and name not in self._writes
            for name, held in self._held.items()
        )

    def _complain(self) -> None:
        if self._error is not None:
            error, self._error = self._error[1], None
            raise error

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

    # -- for the thread that reads and writes; the lock is acquired
    # ---------------------------------

    def _wake(self) -> None:
        if self._thread is None:
            if sys.is_finalizing():
                # An abandoned walk is closed at the end of Python, when no thread can start.
                return
            # A daemon, since unwritten arrays are not part of a checkpoint yet.
            self._thread = threading.Thread(target=self._run, name="offloading", daemon=True)
            self._thread.start()
        else:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                job = self._next_job()
                if job is None:
                    self._changed.wait(_IDLE)
                    job = self._next_job()
                if job is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
                held = self._held[job]
                reads = held.state == "reading"
            error: Exception | None = None
            try:
                if reads:
                    self.fill(job, held.array)
                else:
                    self.room.drain(held.array, partial(self.next.write, job))
            except Exception as caught:  # noqa: BLE001 - raised by the next wait for it
                error = caught
            with self._changed:
                self._done(job, held, reads, error)
            del held

    def _done(self, name: str, held: _LoadedArray, read: bool, error: Exception | None) -> None:
        if error is not None:
            self._error = name, error
            if read:
                del self._held[name]
            else:
                held.state = "lent"  # and so written once more, at the next chance
        else:
            held.state = "clean"
            if not read:
                self._is_fresh(name)
        self._changed.notify_all()

    def _next_job(self) -> str | None:
        """The next array to read or write: a requested one, else a changed one, else one ahead."""
        if self._error is not None:
            return None
        wanted = self._demand
        if (
            wanted is not None
            and wanted not in self._held
            and (self._make_room(self.entry(wanted).nbytes, -1) or not self._writes)
        ):
            return self._start_reading(wanted)
        if self._writes:
            return self._writes.popleft()
        for distance, name in self._schedule.coming():
            if name not in self._held and self._is_stored(name):
                fits = self._make_room(self.entry(name).nbytes, distance)
                return self._start_reading(name) if fits else None
        return None

    def _is_stored(self, name: str) -> bool:
        return name in self.fresh or name in self._blank or name in self.latest.units

    def _start_reading(self, name: str) -> str:
        entry = self.entry(name)
        memory = self._memory(entry.nbytes)
        array = memory.lend(entry.shape, entry.dtype)
        self._hold(name, _LoadedArray(array, memory, "reading"))
        return name

    def _write_later(self, name: str, held: _LoadedArray) -> None:
        held.state = "writing"
        self._writes.append(name)

    def _total(self) -> int:
        free = sum(memory.nbytes for memory in self._free)
        held = sum(held.array.nbytes for held in self._held.values())
        of_program = 0 if self._program is None else self._program[1].nbytes - self._on_top
        return free + held + of_program

    def _make_room(self, nbytes: int, distance: int) -> bool:
        """Whether there is room after dropping arrays needed later than in ``distance`` groups.

        Free memory of the same size is room, unless the array comes from ``outside``.
        """
        while (total := self._total()) + nbytes > self.keep:
            free = any(memory.nbytes == nbytes for memory in self._free)
            if free and total <= self.keep:
                return True
            if self._free:
                self._free.pop()
                continue
            # Never drop a requested array, however late it is in the schedule.
            known = self._held.items()
            clean = [k for k, held in known if held.state == "clean" and k != self._demand]
            victim = max(clean, key=self._schedule.distance, default=None)
            if victim is not None and self._schedule.distance(victim) > distance:
                self._evict(victim)
            elif self._program is not None and self._run_now is None:
                self._drop_program()
            else:
                return False
        return True

    def _evict(self, name: str) -> None:
        memory = self._held.pop(name).memory
        # Somebody may still have a view of it, as a layer's context.
        if memory is not None and not memory.is_lent:
            self._free.append(memory)

    def _memory(self, nbytes: int) -> LentMemory:
        for k, memory in enumerate(self._free):
            if memory.nbytes == nbytes:
                return self._free.pop(k)
        return LentMemory(self.room.new(nbytes))
