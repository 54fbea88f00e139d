"""Rows of tables that are elsewhere: looked up by each step, or kept in a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from singanet.engine.net import Net
from singanet.errors import ArgumentError
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
from singanet.params.storage import ServedRows
from singanet.types import Array, RowSparse

_AHEAD = 4
"""Arrays of ids that are known for each table: of the step under way, and of those to come."""


_TOLD_BY = 16
"""Of so many ids arrays are told apart, before all are compared."""


class Distinct(NamedTuple):
    """The ``runs`` of equal ids, and for each id, flat, its place among the distinct ones."""

    runs: Runs
    places: Array

    @property
    def rows(self) -> Array:
        """The distinct ids, rising."""
        return self.runs.distinct


class KnownIds:
    """What was made of the last ids, which tables of one net often have in common.

    A step asks for the same when rows are fetched ahead, looked up, and updated.
    """

    def __init__(self) -> None:
        self._tables = 0
        # With some of each, by which others are told from them.
        self._known: deque[tuple[list[int], Array, Distinct]] = deque()

    def join(self) -> None:
        """Keep what one table more is looked up by."""
        self._tables += 1

    def of(self, ids: Array) -> Distinct:
        """The distinct ones of ``ids``, of any shape."""
        flat = ids.reshape(-1)
        some = flat[:: 1 + len(flat) // _TOLD_BY].tolist()
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
    """The distinct ones of the flat ``ids``."""
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
    """Lookups of training steps in a served table, and their traffic.

    ``rows`` were read and ``updates`` made, distinct ones of each step. Of the rows, ``hits`` were
    in the cache, of which ``refreshed`` were read anew, after ``behind`` updates altogether and
    ``most_behind`` at most. ``pushed`` gradients were sent, each the sum of ``most_gathered`` at
    most. ``nbytes`` went to and fro: row numbers, clocks, values and gradients.
    ``nbytes_uncached`` would have, without clocks, had each row been pulled and pushed.
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
        """The part of the rows that were in the cache."""
        return self.hits / self.rows if self.rows else 0.0

    @property
    def saved(self) -> float:
        """The part of the bytes that did not have to go to and fro."""
        return 1.0 - self.nbytes / self.nbytes_uncached if self.nbytes_uncached else 0.0

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {**asdict(self), "hit_rate": self.hit_rate, "saved": self.saved}


