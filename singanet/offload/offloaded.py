"""Steps and passes of a net whose large parameters are in a folder."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base import terms
from singanet.base.described import changes
from singanet.base.processes import free_in_children
from singanet.base.terms import Terms
from singanet.checkpoint import Entry
from singanet.checkpoint.entry import bytes_of
from singanet.engine.backward import Pass, WatchedPass
from singanet.engine.executor import Capabilities, LayerByLayer, NetExecutor
from singanet.engine.feeds import check_feed
from singanet.engine.model import StepRequest
from singanet.engine.plan import Plan
from singanet.engine.recompute.recomputer import Recomputer
from singanet.errors import ArgumentError, CallOrderError, DataError, FileAccessError
from singanet.offload.parts import (
    part_of,
    rows_of_parts,
    state_at_a_time,
)
from singanet.offload.shelf import OffloadStore, on_host
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import ParamState
from singanet.optimizer.wrapper import StageTraits, Wrapper
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.params.storage import SMALL, ParamStorage
from singanet.program.programs import Programs
from singanet.program.trace.abstract import current_tape
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked
    from singanet.program.replay.replay import Replay

SESSION = "session"
"""The array of the file with the generator, as JSON in bytes; files of fits have it too."""
_SESSION_BYTES = 1 << 14


class FolderPlace(ParamStorage):
    """A folder, with the parameter under ``name`` of its shelf."""

    __slots__ = ("name", "shelf")

    takes = (terms.IN_MEMORY,)
    place = "in a folder"
    bounded = loads = True
    way_back = "call onload() of the net that was offloaded"

    def __init__(self, shelf: OffloadStore, name: str) -> None:
        self.shelf, self.name = shelf, name

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.shelf.entry(self.name).dtype

    def read(self) -> Array:
        tape = current_tape()
        if tape is not None:
            return stored_place(tape, self.shelf, self.shelf.entry(self.name))
        return self.shelf.read(self.name)

    def lend(self) -> Array:
        # A program changes the array in its own memory, so no other code may.
        if current_tape() is not None or self.shelf.replays:
            return self.read()
        return self.shelf.lend(self.name)

    def write(self, array: Array) -> None:
        if self.shelf.replays:
            raise CallOrderError(
                f"parameter {self.name!r}",
                expected="new values between steps and passes",
                received="some within a recorded one, by its layer, loss or measure",
                advice="write them after it has returned",
            )
        self.shelf.write(self.name, array)


def stored_place(tape: Any, shelf: OffloadStore, entry: Entry) -> Any:
    """Return the place of an array of ``shelf`` on a tape."""
    return tape.stored(shelf, entry.name, entry.shape, entry.dtype)


class _Behind(Wrapper):
    """A stage around reducers that is notified of updates when no stage uses the arrays any more.

    It stores the updated arrays in the folder by ``leave``.
    """

    traits = StageTraits(reads="nothing")

    def __init__(
        self, optimizer: Optimizer | Wrapper, leave: Callable[[Sequence[str]], object]
    ) -> None:
        super().__init__(optimizer)
        self.arguments.pop("leave")
        self._leave = leave

    def updated(self, names: Sequence[str], values: Sequence[Array]) -> None:
        self._leave(names)


class OffloadExecutor(LayerByLayer):
    """Carries calls out by programs, which load arrays from a folder and store them there.

    What is not recorded runs layer by layer, and waits for each array. ``before`` is the executor
    of the net in memory. Parameters of up to 64 KiB, running state and what optimizers keep other
    than in ``slots`` stay in memory. With ``activations`` the arrays that programs save for
    backward go to the folder as well, and nothing is recomputed.
    """

    can = Capabilities(
        Terms(
            takes=(terms.IN_MEMORY, terms.RECORDED),
            received="an offloaded net",
            remedy="call net.onload() first",
        )
    )
    streams = True

    def __init__(
        self, net: Any, shelf: OffloadStore, before: NetExecutor[Any], activations: bool = False
    ) -> None:
        super().__init__(Recomputer(getattr(before, "recompute", "none")))
        self.shelf = shelf
        self.before = before
        self.rule: Optimizer | None = None
        self.programs = Programs(getattr(before, "enabled", True), self._recompute.level)
        self.programs.at_once = True
        if activations:
            self.programs.recompute, self.programs.spills = "none", shelf
        self._one = free_in_children(threading.Lock())
        # The thread whose program runs.
        self._holder: int | None = None
        # By parameter, the rows whose state is read together, if it is read in parts.
        self._rows: dict[str, list[slice]] = {}
        self._net = net
        self._process = os.getpid()
        # Whether updates of a layer are observed, and whether state may be changed now.
        self._sees_updates = self._lends = False
        self._rule_chain = UpdateChain(None)
        self._behind: _Behind | None = None
        # Whether a step updates after its walk back, and whether it ends after that.
        self._updates_late = self._ends_late = False
        self._bound: Any = None
        self._finish: Callable[[], object] = lambda: None

    def __deepcopy__(self, memo: dict[int, Any]) -> NetExecutor[Any]:
        """An executor for a net in memory: a copy of an offloaded net is in memory."""
        return type(self.before)()

    def __reduce__(self) -> Any:
        return type(self.before), ()

    @property
    def notes(self) -> list[str]:
        """The Python steps of recorded steps, and why others are not recorded."""
        return [*self.programs.notes, *self.programs.refusals]

    # -- the interface of executors --------------------------------------------------------------

    def evaluate(
        self,
        net: Any,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        other: Plan | None = None,
    ) -> dict[str, Any]:
        self._expect_own_process()
        if other is None and not asked:
            made: dict[str, Any] | None = self._by_program(
                lambda: self.programs._program_of_evaluation(net, feed),
                lambda found, arena: found.outputs(arena, feed),
            )
            if made is not None:
                return made
        self._begin()
        return super().evaluate(net, feed, asked, other)

    def forward(
        self,
        net: Any,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
        other: Plan | None = None,
    ) -> Pass:
        """As `LayerByLayer`. Errors: the folder fails, and the net is as it was; no room."""
        # Other ranks' gradients come when the layer's arrays are there no more.
        late = any(not (stage._alone or stage._local) for stage in self._rule_chain.reducers)
        if other is None and not (asked or late) and self._turns(net):
            with self._turn():
                self._adopt_new()
                self.move_state()
                made = self.programs._passes(net, feed, self._turn, self.rule)
            if made is not None:
                return WatchedPass(made, self.watched)
        self._begin()
        return WatchedPass(super().forward(net, feed, asked, starts, other), self.watched)

    def step(self, net: Any, request: StepRequest) -> tuple[float, float | None]:
        """Run a step. Errors: if the folder fails, the step is undone."""
        self._expect_own_process()
        if self.shelf.replays:
            raise CallOrderError(
                "net.step",
                expected="no other step of the net under way",
                received="a call from within one, by its measure or loss",
                advice="step after it has returned, or step a copy.deepcopy of the net",
            )
        self.bind(request.optimizer)
        chain = UpdateChain(request.optimizer)
        several = [stage for stage in chain.reducers if not stage._alone]
        self._ends_late = bool(several)
        self._updates_late = not all(stage._local for stage in several)
        # Mixed precision has to be outermost, and servers of rows refuse stages that read values:
        # their updates are stored at the end of the step.
        serves = any(terms.VALUES in stage.traits.takes for stage in several)
        alone = chain.scaled is not None or serves
        if self._updates_late and not alone:
            request = request._replace(optimizer=self._behind_all(request.optimizer))
        self._sees_updates = self.rule is not None and request.on_layer is None
        try:
            made = self._by_program(
                lambda: self._program_of_step(net, request),
                lambda found, arena: self._replayed(found, arena, net, request),
            )
            if made is None:
                made = super().step(net, request)
            if self._ends_late:
                self.commit()
            return made
        except FileAccessError:
            self.roll_back()
            raise
        finally:
            self._sees_updates = self._updates_late = self._ends_late = False

    def _turns(self, net: Any) -> bool:
        """Whether calls may be made by programs now.

        One program runs at a time: what its Python steps call runs by the layers.
        """
        self._expect_own_process()
        return bool(net._passes_are_its_own) and self._holder != threading.get_ident()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """A block in which a program uses the folder. Errors: it is inside another such block."""
        if self._holder == threading.get_ident():
            raise CallOrderError(
                "net.backward",
                expected="a walk that continues after the present step or pass",
                received="a walk that continues within it, by its measure, loss or layer",
                advice="end the walk before, or after it",
            )
        with self._one:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    def _by_program(
        self, find: Callable[[], Replay | None], run: Callable[[Replay, Array], Any]
    ) -> Any:
        """Return the result of ``run`` on the program found; None if there is none."""
        if not self._turns(self._net):
            return None
        with self._turn():
            self._adopt_new()
            found = find()
            if found is None:
                return None
            arena = self.programs.take(found)
            try:
                return run(found, arena)
            finally:
                if not found.under_way:
                    self.programs.give_back(arena)

    def _program_of_step(self, net: Any, request: StepRequest) -> Replay | None:
        self.move_state()
        chain = self.register(net, request.optimizer)
        feed = check_feed(net._execution_plan(), request.x, net.device, net.dtype)
        return self.programs._program_of_step(net, feed, request, chain)

    def _replayed(
        self, found: Replay, arena: Array, net: Any, request: StepRequest
    ) -> tuple[float, float | None]:
        """Take a step by a program; an error undoes it."""
        feed = check_feed(net._execution_plan(), request.x, net.device, net.dtype)
        names = [param.name for param in self._trained()]
        before = self._counts(names)
        try:
            made = found.step(arena, feed, request.y, request.weight, request.measure)
            if before != self._counts(names):
                self.commit()
        except BaseException:
            self.roll_back()
            raise
        return made

    def _behind_all(self, optimizer: Any) -> _Behind:
        """``optimizer`` within the stage that hears of late updates; asked again, the same."""
        if self._behind is None or self._behind.optimizer is not optimizer:
            self._behind = _Behind(optimizer, lambda names: self._leave(names, True))
        return self._behind

    def gradients(self, net: Any, asked: Asked) -> Iterator[LayerGradients]:
        if self._turns(net):
            with self._turn():
                self._adopt_new()
                found = self.programs._answers(net, asked, self._turn)
            if found is not None:
                return self.watched(found) if asked.streamed else found
        self._begin()
        return self.watched(super().gradients(net, asked))

    def watched(self, items: Iterable[LayerGradients]) -> Generator[LayerGradients, None, None]:
        """``items``, whose parameters and state are there while they are updated.

        At the end the folder becomes a checkpoint, unless nothing was updated.
        """
        moved = False
        for item in items:
            names, handed = list(item.names), [item]
            del item
            counts = self._counts(names)
            self._lends = True
            try:
                # Nothing of the layer stays in this frame while the caller has it.
                yield handed.pop()
            finally:
                self._lends = False
                changed = not self._sees_updates or counts != self._counts(names)
                moved = moved or changed
                self._leave(names, changed)
        if moved and not self._ends_late:
            self.commit()

    # -- parameters and state -------------------------------------------------------------------

    def commit(self) -> None:
        """Make the folder a checkpoint of the net as it is."""
        self.shelf.leave()
        self.shelf.put_back()
        self.shelf.commit(self._small())

    def bind(self, optimizer: Any, of_folder: bool = False) -> None:
        """Store the state of ``optimizer`` in the folder as well, instead of another's.

        With ``of_folder`` it gets the state that is there. Errors: a ``keep`` that is too small for
        a layer; state in the folder of another optimizer, or without a bound one.
        """
        chain = UpdateChain(optimizer)
        rule = chain.own_rule
        as_it_is = rule, chain.optimizer, self._net.version, changes.now
        if self._bound == as_it_is:
            return
        chain.expect_fit(self.can.terms)
        if rule is not self.rule:
            self.unbind()
            self.rule = rule
            if rule is not None:
                rule.follow(self._net.params(), self._net)
        self._rule_chain = chain
        entries = [*entries_of(self._net.params()), *self._state_entries()]
        self._expect_room()
        if of_folder:
            self._expect_state(entries)
        self._adopt(entries)
        if of_folder:
            self._take_state()
        self._bound = as_it_is

    def move_state(self) -> bool:
        """Put the state that is in memory into the folder; whether there was any."""
        for param in self._trained():
            for state in self._states([param.name]):
                keys = self._state_names(param.name)
                if state.is_away or not keys:
                    continue
                units = [self._units(param.name, key) for key in keys]
                if state.held:
                    assert self.rule is not None
                    held = self.rule.settle(param.name, param.outline).held
                    for own, array in zip(units, held, strict=True):
                        for unit, elements in own:
                            self.shelf.write(unit, array[elements])
                else:
                    for unit, _ in (each for own in units for each in own):
                        self.shelf.blank(unit)
                self._keep(state, keys)
                state.shape = param.shape
        return self.rule is not None and any(state.step for state in self.rule.states())

    def unbind(self) -> None:
        """Bring the optimizer's state back into memory."""
        self.shelf.put_back()
        for state in [] if self.rule is None else self.rule.states():
            if state.is_away:
                state.arrays = [array.copy() for array in state.arrays]
        self.rule = None

    def roll_back(self) -> None:
        """Net, generator and optimizer as at the last `commit`."""
        self.shelf.roll_back()
        self.load_small()
        for state in [] if self.rule is None else self.rule.states():
            state.forget()
        self._take_state()

    def load_small(self) -> None:
        """Load the small arrays from the latest generation: parameters, and the generator."""
        for param in self._net.params():
            if f"net/{param.name}" in self.shelf.latest.entries and param.storage.in_memory:
                param.value[...] = self._array(f"net/{param.name}")
        text = on_host(self._array(SESSION)).tobytes()
        self._net.rng.bit_generator.state = json.loads(text)["generator"]

    def ends_with(self, finish: Callable[[], object]) -> None:
        """Have `end` call ``finish``."""
        self._finish = finish

    def end(self) -> None:
        """Let go of the folder."""
        self.shelf.close()
        self._finish()

    def _expect_own_process(self) -> None:
        """Errors: `CallOrderError` in a forked child, whose folder and threads are its parent's."""
        if os.getpid() != self._process:
            raise CallOrderError(
                "an offloaded net",
                expected="the process that called net.offload",
                received="a child that was forked from it, and would write to the same folder",
                advice="load the net's file in the child, or start it by the method 'spawn'",
            )

    def _begin(self) -> None:
        self._expect_own_process()
        self._adopt_new()
        self.move_state()
        self.shelf.put_back()

    def _adopt_new(self) -> None:
        self.shelf.leave()
        params = self._net.params()
        if any(f"net/{param.name}" not in self.shelf.next.entries for param in params):
            entries = [*entries_of(params), *self._state_entries()]
            self._expect_room()
            self._adopt(entries)

    def _adopt(self, entries: list[Entry]) -> None:
        """Allocate places for ``entries``; store large parameters of new layers there."""
        laid = self.shelf.lay_out(entries, self._small)
        chain, known, parts = self._rule_chain, self.shelf.next.entries, {}
        self._rows = {}
        for param in [] if self.rule is None else self._trained():
            rows = rows_of_parts(chain, param) if is_large(param) else []
            if rows:
                self._rows[param.name] = rows
                for key in self._state_names(param.name):
                    parts[key] = [part_of(known[key], each) for each in rows]
        if self.shelf.divide(parts, self._small) or laid:
            # They have loads of arrays that are others now.
            self.programs.clear()
        for state in [] if self.rule is None else self.rule.states():
            keys = self._state_names(state.name)
            # Mixed precision, which a step brings, has them in another type.
            kinds = [(prod(known[key].shape), known[key].dtype) for key in keys if key in known]
            rows = self._rows.get(state.name, [])
            if state.is_away and ([*state.rows], [*zip(*state.kinds(), strict=True)]) != (
                rows,
                kinds,
            ):
                self._keep(state, keys)
        for param in self._net.params():
            if is_large(param) and param.storage.in_memory:
                self.shelf.write(f"net/{param.name}", param.value)
                param.storage = FolderPlace(self.shelf, f"net/{param.name}")

    def _trained(self) -> list[Param]:
        return [param for param in self._net.params() if param.trainable]

    def _state_entries(self) -> list[Entry]:
        """Places for step counts and state of every trained parameter."""
        found: list[Entry] = []
        if self.rule is None:
            return found
        for param in self._trained():
            start = f"optimizer/{param.name}"
            found.append(_entry(f"{start}/step", (), np.dtype(np.int64)))
            slots = self._rule_chain.slots_of(param).items()
            found += [_entry(f"{start}/{slot}", *kind) for slot, kind in slots]
        return found

    def _expect_room(self) -> None:
        most, layer = least_keep(self._net, self._rule_chain)
        if most > self.shelf.keep:
            raise ArgumentError(
                "net.offload, keep",
                expected=f"{most} bytes at least: layer {layer!r} with its optimizer's state",
                received=f"{self.shelf.keep} bytes",
                advice=f"pass keep={2 * most} or more, so that a neighbour is read meanwhile",
            )

    def _units(self, name: str, key: str) -> list[tuple[str, slice]]:
        """The units of the state ``key`` of the parameter ``name``, and their elements."""
        entry = self.shelf.entry(key)
        width = prod(entry.shape[1:])
        return [
            (part_of(entry, rows).name, slice(rows.start * width, rows.stop * width))
            for rows in self._rows.get(name, ())
        ] or [(key, slice(None))]

    def _state_names(self, name: str) -> list[str]:
        slots = () if self.rule is None else self.rule.slots
        return [f"optimizer/{name}/{slot}" for slot in slots]

    def _counts(self, names: Iterable[str]) -> list[int]:
        return [] if self.rule is None else [self.rule.state(name).step for name in names]

    def _leave(self, names: Iterable[str], changed: bool) -> None:
        names = list(names)
        keys = [key for state in self._states(names) for key in self._state_names(state.name)]
        self.shelf.put_back([*keys, *(f"net/{name}" for name in names)], changed)

    def _assembled(self, name: str, key: str) -> Array:
        """A copy of the state ``key`` of the parameter ``name``, flat, of all its units."""
        entry, xp = self.shelf.entry(key), self.shelf.room.xp
        whole: Array = xp.empty(prod(entry.shape), entry.dtype)
        for unit, elements in self._units(name, key):
            whole[elements] = self.shelf.read(unit).reshape(-1)
        return whole

    def _states(self, names: Iterable[str]) -> list[ParamState]:
        """The states of the parameters ``names`` whose arrays go to the folder."""
        if self.rule is None:
            return []
        known = self.shelf.next.entries
        return [
            self.rule.state(name)
            for name in names
            if is_large_entry(known[f"net/{name}"]) and f"optimizer/{name}/step" in known
        ]

    def _keep(self, state: ParamState, keys: list[str]) -> None:
        shelf = self.shelf
        entries = [shelf.entry(key) for key in keys]
        kinds = [(prod(entry.shape), entry.dtype) for entry in entries]

        def arrays() -> list[Array]:
            tape = current_tape()
            if tape is not None:
                return [stored_place(tape, shelf, entry).reshape(-1) for entry in entries]
            # Who updates late gets them here, and `_Behind` hears when that is done.
            if state.name in self._rows:
                return [self._assembled(state.name, key) for key in keys]
            take = shelf.lend if self._lends or self._updates_late else shelf.read
            found = [shelf.loaded[key] if key in shelf.loaded else take(key) for key in keys]
            return [array.reshape(-1) for array in found]

        @contextmanager
        def part(rows: slice) -> Iterator[list[Array]]:
            units, tape = [part_of(entry, rows) for entry in entries], current_tape()
            if tape is not None:
                yield [stored_place(tape, shelf, unit).reshape(-1) for unit in units]
                return
            try:
                yield [shelf.lend(unit.name).reshape(-1) for unit in units]
            finally:
                shelf.put_back([unit.name for unit in units])

        if state.name in self._rows:
            state.keep_in(arrays, kinds, self._rows[state.name], part)
        else:
            state.keep_in(arrays, kinds)

    def _expect_state(self, entries: Iterable[Entry]) -> None:
        """Refuse state of another optimizer in the folder."""
        wanted = {entry.name for entry in entries if entry.name.startswith("optimizer/")}
        there = {name for name in self.shelf.latest.entries if name.startswith("optimizer/")}
        if there and there != wanted:
            rule, first = self.rule, min(there ^ wanted)
            raise DataError(
                f"net.offload, folder {str(self.shelf.folder)!r}",
                expected="the optimizer of the earlier training: the folder has "
                + (f"{first!r}" if first in there else f"no {first!r}"),
                received="none" if rule is None else f"a {type(rule).__name__}",
                advice="compile the net with it, or pass optimizer=",
            )

    def _take_state(self) -> None:
        """Give the optimizer the state that the latest generation has of it."""
        entries = self.shelf.latest.entries
        if self.rule is None:
            return
        for param in self._trained():
            start = f"optimizer/{param.name}/step"
            state = self.rule.state(param.name)
            if start not in entries:
                continue
            step = int(self._array(start))
            keys = self._state_names(param.name)
            state.forget()
            if step and not param.storage.in_memory:
                state.shape = param.shape
                self._keep(state, keys)
                state.step = step
            elif step:
                # In its shapes, which a dump has.
                state.resume(step, [self._array(key) for key in keys])

    def _small(self) -> dict[str, Array]:
        """The small arrays, which stay in memory: parameters, state, steps and the generator."""
        known = self.shelf.next.entries
        found = {
            f"net/{param.name}": param.value
            for param in self._net.params()
            if param.storage.in_memory and f"net/{param.name}" in known
        }
        for state in [] if self.rule is None else self.rule.states():
            if f"optimizer/{state.name}/step" not in known:
                continue
            found[f"optimizer/{state.name}/step"] = np.array(state.step, np.int64)
            if not state.is_away and state.arrays:
                keys = self._state_names(state.name)
                found |= zip(keys, state.arrays, strict=True)
        found[SESSION] = session_bytes(self._net)
        return {name: found[name].astype(known[name].dtype, copy=False) for name in found}

    def _array(self, name: str) -> Array:
        """An array that is not large, from the latest generation."""
        entry = self.shelf.latest.entries[name]
        found = np.empty(entry.shape, entry.dtype)
        self.shelf.latest.read(name, bytes_of(found))
        return self.shelf.room.put(found)


