"""Served tables on a worker: rows pulled in each step, or cached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from singanet.base.terms import ELEMENTS, FLOATS, ORDER, Terms
from singanet.engine.net import Net
from singanet.errors import ArgumentError, brief
from singanet.layers.embedding import Cache, Embedding
from singanet.ops import ops_for
from singanet.ops.interface import Runs
from singanet.ops.numpy.linear import runs_of
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper, rule_of
from singanet.parallel.communicators.communicator import Done, Request
from singanet.parallel.server.parameter_table import ServedTable
from singanet.parallel.server.remote import by_element
from singanet.params.param import Param
from singanet.params.storage import ParameterServerStorage
from singanet.types import Array, RowSparse

_AHEAD = 4
"""Arrays of ids remembered for each table: of the current step and of the following ones."""


_SAMPLED = 16
"""Number of sampled ids that are compared before whole arrays are."""


class Distinct(NamedTuple):
    """The ``runs`` of equal ids, and for each flattened id its index among the distinct ids."""

    runs: Runs
    places: Array

    @property
    def rows(self) -> Array:
        """The distinct ids, ascending."""
        return self.runs.distinct


class KnownIds:
    """A cache of `Distinct` for the latest arrays of ids, shared by the tables of one net.

    A step needs the same ids three times: to prefetch rows, to look them up, and to update them.
    """

    def __init__(self) -> None:
        self._tables = 0
        # Each entry starts with some sampled ids, compared first.
        self._known: deque[tuple[list[int], Array, Distinct]] = deque()

    def join(self) -> None:
        """Enlarge the cache for one more table."""
        self._tables += 1

    def of(self, ids: Array) -> Distinct:
        """Return the distinct ids of ``ids``, an array of any shape."""
        flat = ids.reshape(-1)
        some = flat[:: 1 + len(flat) // _SAMPLED].tolist()
        for known_by, known, found in self._known:
            if known_by == some and np.array_equal(known, flat):
                return found
        made = distinct(flat)
        # The caller may write the next ids to the same array.
        self._known.appendleft((some, flat.copy(), made))
        if len(self._known) > _AHEAD * self._tables:
            self._known.pop()
        return made


def distinct(ids: Array) -> Distinct:
    """Return the distinct ids of the flat array ``ids``."""
    runs = runs_of(np, ids.astype(np.int64, copy=False))
    numbers = np.zeros(len(ids), np.intp)
    numbers[runs.starts[1:]] = 1
    places = np.empty(len(ids), np.intp)
    places[runs.order] = np.cumsum(numbers, out=numbers)
    return Distinct(runs, places)


_PIECE = 1 << 24
"""Bytes of a table that are read or written at a time."""


@dataclass
class Lookups:
    """Counts of the lookups of training steps in a served table, and of their traffic.

    ``rows`` were read and ``updates`` made; a step counts equal ids as one. ``hits`` of the rows
    were in the cache, and ``refreshed`` of these were pulled again, ``behind`` updates late in
    total and ``most_behind`` at most. ``pushed`` gradients were sent, each the sum of up to
    ``most_gathered``. ``nbytes`` is the traffic in both directions: row numbers, clocks, values and
    gradients. ``nbytes_uncached`` is the traffic of pulling and pushing each row, without clocks.
    """

    rows: int = 0
    hits: int = 0
    refreshed: int = 0
    behind: int = 0
    most_behind: int = 0
    updates: int = 0
    pushed: int = 0
    most_gathered: int = 0
    nbytes: int = 0
    nbytes_uncached: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of the rows that were in the cache."""
        return self.hits / self.rows if self.rows else 0.0

    @property
    def saved(self) -> float:
        """The share of the uncached traffic that the cache avoided."""
        return 1.0 - self.nbytes / self.nbytes_uncached if self.nbytes_uncached else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return {**asdict(self), "hit_rate": self.hit_rate, "saved": self.saved}