class TableRows(ServedRows):
    """Rows of ``table`` without a cache: each step pulls the rows that it looks up.

    Tables of one net share what is ``known`` of ids.
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
        # A table and its caches are on the host, wherever the net computes.
        host = ops_for(grad.rows).host
        rows, grads = host(grad.indices).astype(np.int64, copy=False), host(grad.rows)
        if scale != 1.0:
            grads = grads * self.dtype.type(scale)
        self.lookups.updates += len(rows)
        self.lookups.nbytes_uncached += len(rows) * (8 + self._row_bytes)
        self._take(rows, grads)

    def flush(self) -> None:
        """Push all gradients that wait."""
        self._pushing.wait()

    def parts(self) -> Iterator[Array]:
        self.flush()
        for rows in self._pieces():
            yield self.table.pull(rows)[0]

    def write(self, array: Array) -> None:
        """As `ServedRows`; gradients that wait are dropped with the values that they are of."""
        host = ops_for(array).host
        for rows in self._pieces():
            self.table.write(rows, host(array[rows]).astype(self.dtype, copy=False))

    def prefetch(self, ids: Array) -> None:
        """Begin to pull what the next step will look up, as it is after the one under way."""
        self.table.prefetch(self._ids.of(np.asarray(ids)).rows)

    def _fetched(self, rows: Array) -> Array:
        """The values of distinct ``rows``, rising, for a training step."""
        values, _ = self.table.pull(rows)
        self._count_pull(len(rows))
        return values

    def _take(self, rows: Array, grads: Array) -> None:
        """Update distinct ``rows``, rising, by their gradients."""
        self._push(rows, grads, None)

    def _push(self, rows: Array, grads: Array, clocks_added: Array | None) -> None:
        if len(rows):
            # What comes next to the table comes after it: only its errors are waited for.
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
    """One as ``optimizer``, without the state of any parameter; schedules are the same objects."""
    made, rule = deepcopy(optimizer), rule_of(optimizer)
    rule_of(made).load_state_dict(rule._hyper_state())
    follow(made, optimizer)
    return made


def follow(made: Optimizer | Wrapper, optimizer: Optimizer | Wrapper) -> None:
    """Let ``made`` have the hyper-parameters as the rule of ``optimizer`` has them now."""
    copy, rule = rule_of(made), rule_of(optimizer)
    for name in rule.hypers:
        now = getattr(rule, name)
        if getattr(copy, name) is not now:
            setattr(copy, name, now)


_NEVER = np.iinfo(np.int64).max
_TURNS = 40
"""Bits of a key that order by the last use; those above order by the number of uses."""
_MOST = (1 << (62 - _TURNS)) - 1
_SHARE = 8
"""The part of all lines that each search for candidates looks through."""


class Policy(ABC):
    """The worth of ``lines`` lines; lines of least worth are evicted first.

    A batch uses distinct lines; each use counts once. Of the lines used in one batch the first
    given is the oldest. The cost of a use does not grow with the number of lines: all of them are
    looked at only once in many evictions.
    """

    def __init__(self, lines: int) -> None:
        self.keys = np.full(lines, -1, np.int64)
        self.uses = np.zeros(lines, np.int64)
        self._turn = 0
        self._free = 0
        # Every line of a key below the threshold is a candidate.
        self._candidates = np.empty(0, np.int64)
        self._is_candidate = np.zeros(lines, np.bool_)
        self._threshold = -1

    @abstractmethod
    def worth(self, uses: Array, turns: Array) -> Array:
        """Keys of lines used so often, for the last time at ``turns``, which rise."""

    def use(self, lines: Array) -> None:
        """Count a use of each of ``lines``."""
        turns = np.arange(self._turn, self._turn + len(lines))
        self._turn += len(lines)
        self.uses[lines] += 1
        keys = self.keys[lines] = self.worth(self.uses[lines], turns)
        low = lines[(keys < self._threshold) & ~self._is_candidate[lines]]
        self._is_candidate[low] = True
        self._candidates = np.concatenate((self._candidates, low))

    def make_room(self, count: int, busy: Array) -> Array:
        """Up to ``count`` lines for new rows, none of the lines ``busy``: free ones, then others.

        Fewer where no more may go. They have no uses then.
        """
        free = np.arange(self._free, min(self._free + count, len(self.keys)))
        self._free += len(free)
        gone = self._least(count - len(free), busy)
        self.uses[gone] = 0
        self.keys[gone] = -1
        return np.concatenate((free, gone))

    def _least(self, count: int, busy: Array) -> Array:
        """Up to ``count`` used lines of least worth, rising, but those ``busy``."""
        if count <= 0:
            return np.empty(0, np.int64)
        found = self._among(self._candidates, count, busy)
        # A line that is no candidate is worth the threshold at least.
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
        """Make the lines of least worth candidates, at least ``count`` of them."""
        wanted = max(count, len(self.keys) // _SHARE)
        if wanted < len(self.keys):
            # Lines that wait for their first use are for nobody.
            keys = np.where(self.keys < 0, _NEVER, self.keys)
            least = np.argpartition(keys, wanted)
            self._threshold = int(keys[least[wanted]])
            self._candidates = least[:wanted]
        else:
            self._threshold, self._candidates = _NEVER, np.arange(len(self.keys))
        self._is_candidate[:] = False
        self._is_candidate[self._candidates] = True


class LRU(Policy):
    """The least recently used goes first."""

    def worth(self, uses: Array, turns: Array) -> Array:
        return turns


class LFU(Policy):
    """The least often used goes first, of those used equally often the least recently used."""

    def worth(self, uses: Array, turns: Array) -> Array:
        return (np.minimum(uses, _MOST) << _TURNS) + turns


class LFUOpt(LFU):
    """As `LFU`, but a line that was used ten times stays for good."""

    permanent = 10

    def worth(self, uses: Array, turns: Array) -> Array:
        return np.where(uses >= self.permanent, _NEVER, super().worth(uses, turns))


POLICIES: dict[str, type[Policy]] = {"lru": LRU, "lfu": LFU, "lfuopt": LFUOpt}


class CachedRows(TableRows):
    """Rows of ``table`` of which ``cache`` says how many stay, which, and how old they may be.

    A line has a row as it was pulled at ``clocks``, updated since by the gradients that it was
    given here. Those wait in ``pending``, ``gathered`` so many, until they are pushed as one. A row
    that the table has updated more than ``pull_bound`` times since, by these pushes or others, is
    pulled anew, and updated by what waits. ``rule``, as the table's, updates lines; its state of
    a row is that of its updates here. A cell of memory for each row tells its line.
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
                expected="a rule that treats each element by itself, such as SGD, AdaGrad or Adam",
                received=repr(rule),
                advice="leave the cache of its Embedding out, or use another rule",
            )
        self.cache = cache
        lines = cache.lines(table.rows)
        self._policy = POLICIES[cache.policy](lines)
        self._line_of = np.full(table.rows, -1, np.int32)
        self._row_of = np.full(lines, -1, np.int64)
        self.values = np.zeros((lines, table.width), self.dtype)
        self.clocks = np.zeros(lines, np.int64)
        # A sum that begins at −0 has the sign of its first zero.
        self.pending = np.full((lines, table.width), -0.0, self.dtype)
        self.gathered = np.zeros(lines, np.int64)
        self._followed, self._rule = rule, bare_copy(rule)
        self._rule.register(param.name, rule_of(rule)._spec_of(param))

    def flush(self) -> None:
        waiting = np.flatnonzero(self.gathered)
        for start in range(0, len(waiting), self.piece):
            self._send(waiting[start : start + self.piece], waiting[:0], self.pending[:0])

    def prefetch(self, ids: Array) -> None:
        """As `TableRows`: nothing, since it depends on the step which rows are here after it."""

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
        """The values of ``rows``, of which the first have ``lines`` now."""
        given = lines[self.gathered[lines] > 0]
        given = given[np.argsort(self._row_of[given])]
        pulled = self.table.start_pull(rows)
        # What a table hears in the middle of a step it may apply at its end.
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
        """Let the rows of ``lines`` go, with what waits."""
        self._line_of[self._row_of[lines]] = -1
        self._row_of[lines] = -1
        self.pending[lines], self.gathered[lines] = -0.0, 0
        for array in rule_of(self._rule).state(self.name).arrays:
            array.reshape(self.values.shape)[lines] = 0

    def _refresh(self, hits: Array, places: Array, values: Array, clocks: Array) -> None:
        """Take what the table has of the lines ``hits[places]``, and what waits on top of it."""
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
        """Update ``lines`` by gradients, by default by all that wait."""
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
        """Push what waits of ``lines``, and the gradients of ``rows``, which have none."""
        rows = np.concatenate((self._row_of[lines], rows))
        grads = np.concatenate((self.pending[lines], grads))
        counts = np.concatenate((self.gathered[lines], np.ones(len(rows) - len(lines), np.int64)))
        order = np.argsort(rows)
        self._push(rows[order], grads[order], counts[order])
        self.pending[lines], self.gathered[lines] = -0.0, 0


