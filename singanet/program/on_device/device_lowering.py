"""Recorded calls on a device's arrays: functions of its module, with Python calls between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from singanet.base.heap import address
from singanet.engine.backward import root_of
from singanet.ops.transfers import compiles_for_cuda
from singanet.program.ir import Call, Ref, Token, filled_by, map_leaves
from singanet.program.lower_sweeps import Ready
from singanet.program.lowering import Launches, view_of
from singanet.program.on_device.device_products import (
    WORKSPACE,
    Graphs,
    cublas,
    has_cublas,
    product,
)
from singanet.program.on_device.functions import (
    Element,
    Fused,
    Lowered,
    fused,
    on_device,
    returning,
)
from singanet.types import Array


class OnDevice:
    """A `Lowering` for the arrays of ``xp``.

    It lowers the ``tokens`` of a recording; ``folded`` ones become constants. Host arrays are
    copied once, to ``constants``, which programs may share.
    """

    def __init__(self, xp: Any, tokens: Sequence[Token], folded: Collection[int]) -> None:
        self._tokens, self._folded = tokens, folded
        self._xp = xp
        self.constants: dict[int, tuple[Array, Any]] = {}
        self._numbers = _Numbers(xp)

    @property
    def beside(self) -> int:
        """The bytes of cuBLAS's workspace."""
        return WORKSPACE if compiles_for_cuda(self._xp) and has_cublas() else 0

    def memory(self, size: int, holes: bool = False) -> Array:
        """Return one allocation."""
        made: Array = self._xp.empty(size, np.uint8)
        return made

    def start(self, memory: Array) -> int:
        """Return 0: a device aligns its allocations."""
        return 0

    def array(self, ref: Ref, memory: Any, start: int) -> Any:
        kind: Any = self._xp.ndarray
        return kind(ref.shape, ref.dtype, memory.data + (start + ref.offset), ref.strides)

    def view(self, root: Any, ref: Ref) -> Any:
        """Return the array at ``ref`` in an array of the device or the host."""
        return view_of(root, ref) if type(root) is np.ndarray else self.array(ref, root, 0)

    def outside(self, outside: Mapping[Ref, Array]) -> dict[Ref, Array]:
        """Return the net's own arrays, and copies of host arrays."""
        numbers = {ref: near for ref, near in outside.items() if self._is_number(ref, near)}
        there = self._numbers.places(numbers)
        rest = {ref: near for ref, near in outside.items() if ref not in there}
        return there | {ref: self._outside(ref, near) for ref, near in rest.items()}

    def _is_number(self, ref: Ref, near: Array) -> bool:
        """Whether it is a number on the host that may change between replays."""
        changes = not self._tokens[ref.token].constant and ref.token not in self._folded
        return changes and not ref.shape and type(near) is np.ndarray

    def _outside(self, ref: Ref, near: Array) -> Any:
        if type(near) is not np.ndarray:
            return near
        root = root_of(near)
        offset = address(near) - address(root) if near.size else 0
        known = self.constants.get(id(root))
        if known is None:
            known = self.constants[id(root)] = root, self._xp.asarray(_bytes(root))
        return self.array(Ref(ref.token, offset, *ref[2:]), known[1], 0)

    def ready(self, calls: Sequence[Call], array_of: Callable[[Ref], Array]) -> Replayed:
        ready = [self._ready(call, array_of) for call in calls]
        groups = [Group(self._numbers.bring, (), "numbers")]
        for kind, group in groupby(zip(calls, ready, strict=True), _kind):
            pairs = list(group)
            each = [one for _, one in pairs]
            if kind == "launches":
                groups.append(Group(self._together(each), each, kind))
            elif kind == "draws":
                # One call reads the generator's state.
                outs = [array_of(call.arguments[0]) for call, _ in pairs]
                fill: Any = pairs[0][0].function
                groups.append(Group(partial(fill, *outs), each, kind))
            else:
                groups += [Group(run, (run,), kind) for run in map(self._bringing, pairs)]
        return Replayed(groups, self._wait)

    def once(self, call: Call, array_of: Callable[[Ref], Array]) -> None:
        self._bringing((call, self._ready(call, array_of)))()

    def returning(self, function: Any, named: Mapping[str, Any]) -> Lowered:
        return returning(self._xp, function, named)

    def _bringing(self, pair: tuple[Call, Ready]) -> Ready:
        """A call of the host, followed by the transfer of numbers that it may have changed."""
        call, run = pair
        if not self._numbers.among(call.writes):
            return run
        return partial(_one_after_the_other, (run, self._numbers.bring))

    def _together(self, launches: Sequence[Any]) -> Ready:
        run = [*fused([(launch.element, launch) for launch in launches], self._fused)]
        return Graphs(self._xp, run)

    def _fused(self, group: Fused) -> Callable[[], None]:
        xp = self._xp
        return group.by_cuda(xp) if compiles_for_cuda(xp) else group.by_functions(xp)

    def _ready(self, call: Call, array_of: Callable[[Ref], Array]) -> Ready:
        if call.bind is not None:
            return call.bind(array_of)
        function = call.function
        launch = self._launch_of(call)
        if launch is None:
            # A host call reads the host's numbers, without a transfer from the device.
            array_of = partial(self._numbers.near, array_of)
        run, keywords = launch or (function, call.keywords)
        assert run is not None
        given = [map_leaves(_plain(value), Ref, array_of) for value in call.arguments]
        named = {key: map_leaves(value, Ref, array_of) for key, value in keywords.items()}
        if launch is None:
            return partial(run, *given, **named)
        if function is np.matmul and compiles_for_cuda(self._xp):
            a, b = given
            multiply = self._product(a, b, named["out"])
            if multiply is not None:
                return Launch(multiply, (), {})
        return Launch(run, tuple(given), named, _element(function, given, named))

    def _product(self, a: Any, b: Any, out: Any) -> Callable[[], None] | None:
        blas = cublas(self._xp.cuda.Device().id)
        if blas is None:
            return None
        run = product(blas, a, b, out)
        if run is not None:
            return run
        # Arrays with gaps along both axes are copied.
        near = [self._xp.empty(array.shape, array.dtype) for array in (a, b)]
        multiply = product(blas, near[0], near[1], out)
        if multiply is None:
            return None

        def copy_and_multiply() -> None:
            self._xp.copyto(near[0], a)
            self._xp.copyto(near[1], b)
            multiply()

        return copy_and_multiply

    def ordered(self, calls: Sequence[Call]) -> list[Call]:
        """Return the calls with draws moved forward to the last host call before them.

        So draws do not separate launches.
        """
        made: list[Call] = []
        turn = 0
        for call in calls:
            if call.name == "uniform":
                made.insert(turn, call)
                turn += 1
                continue
            made.append(call)
            if self._launch_of(call) is None:
                turn = len(made)
        return made

    def _launch_of(self, call: Call) -> Lowered | None:
        """The device's form of ``call``; None for a call of the host."""
        function = call.function
        if function is None or call.bind is not None:
            return None
        if isinstance(function, partial) and function.func is filled_by:
            return function, dict(call.keywords)
        return on_device(self._xp, function, call.keywords)

    def expect_known(self, calls: Sequence[Call]) -> None:
        """Refuse ``calls`` that the device does not support. Raises `NotRecordableError`."""
        for call in calls:
            if call.function is not None and call.bind is None:
                on_device(self._xp, call.function, call.keywords)

    def singly(self, calls: Any) -> Iterator[Ready]:
        each: Iterator[Ready] = calls.singly()
        return each

    def _wait(self) -> None:
        self._xp.cuda.get_current_stream().synchronize()

    def launches(self, calls: Any) -> Launches:
        found: Launches = calls.launches()
        return found

    def fill(self, target: Any, value: Any) -> None:
        """Copy ``value`` to ``target``, from the host if it is there."""
        if type(value) is np.ndarray:
            target.set(value)
        else:
            target[...] = value


