"""The reduction by servers: a step pushes gradients and pulls the updated values."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale
from singanet.optimizer.reducer import Found, Reduction, RoundKind, Traffic
from singanet.parallel.communicators.communicator import Request
from singanet.parallel.reductions.rank_reducer import RankReducer
from singanet.parallel.server.remote import Servers
from singanet.parallel.server.service import DENSE, FLAT, NOTHING, ROWS
from singanet.params.storage import SMALL, groups_of
from singanet.types import Array, RowSparse


class Pushes(Reduction):
    """A reduction by which a worker of ``owner`` pushes gradients to ``servers`` and pulls values.

    All entries are in flight at a time. If ``apart``, the gradients of each worker are a separate
    update, and a worker without gradients makes none; otherwise the gradients of all workers are
    one update, even if they are zeros.
    """

    rows_first = True

    def __init__(
        self, owner: RankReducer, servers: Callable[[], Servers], apart: bool, recorded: bool
    ) -> None:
        self._owner, self._servers, self._apart, self._recorded = owner, servers, apart, recorded
        self.traffic = Traffic()
        self.window = self.version = 0
        self._entries: list[list[str]] = []
        self._whole: dict[tuple[str, ...], _FlatEntry] = {}
        self._flying: deque[Request] = deque()
        self._has_finished = False
        # Parameters that have had row gradients; from then on they travel alone.
        self._sparse: set[str] = set()
        self._found: set[str] = set()

    @property
    def entries(self) -> Sequence[Sequence[str]]:
        return self._entries

    @property
    def settled(self) -> bool:
        return self._recorded and self._owner._has_met

    @property
    def rank(self) -> int:
        return self._owner.comm.rank

    def value(self, name: str) -> Array:
        return self._owner.order.by_name[name].value

    def like(self, name: str) -> Array:
        return self._owner.order.like(self._owner.order.by_name[name])

    def is_rows(self, name: str) -> bool:
        return name in self._sparse

    def group(self) -> None:
        """Group the small parameters of each server, except parameters with row gradients."""
        servers = self._servers()
        self.version += 1
        names = [param.name for param in self._owner.order.params]
        small: dict[int, list[str]] = {}
        self._entries = []
        for name in names:
            if name in self._sparse or self.like(name).nbytes > SMALL:
                self._entries.append([name])
            else:
                small.setdefault(servers.replicas[name].server, []).append(name)
        for there in small.values():
            groups = groups_of([self.like(name) for name in there])
            self._entries += [[there[k] for k in group] for group in groups]
        place = {name: k for k, name in enumerate(names)}
        self._entries.sort(key=lambda entry: place[entry[-1]])
        self.window = len(self._entries)
        self._whole = {
            tuple(entry): _FlatEntry(
                sum(self.like(name).size for name in entry),
                np.array([(servers.replicas[name].number, FLAT) for name in entry], np.int64),
            )
            for entry in self._entries
            if len(entry) > 1
        }

    def open(self, kind: RoundKind) -> None:
        """Start the gradients of a step. Errors: `CallOrderError` before `begin`."""
        self._owner._expect_begun()
        self._has_finished = False

    def start(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> None:
        servers = self._servers()
        self.traffic.sums += 1
        whole = self._whole.get(tuple(names))
        if whole is not None and buffer is not None and not rows and not self.without_step:
            factors = {float(scale) for scale in scales if scale is not None}
            if len(factors) == 1 and None not in scales:
                # Scaled alike, all of them are one flat array.
                flat = _scaled(buffer[: whole.size], factors.pop())
                self.traffic.nbytes += flat.nbytes
                self._ask(servers, names, whole.layout, [_on_host(flat)])
                return
        parts = self.parts(names, buffer)
        self._found |= rows.keys()
        arrays, layout = [], []
        for name, scale in zip(names, scales, strict=True):
            how = NOTHING if scale is None or self.without_step else DENSE
            if how == DENSE and name in rows:
                how = ROWS
                arrays += [rows[name].indices, _scaled(rows[name].rows, scale)]
            elif how == DENSE:
                arrays.append(_scaled(parts[name], scale))
            layout.append((servers.replicas[name].number, how))
        self.traffic.nbytes += sum(array.nbytes for array in arrays)
        self._ask(servers, names, np.array(layout, np.int64), [*map(_on_host, arrays)])

    @property
    def without_step(self) -> bool:
        """True if this worker has no samples and must not update, even by a rule that moves at 0.

        If the gradients of all workers are one update, this worker's rows still belong to it.
        """
        return self._owner._count == 0 and self._apart

    def test(self) -> None:
        # Messages that wait for the last message of the step would leave without it.
        if self._servers().ranks.holds_back:
            return
        for request in self._flying:
            request.test()

    def finish(self, names: Sequence[str], buffer: Array | None) -> list[Found]:
        """Return the updated values of ``names``; unchanged parts of ``buffer`` keep theirs."""
        self._tell()
        layout, *arrays = self._answer()
        if buffer is not None and _is_flat(layout):
            buffer[: arrays[0].size] = ops_for(buffer).xp.asarray(arrays[0])
            return [True] * len(names)
        parts, found = self.parts(names, buffer), list[Found]()
        news = self._updated_values(names, layout, arrays, parts)
        for name in names:
            new = news.get(name)
            if name in parts:
                part = parts[name]
                if new is None or isinstance(new, RowSparse):
                    self.lay(part, self._owner._settled(name, self.value(name)))
                if isinstance(new, RowSparse):
                    part[new.indices] = new.rows
                elif new is not None:
                    part[...] = new
                found.append(None if new is None else True)
            elif new is None or isinstance(new, RowSparse):
                found.append(new)
            else:
                found.append(RowSparse(np.arange(len(new)), new))
        return found

    def close(self, kind: RoundKind) -> None:
        self._tell()
        self._owner._ended()
        self._sparse |= self._found
        if any(len(entry) > 1 and self._found & {*entry} for entry in self._entries):
            self.group()
        self._found.clear()

    def pulled(self) -> Iterator[tuple[str, Any]]:
        """Yield the current values on the servers by name: whole arrays or some rows."""
        servers = self._servers()
        for entry in self._entries:
            layout = [(servers.replicas[name].number, NOTHING) for name in entry]
            self._ask(servers, entry, np.array(layout, np.int64), (), now=True)
        for entry in self._entries:
            told, *arrays = self._answer()
            yield from self._updated_values(entry, told, arrays, {}).items()

    def _tell(self) -> None:
        """Tell the servers that all gradients of this step are pushed."""
        if not self._has_finished:
            self._has_finished = True
            servers = self._servers()
            servers.follow()
            servers.finish(self._owner._count)

    def _ask(
        self,
        servers: Servers,
        names: Sequence[str],
        layout: Array,
        arrays: Sequence[Array],
        now: bool = False,
    ) -> None:
        server = servers.replicas[names[0]].server
        asked = servers.start_step(server, layout, arrays, now=now)
        self._flying.append(asked)

    def _answer(self) -> Sequence[Array]:
        """Return the answer to the oldest request: its layout and the updated arrays."""
        began = time.perf_counter()
        arrays: Sequence[Array] = self._flying.popleft().wait()
        self.traffic.waited += time.perf_counter() - began
        return arrays

    def _updated_values(
        self,
        names: Sequence[str],
        layout: Array,
        arrays: Sequence[Array],
        parts: Mapping[str, Array],
    ) -> dict[str, Any]:
        """Return the updated values of the parameters of an entry by name: arrays or some rows.

        They are on the device of ``parts``, or on the parameter's if it has no part.
        """
        found: dict[str, Any] = {}
        rest = iter(arrays)
        if _is_flat(layout):
            ends = np.cumsum([self.value(name).size for name in names])
            rest = iter(np.split(arrays[0], ends[:-1]))
        for name, (_, how) in zip(names, layout.tolist(), strict=True):
            value = self.value(name)
            xp = ops_for(parts.get(name, value)).xp
            if how in (DENSE, FLAT):
                found[name] = xp.asarray(next(rest)).reshape(value.shape)
            elif how == ROWS:
                found[name] = RowSparse(xp.asarray(next(rest)), xp.asarray(next(rest)))
        return found


class _FlatEntry(NamedTuple):
    """The elements of an entry of several parameters, and the layout of one array for all."""

    size: int
    layout: Array


def _is_flat(layout: Array) -> bool:
    return bool(len(layout)) and layout[0, 1] == FLAT


def _on_host(array: Array) -> Array:
    return np.ascontiguousarray(ops_for(array).host(array))


def _scaled(array: Array, scale: Any) -> Array:
    factor = float(scale)
    return array if factor == 1.0 else array * array.dtype.type(factor)