class TableRows(ParameterServerStorage):
    """Rows of ``table`` without a cache: each step pulls the rows that it looks up.

    Tables of one net share the cache of ids, ``known``.
    """

    def __init__(self, name: str, table: ServedTable, known: KnownIds | None = None) -> None:
        super().__init__(name, (table.rows, table.width), table.dtype)
        self.table = table
        self._ids = KnownIds() if known is None else known
        self._ids.join()
        self.lookups = Lookups()
        self._pushing: Request = Done()
        self._row_bytes = table.width * self.dtype.itemsize
        self.piece = max(1, _PIECE // max(1, self._row_bytes))

    def look_up(self, ids: Array, out: Array) -> None:
        found = self._ids.of(ids)
        rows = found.rows
        self.lookups.rows += len(rows)
        self.lookups.nbytes_uncached += len(rows) * (8 + self._row_bytes)
        _spread(self._fetched(rows), found.places, out)

    def runs(self, ids: Array) -> Runs:
        return self._ids.of(ids).runs

    def see(self, ids: Array, out: Array) -> None:
        self.flush()
        found = distinct(ids.reshape(-1))
        _spread(self.table.pull(found.rows)[0], found.places, out)

    def push(self, grad: RowSparse, scale: float) -> None:
        # A table and its caches are on the host, whichever device the net uses.
        host = ops_for(grad.rows).host
        rows, grads = host(grad.indices).astype(np.int64, copy=False), host(grad.rows)
        if scale != 1.0:
            grads = grads * self.dtype.type(scale)
        self.lookups.updates += len(rows)
        self.lookups.nbytes_uncached += len(rows) * (8 + self._row_bytes)
        self._take(rows, grads)

    def flush(self) -> None:
        """Push all pending gradients."""
        self._pushing.wait()

    def parts(self) -> Iterator[Array]:
        self.flush()
        for rows in self._pieces():
            yield self.table.pull(rows)[0]

    def write(self, array: Array) -> None:
        """Write ``array`` to the table, and drop pending gradients of the old values."""
        host = ops_for(array).host
        for rows in self._pieces():
            self.table.write(rows, host(array[rows]).astype(self.dtype, copy=False))

    def prefetch(self, ids: Array) -> None:
        """Start to pull the rows of the next step, as they are after the current step."""
        self.table.prefetch(self._ids.of(np.asarray(ids)).rows)

    def _fetched(self, rows: Array) -> Array:
        """Return the values of distinct, ascending ``rows`` for a training step."""
        values, _ = self.table.pull(rows)
        self._count_pull(len(rows))
        return values

    def _take(self, rows: Array, grads: Array) -> None:
        """Update distinct, ascending ``rows`` by their gradients."""
        self._push(rows, grads, None)

    def _push(self, rows: Array, grads: Array, clocks_added: Array | None) -> None:
        if len(rows):
            # The table handles later requests after this one, so only its errors need the wait.
            self._pushing.wait()
            self._pushing = self.table.start_push(rows, grads, clocks_added)
            self._count_push(rows, clocks_added)

    def _count_pull(self, count: int) -> None:
        self.lookups.nbytes += count * (16 + self._row_bytes)

    def _count_push(self, rows: Array, clocks_added: Array | None) -> None:
        counts = 1 if clocks_added is None else int(clocks_added.max())
        self.lookups.pushed += len(rows)
        self.lookups.most_gathered = max(self.lookups.most_gathered, counts)
        self.lookups.nbytes += len(rows) * ((8 if clocks_added is None else 16) + self._row_bytes)

    def _pieces(self) -> list[Array]:
        step, count = self.piece, self.table.rows
        return [np.arange(start, min(start + step, count)) for start in range(0, count, step)]


def _spread(values: Array, places: Array, out: Array) -> None:
    np.take(values, places, 0, out.reshape(-1, out.shape[-1]), "clip")


_Chain = TypeVar("_Chain", bound=Optimizer | Wrapper)


def bare_copy(optimizer: _Chain) -> _Chain:
    """Return a copy of ``optimizer`` without state of parameters; it shares the schedules."""
    made, rule = deepcopy(optimizer), rule_of(optimizer)
    rule_of(made).load_state_dict(rule._hyper_state())
    follow(made, optimizer)
    return made


def follow(made: Optimizer | Wrapper, optimizer: Optimizer | Wrapper) -> None:
    """Copy the current hyper-parameters of the rule of ``optimizer`` to ``made``."""
    copy, rule = rule_of(made), rule_of(optimizer)
    for name in rule.hypers:
        now = getattr(rule, name)
        if getattr(copy, name) is not now:
            setattr(copy, name, now)


_NEVER = np.iinfo(np.int64).max
_TURNS = 40
"""Bits of a key that order by the last use; the higher bits order by the number of uses."""
_MOST = (1 << (62 - _TURNS)) - 1
_SHARE = 8
"""Each search for candidates takes 1 / 8 of the lines."""


class Policy(ABC):
    """Priorities of ``lines`` cache lines; lines of the lowest key are evicted first.

    A batch uses distinct lines, and each use counts once. Within a batch the first line is the
    oldest. The cost of a use does not depend on the number of lines: one scan of all of them serves
    many evictions.
    """

    def __init__(self, lines: int) -> None:
        self.keys = np.full(lines, -1, np.int64)
        self.uses = np.zeros(lines, np.int64)
        self._turn = 0
        self._free = 0
        # Every line with a key below the threshold is a candidate.
        self._candidates = np.empty(0, np.int64)
        self._is_candidate = np.zeros(lines, np.bool_)
        self._threshold = -1

    @abstractmethod
    def worth(self, uses: Array, turns: Array) -> Array:
        """Return the keys of lines with ``uses`` uses, last used at ``turns``, which ascend."""

    def use(self, lines: Array) -> None:
        """Count one use of each of ``lines``."""
        turns = np.arange(self._turn, self._turn + len(lines))
        self._turn += len(lines)
        self.uses[lines] += 1
        keys = self.keys[lines] = self.worth(self.uses[lines], turns)
        low = lines[(keys < self._threshold) & ~self._is_candidate[lines]]
        self._is_candidate[low] = True
        self._candidates = np.concatenate((self._candidates, low))

    def make_room(self, count: int, busy: Array) -> Array:
        """Return up to ``count`` lines for new rows: free lines first, then evicted ones.

        Lines in ``busy`` are not evicted, so there may be fewer. The counts of uses restart at 0.
        """
        free = np.arange(self._free, min(self._free + count, len(self.keys)))
        self._free += len(free)
        gone = self._least(count - len(free), busy)
        self.uses[gone] = 0
        self.keys[gone] = -1
        return np.concatenate((free, gone))

    def _least(self, count: int, busy: Array) -> Array:
        """Return up to ``count`` used lines of the lowest keys, ascending, without ``busy``."""
        if count <= 0:
            return np.empty(0, np.int64)
        found = self._among(self._candidates, count, busy)
        # The key of any other line is at least the threshold.
        few = len(found) < count or self.keys[found[-1]] >= self._threshold
        if few and self._threshold < _NEVER:
            self._seek(count + len(busy))
            found = self._among(self._candidates, count, busy)
        self._is_candidate[found] = False
        self._candidates = self._candidates[self._is_candidate[self._candidates]]
        return found

    def _among(self, candidates: Array, count: int, busy: Array) -> Array:
        taken = self._is_candidate[busy]
        self._is_candidate[busy] = False
        keys = self.keys[candidates]
        fits = self._is_candidate[candidates] & (keys >= 0) & (keys < _NEVER)
        self._is_candidate[busy] = taken
        candidates, keys = candidates[fits], keys[fits]
        if len(keys) > count:
            least = np.argpartition(keys, count - 1)[:count]
            candidates, keys = candidates[least], keys[least]
        found: Array = candidates[np.argsort(keys)]
        return found

    def _seek(self, count: int) -> None:
        """Make at least ``count`` lines of the lowest keys the candidates."""
        wanted = max(count, len(self.keys) // _SHARE)
        if wanted < len(self.keys):
            # Lines before their first use are not evicted.
            keys = np.where(self.keys < 0, _NEVER, self.keys)
            least = np.argpartition(keys, wanted)
            self._threshold = int(keys[least[wanted]])
            self._candidates = least[:wanted]
        else:
            self._threshold, self._candidates = _NEVER, np.arange(len(self.keys))
        self._is_candidate[:] = False
        self._is_candidate[self._candidates] = True


class LRU(Policy):
    """A policy that evicts the least recently used line."""

    def worth(self, uses: Array, turns: Array) -> Array:
        return turns


class LFU(Policy):
    """A policy that evicts the least often used line; among equals, the least recently used one."""

    def worth(self, uses: Array, turns: Array) -> Array:
        return (np.minimum(uses, _MOST) << _TURNS) + turns


class LFUOpt(LFU):
    """`LFU` without eviction of lines that were used ten times."""

    permanent = 10

    def worth(self, uses: Array, turns: Array) -> Array:
        return np.where(uses >= self.permanent, _NEVER, super().worth(uses, turns))


POLICIES: dict[str, type[Policy]] = {"lru": LRU, "lfu": LFU, "lfuopt": LFUOpt}


class CachedRows(TableRows):
    """Rows of ``table`` with a ``cache``: its size, its policy, and its bounds of staleness.

    A line stores a row as pulled at ``clocks``, updated since by the gradients of this worker.
    These are summed in ``pending``, ``gathered`` of them, and pushed as one gradient. If the table
    has updated a row more than ``pull_bound`` times since, from any worker, the row is pulled again
    and updated by the pending sum. ``rule`` is the rule of the table; its state of a line covers
    the updates of this worker only. An index of one integer per row maps rows to lines.
    """

    def __init__(
        self,
        param: Param,
        table: ServedTable,
        cache: Cache,
        rule: Optimizer | Wrapper,
        known: KnownIds | None = None,
    ) -> None:
        super().__init__(param.name, table, known)
        if not by_element(rule, param):
            raise ArgumentError(
                f"parameter {param.name!r}, cache",
                expected=ELEMENTS,
                received=brief(rule),
                advice="remove the cache of its Embedding, or use another rule",
            )
        self.cache = cache
        lines = cache.lines(table.rows)
        self._policy = POLICIES[cache.policy](lines)
        self._line_of = np.full(table.rows, -1, np.int32)
        self._row_of = np.full(lines, -1, np.int64)
        self.values = np.zeros((lines, table.width), self.dtype)
        self.clocks = np.zeros(lines, np.int64)
        # −0 + x has the sign of x even if x is a zero.
        self.pending = np.full((lines, table.width), -0.0, self.dtype)
        self.gathered = np.zeros(lines, np.int64)
        self._followed, self._rule = rule, bare_copy(rule)
        self._rule.register(param.name, rule_of(rule)._spec_of(param))

    def flush(self) -> None:
        waiting = np.flatnonzero(self.gathered)
        for start in range(0, len(waiting), self.piece):
            self._send(waiting[start : start + self.piece], waiting[:0], self.pending[:0])

    def prefetch(self, ids: Array) -> None:
        """Do nothing: the current step decides which rows the cache has after it."""

    def write(self, array: Array) -> None:
        self._forget(np.flatnonzero(self._row_of >= 0))
        super().write(array)

    def _fetched(self, rows: Array) -> Array:
        found = np.empty((len(rows), self.table.width), self.dtype)
        lines = self._line_of[rows]
        is_here = lines >= 0
        hits, missing = lines[is_here].astype(np.int64), rows[~is_here]
        newer = self.table.start_newer(rows[is_here], self.clocks[hits], self.cache.pull_bound)
        self._policy.use(hits)
        if len(missing):
            found[~is_here] = self._entered(missing, self._policy.make_room(len(missing), hits))
        self._refresh(hits, *newer.wait())
        found[is_here] = self.values[hits]
        self.lookups.hits += len(hits)
        return found

    def _entered(self, rows: Array, lines: Array) -> Array:
        """Pull ``rows`` and return their values; the first of them enter ``lines``."""
        given = lines[self.gathered[lines] > 0]
        given = given[np.argsort(self._row_of[given])]
        pulled = self.table.start_pull(rows)
        # A table may apply a push at the end of the step, so the pull goes first.
        self._push(self._row_of[given], self.pending[given], self.gathered[given])
        values, clocks = pulled.wait()
        self._count_pull(len(rows))
        self._forget(lines[self._row_of[lines] >= 0])
        stay = len(lines)
        self._row_of[lines], self._line_of[rows[:stay]] = rows[:stay], lines
        self.values[lines], self.clocks[lines] = values[:stay], clocks[:stay]
        self._policy.use(lines)
        return values

    def _forget(self, lines: Array) -> None:
        """Remove the rows of ``lines``, with their pending gradients."""
        self._line_of[self._row_of[lines]] = -1
        self._row_of[lines] = -1
        self.pending[lines], self.gathered[lines] = -0.0, 0
        for array in rule_of(self._rule).state(self.name).arrays:
            array.reshape(self.values.shape)[lines] = 0

    def _refresh(self, hits: Array, places: Array, values: Array, clocks: Array) -> None:
        """Store pulled ``values`` in the lines ``hits[places]``, then apply pending gradients."""
        lines = hits[places]
        behind = clocks - self.clocks[lines]
        told = self.lookups
        told.refreshed += len(lines)
        told.behind += int(behind.sum())
        told.most_behind = max(told.most_behind, int(behind.max(initial=0)))
        told.nbytes += 16 * len(hits) + len(lines) * (16 + self._row_bytes)
        self.values[lines], self.clocks[lines] = values, clocks
        self._update(lines[self.gathered[lines] > 0])

    def _update(self, lines: Array, grads: Array | None = None) -> None:
        """Update ``lines`` by ``grads``, by default by the pending ones."""
        order = np.argsort(lines)
        lines = lines[order]
        rows = self.pending[lines] if grads is None else grads[order]
        follow(self._rule, self._followed)
        self._rule.update([self.name], [self.values], [RowSparse(lines, rows)])

    def _take(self, rows: Array, grads: Array) -> None:
        lines = self._line_of[rows].astype(np.int64)
        is_here = lines >= 0
        here = lines[is_here]
        self.pending[here] += grads[is_here]
        self.gathered[here] += 1
        self._update(here, grads[is_here])
        due = here[self.gathered[here] > self.cache.push_bound]
        self._send(due, rows[~is_here], grads[~is_here])

    def _send(self, lines: Array, rows: Array, grads: Array) -> None:
        """Push the pending gradients of ``lines``, and ``grads`` of the uncached ``rows``."""
        rows = np.concatenate((self._row_of[lines], rows))
        grads = np.concatenate((self.pending[lines], grads))
        counts = np.concatenate((self.gathered[lines], np.ones(len(rows) - len(lines), np.int64)))
        order = np.argsort(rows)
        self._push(rows[order], grads[order], counts[order])
        self.pending[lines], self.gathered[lines] = -0.0, 0


_DRAWN = 1 << 20
"""Elements that are drawn at a time."""


CACHED = Terms(needs=(ELEMENTS,), exact=(ORDER, FLOATS), keeps="bits")
"""The terms of tables with a `layers.Cache`."""


def serve(
    net: Any,
    rule: Optimizer | Wrapper,
    tables_of: Callable[[Sequence[Param]], Mapping[str, ServedTable]],
    wrote: Callable[[], bool] = lambda: False,
) -> dict[str, TableRows]:
    """Move the trained Embeddings of ``net`` to tables, and return their rows by parameter name.

    ``tables_of`` makes the tables of parameters that have none yet, with their initial values.
    Other values of a parameter are written to its table, unless ``wrote()``. A parameter without
    values never needs memory for them if this call precedes the first pass. ``rule`` updates cached
    rows. Tables that other layers read stay parameters. Errors: `ArgumentError` for a cache of such
    a table, and if Embeddings of one table have different caches.
    """
    found = to_serve(net)
    new = [(param, cache) for param, cache in found if not param.storage.by_rows]
    for param, _ in new:
        if not param.filled:
            param.seed, param.dtype = net.seed, net.dtype
        # The table has the dtype that the net was converted to; its initial values are in it, too.
        param.dtype = param.array_type
    tables = tables_of([param for param, _ in new]) if new else {}
    known = KnownIds()
    for param, cache in new:
        table = tables[param.name]
        rows = (
            TableRows(param.name, table, known)
            if cache is None
            else CachedRows(param, table, cache, rule, known)
        )
        if param.filled and not wrote() and not _is_as_drawn(param):
            rows.write(param.value)
        param.storage = rows
    return {p.name: p.served for p, _ in found if isinstance(p.served, TableRows)}


def _is_as_drawn(param: Param) -> bool:
    """Return True if the values are the initial ones."""
    flat = ops_for(param.value).host(param.value).reshape(-1)
    return all(
        np.array_equal(flat[start : start + piece.size], piece.astype(flat.dtype))
        for start, piece in param.initial_pieces(_DRAWN)
    )


def to_serve(net: Any) -> list[tuple[Param, Cache | None]]:
    """Return the trained parameters that only Embeddings read, with their caches."""
    found: dict[int, tuple[Param, Cache | None]] = {}
    read_whole: set[int] = set()
    # A plan does not fill the parameters.
    plan = net.planned() if isinstance(net, Net) else net._execution_plan()
    layers = {id(step.layer): step.layer for step in plan.steps if not step.frozen}
    for layer in layers.values():
        for param in layer.params.values():
            key = id(param.root)
            # A subclass may read the whole array.
            if type(layer) is not Embedding:
                read_whole.add(key)
            elif param.trainable:
                before = found.setdefault(key, (param, layer.cache))[1]
                if repr(before) != repr(layer.cache):
                    raise ArgumentError(
                        f"layer {layer.name!r}, argument cache",
                        expected=f"{before}, as of the other Embedding of {param.name!r}",
                        received=brief(layer.cache),
                        advice="give Embeddings that share a table the same cache",
                    )
    for key in read_whole & found.keys():
        param, cache = found.pop(key)
        if cache is not None:
            raise ArgumentError(
                f"parameter {param.name!r}, cache",
                expected="a table that only Embeddings read",
                received="a table that another layer reads whole",
                advice="remove the cache: such a table is not served",
            )
    return list(found.values())