class Launch:
    """A call whose work is on the device, and during which the host reads no value."""

    __slots__ = ("_function", "_given", "_named", "element")

    def __init__(
        self,
        function: Callable[..., object],
        given: tuple[Any, ...],
        named: Mapping[str, Any],
        element: Element | None = None,
    ) -> None:
        self._function, self._given, self._named = function, given, named
        # The element-wise form, if it has one.
        self.element = element

    def __call__(self) -> None:
        """Launch it."""
        self._function(*self._given, **self._named)


class Group(NamedTuple):
    """Recorded ``calls`` of a kind, and a function ``run`` that runs all of them."""

    run: Ready
    calls: Sequence[Ready]
    kind: str

    def launches(self) -> Launches:
        """The requests of this group to the device."""
        if isinstance(self.run, Graphs):
            return Launches(self.run.graphs, self.run.captured, len(self.run) - self.run.captured)
        count = len(self.calls)
        return Launches(draws=count) if self.kind == "draws" else Launches(on_host=count)


class Replayed:
    """Calls in groups: the recorded calls of each, and whether they are launched together.

    The number of remaining recorded calls is the hint of an iterator. ``wait`` waits for the
    device.
    """

    def __init__(self, groups: Sequence[Group], wait: Callable[[], object]) -> None:
        self._groups, self._wait = tuple(groups), wait

    def __iter__(self) -> Iterator[Ready]:
        return _CountedRuns([g.run for g in self._groups], [len(g.calls) for g in self._groups])

    def launches(self) -> Launches:
        """All requests to the device."""
        return Launches.of_all(group.launches() for group in self._groups)

    def singly(self) -> Iterator[Ready]:
        """Iterate over the recorded calls, each complete on the device when it returns."""
        every = [call for group in self._groups for call in group.calls]
        return iter([partial(_waited, call, self._wait) for call in every])