def is_large(param: Param) -> bool:
    """Whether ``param`` goes to the folder, and does not only have a copy there."""
    return not param.is_state and param.nbytes > SMALL


def least_keep(net: Any, chain: UpdateChain) -> tuple[int, str]:
    """The bytes that have to be in memory for the layer with most of them, and its name.

    They are its large parameters, and the state of these in the rule of ``chain``.
    """
    needs = []
    for step in net.planned().steps:
        large = filter(is_large, step.layer.params.values())
        needs.append((sum(p.nbytes + state_at_a_time(chain, p) for p in large), step.name))
    return max(needs, key=lambda need: need[0], default=(0, ""))


def is_large_entry(entry: Entry) -> bool:
    """`is_large`, by the entry of a trained parameter."""
    return entry.nbytes > SMALL


def entries_of(params: Iterable[Param]) -> list[Entry]:
    """Places for ``params`` and the generator."""
    found = [_entry(f"net/{param.name}", param.shape, param.array_type) for param in params]
    return [*found, _entry(SESSION, (_SESSION_BYTES,), np.dtype(np.uint8))]


def session_bytes(net: Any) -> Array:
    """The generator of ``net`` as the array `SESSION`."""
    state = net.rng.bit_generator.state
    text = json.dumps({"generator": state}, default=lambda array: np.asarray(array).tolist())
    return np.frombuffer(text.encode().ljust(_SESSION_BYTES), np.uint8)


def _entry(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Entry:
    nbytes = prod(shape) * dtype.itemsize
    return Entry(name, shape, dtype, nbytes)