_DRAWN = 1 << 20
"""Elements that are drawn at a time."""


def serve(
    net: Any,
    rule: Optimizer | Wrapper,
    tables_of: Callable[[Sequence[Param]], Mapping[str, ServedTable]],
    wrote: Callable[[], bool] = lambda: False,
) -> dict[str, TableRows]:
    """Let tables have the rows of the trained Embeddings of ``net``, by parameter name.

    ``tables_of`` makes the tables of parameters that were not served before, with the values that
    they begin with. Where a parameter has others, they are written there, unless somebody
    ``wrote`` them; one that has none never gets any in memory, where this comes before the first
    pass. ``rule`` updates what stays in caches. Tables that other layers read, too, are left.
    Errors: `ArgumentError` for a cache of such a table, and for caches that differ.
    """
    found = to_serve(net)
    new = [(param, cache) for param, cache in found if not param.storage.by_rows]
    for param, _ in new:
        if not param.filled:
            param.seed, param.dtype = net.seed, net.dtype
        # What a net was converted to, a table keeps too; the first values are written there then.
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


def looks_at_gradients_alone(stage: Wrapper) -> bool:
    """Whether a stage has no part in what becomes of values."""
    return type(stage).settle is Wrapper.settle and type(stage).updated is Wrapper.updated


def _is_as_drawn(param: Param) -> bool:
    """Whether the values are those that the parameter began with."""
    flat = ops_for(param.value).host(param.value).reshape(-1)
    return all(
        np.array_equal(flat[start : start + piece.size], piece.astype(flat.dtype))
        for start, piece in param.initial_pieces(_DRAWN)
    )


def to_serve(net: Any) -> list[tuple[Param, Cache | None]]:
    """The parameters that Embeddings alone read and that are trained, and their caches."""
    found: dict[int, tuple[Param, Cache | None]] = {}
    read_whole: set[int] = set()
    # Planned only, a net does not fill its parameters.
    plan = net.planned() if isinstance(net, Net) else net._execution_plan()
    layers = {id(step.layer): step.layer for step in plan.steps if not step.frozen}
    for layer in layers.values():
        for param in layer.params.values():
            key = id(param.root)
            # A class of a user's own may read the whole array.
            if type(layer) is not Embedding:
                read_whole.add(key)
            elif param.trainable:
                before = found.setdefault(key, (param, layer.cache))[1]
                if repr(before) != repr(layer.cache):
                    raise ArgumentError(
                        f"layer {layer.name!r}, argument cache",
                        expected=f"{before}, as of the other Embedding of {param.name!r}",
                        received=repr(layer.cache),
                        advice="give Embeddings that share a table the same cache",
                    )
    for key in read_whole & found.keys():
        param, cache = found.pop(key)
        if cache is not None:
            raise ArgumentError(
                f"parameter {param.name!r}, cache",
                expected="a table that Embeddings alone read",
                received="one that another layer reads as a whole",
                advice="leave the cache out: such a table is not served",
            )
    return list(found.values())