def _waited(call: Ready, wait: Callable[[], object]) -> None:
    call()
    wait()


class _CountedRuns:
    """An iterator over ``runs``, each of a number of recorded calls."""

    def __init__(self, runs: Sequence[Ready], counts: Sequence[int]) -> None:
        self._pairs = zip(runs, counts, strict=True)
        self._left = sum(counts)

    def __iter__(self) -> _CountedRuns:
        return self

    def __next__(self) -> Ready:
        run, count = next(self._pairs)
        self._left -= count
        return run

    def __length_hint__(self) -> int:
        return self._left


class _Numbers:
    """Numbers of the host that kernels read from arrays without axes, copied together."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        # By host address: the numbers, and their copies on the device.
        self._places: dict[int, tuple[Array, Any]] = {}
        self._rooms: list[_NumberRoom] = []
        self._tokens: dict[int, Array] = {}

    def places(self, numbers: Mapping[Ref, Array]) -> dict[Ref, Any]:
        """The device's copies of the ``numbers``."""
        self._tokens |= {ref.token: near for ref, near in numbers.items()}
        by_place = {address(near): near for near in numbers.values()}
        new = [near for place, near in by_place.items() if place not in self._places]
        if new:
            room = _NumberRoom(self._xp, new)
            self._rooms.append(room)
            for near, far in zip(room.near, room.far, strict=True):
                self._places[address(near)] = near, far
        return {ref: self._places[address(near)][1] for ref, near in numbers.items()}

    def near(self, array_of: Callable[[Ref], Array], ref: Ref) -> Array:
        """The host's array at ``ref`` of such a number; for any other, as ``array_of`` returns."""
        found = self._tokens.get(ref.token)
        return array_of(ref) if found is None else found

    def among(self, tokens: Sequence[int]) -> bool:
        """Whether any of ``tokens`` is such a number."""
        return not self._tokens.keys().isdisjoint(tokens)

    def bring(self) -> None:
        """Copy the changed numbers to the device."""
        for room in self._rooms:
            room.bring()


class _NumberRoom:
    """Memory of the device for numbers, copied in one transfer if any has changed."""

    def __init__(self, xp: Any, numbers: Sequence[Array]) -> None:
        # The widest ones first, so that each is aligned.
        self.near = sorted(numbers, key=lambda near: -near.itemsize)
        ends = np.cumsum([near.itemsize for near in self.near]).tolist()
        starts = [end - near.itemsize for near, end in zip(self.near, ends, strict=True)]
        self._staged = np.empty(ends[-1], np.uint8)
        self._room: Any = xp.empty(ends[-1], np.uint8)
        self.far = [
            xp.ndarray((), near.dtype, self._room.data + start, ())
            for near, start in zip(self.near, starts, strict=True)
        ]
        self._slots = [
            np.ndarray((), near.dtype, self._staged, start)
            for near, start in zip(self.near, starts, strict=True)
        ]
        self._send()

    def bring(self) -> None:
        """Copy the numbers, if any has changed."""
        for near, slot in zip(self.near, self._slots, strict=True):
            if near[()] != slot[()]:
                self._send()
                return

    def _send(self) -> None:
        for near, slot in zip(self.near, self._slots, strict=True):
            slot[...] = near
        self._room.set(self._staged)


def _one_after_the_other(calls: Sequence[Ready]) -> None:
    """Make the calls one after the other."""
    for call in calls:
        call()


def _element(function: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Element | None:
    """The call as an element-wise call, if it is one."""
    if function is np.copyto:
        return Element(function, (given[1],), given[0], named.get("where"))
    if isinstance(function, np.ufunc) and named.keys() <= {"out", "casting"} and function.nout == 1:
        return Element(function, tuple(given), named["out"])
    return None


def _kind(pair: tuple[Call, Ready]) -> str:
    call, ready = pair
    if isinstance(ready, Launch):
        return "launches"
    return "draws" if call.name == "uniform" else "host"


def _bytes(root: Array) -> Array:
    """All bytes of an array that owns its memory."""
    return np.ndarray((root.nbytes,), np.uint8, root.ravel(order="K")) if root.nbytes else root


def _plain(value: Any) -> Any:
    """``value`` with Python numbers instead of NumPy arrays without axes."""
    return value[()] if type(value) is np.ndarray and value.ndim == 0 else value
