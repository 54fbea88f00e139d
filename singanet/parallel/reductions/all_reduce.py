"""All-reduce of gradients, and the store of unsent gradients."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet.base import terms
from singanet.base.arguments import checked_count
from singanet.base.tracebacks import users_level
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, brief
from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Found, ReducerTraits, Reduction, RoundKind, Traffic
from singanet.optimizer.state import Owners
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator, Halves, Request
from singanet.parallel.reductions.rank_reducer import ExtraState, RankReducer, announced
from singanet.params.grads import dense_gradient
from singanet.params.param import Param
from singanet.types import Array, RowSparse


@dataclass(slots=True, eq=False)
class Flight:
    """An entry in flight: the sum of its ``buffer``, and the row gradients by name."""

    sums: Request | None = None
    gathered: dict[str, tuple[Request, Request]] = field(default_factory=dict)
    done: bool = False

    def requests(self) -> Iterator[Request]:
        """Yield the requests of the entry."""
        if self.sums is not None:
            yield self.sums
        for pair in self.gathered.values():
            yield from pair

    def test(self) -> bool:
        """Advance the entry, and return True if it is done."""
        # All of them, as the call advances a request.
        waiting = [request for request in self.requests() if not request.test()]
        return not waiting


class Round(Reduction):
    """Rounds of sums over the ranks of ``owner``.

    Entries are groups of the `Order`. They start when the weights of the gradients are known;
    missing gradients count as zeros. A rank that joins by `join` has no gradients and weight 0.
    """

    def __init__(self, owner: RankReducer, window: int, halves: Halves | None = None) -> None:
        self._owner, self.order = owner, owner.order
        self.window, self.halves, self.traffic = window, halves, Traffic()
        self.weight = self.mean = 1.0
        self._ended = True
        self._announcement: Request | None = None
        self._flying: deque[Flight] = deque()
        self._busy: float | None = None
        self._learnt = False

    @property
    def comm(self) -> Communicator:
        """The communicator of the ranks."""
        return self._owner.comm

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def entries(self) -> Sequence[Sequence[str]]:
        return self.order.entries

    @property
    def settled(self) -> bool:
        """True if all ranks know the kinds of all gradients."""
        return self._owner._has_met and self.order.is_settled()

    @property
    def share(self) -> float:
        return self.weight * self.mean

    @property
    def factor(self) -> float:
        return self.mean

    @property
    def under_way(self) -> bool:
        return bool(self._flying)

    def value(self, name: str) -> Array:
        return self.order.by_name[name].value

    def like(self, name: str) -> Array:
        return self.order.like(self.order.by_name[name])

    def is_rows(self, name: str) -> bool:
        return self.order.kinds.get(name) == "rows"

    def module(self, like: Array) -> Any:
        """Return the array module of buffers: CuPy if the communicator accepts device arrays."""
        there = self.comm._on_device and self.halves is None
        return ops_for(like).xp if there else np

    # -- a round ------------------------------------------------------------------------------

    def open(self, kind: RoundKind) -> None:
        """Start a round. Errors: `CallOrderError` if the previous round has not ended."""
        self._owner._expect_begun()
        if not self._ended:
            raise CallOrderError(
                "AllReduce",
                expected="the end of the previous step",
                received="another step: an error ended the last step, and other ranks may wait",
                advice="end all ranks, and resume from a checkpoint",
            )
        count = self._owner._count
        self._begin(announced(self.comm, kind, count), 1.0 if count is None else float(count))

    def join(self, heard: Request) -> None:
        """Take part in the others' round, announced by ``heard``, without gradients."""
        self._begin(heard, 0.0)

    def _begin(self, announcement: Request, weight: float) -> None:
        self._announcement, self.weight, self._ended = announcement, weight, False

    def prepare(self, names: Sequence[str], given: Mapping[str, Any]) -> Sequence[str]:
        kinds = self.order.kinds
        if self.order.unknown(names):
            self._ask(names, given)
        return [name for name in names if kinds[name] != "idle"]

    def late(self, gone: Collection[str], given: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """Return the parameters that no rank had reached before, after asking all ranks again."""
        idle = [[name for name in layer if name not in gone] for layer in self.order.idle()]
        if any(idle):
            self._ask([name for layer in idle for name in layer], given)
        return idle

    def _ask(self, names: Sequence[str], given: Mapping[str, Any]) -> None:
        """Exchange the kinds of the gradients of ``names`` with all ranks."""
        counts = np.zeros((len(names), 2))
        for row, name in zip(counts, names, strict=True):
            if name in given:
                row[int(isinstance(given[name][0], tuple))] = 1
        before = dict(self.order.kinds)
        what = f"which ranks reached {listed(names)}"
        self.order.learn(names, self.comm.all_reduce(counts, what=what))
        self._learnt |= before != self.order.kinds

    def start(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> None:
        """Start an entry, after all ranks have announced the weights of their gradients.

        The wait gives all ranks one order of operations, including the operations of layers.
        """
        self._hear()
        if self._busy is None:
            self._busy = time.perf_counter()
        self._flying.append(self._begun(names, buffer, scales, rows))

    def _begun(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> Flight:
        of = dict(zip(names, scales, strict=True))
        flight = Flight()
        for name in filter(self.is_rows, names):
            flight.gathered[name] = self._gathered(name, rows.get(name), of[name])
        parts = self.parts(names, buffer)
        for name, part in parts.items():
            if name in rows:
                self.lay(part, dense_gradient(ops_for(self.like(name)), rows[name], part.shape))
            self._weigh(part, of[name])
        if buffer is not None:
            for k, name in enumerate(parts):
                buffer[k - len(parts)] = of[name] is not None
            flight.sums = self._summed(names, buffer, f"the gradients of {listed([*parts])}")
        return flight

    def _weigh(self, part: Array, scale: Scale | None) -> None:
        weight = part.dtype.type(self.weight * float(1.0 if scale is None else scale))
        if not self.weight:
            part.fill(0)
        elif weight != 1:
            np.multiply(part, weight, out=part)

    def _summed(self, names: Sequence[str], buffer: Array, what: str) -> Request:
        """Start the sum of ``buffer``: the gradients ``names``, and one flag for each."""
        self.count(buffer.nbytes // (1 if self.halves is None else 2))
        if self.halves is None:
            return self.comm.start_all_reduce(buffer, what=what)
        return self.halves.start_sum(self.comm, buffer, what)

    def _gathered(
        self, name: str, grad: RowSparse | None, scale: Scale | None
    ) -> tuple[Request, Request]:
        """Start to gather the rows of all ranks; a rank with rows puts −1 before its indices."""
        like = self.like(name)
        ops = ops_for(like)
        indices, rows = np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype)
        if grad is not None:
            indices = np.concatenate([[-1], ops.host(grad.indices)]).astype(np.int64)
            rows = ops.host(grad.rows).astype(like.dtype, copy=False)
        weight = rows.dtype.type(self.weight * float(1.0 if scale is None else scale))
        rows = np.multiply(rows, weight, order="C") if self.weight else np.zeros_like(rows)
        if self.halves is not None:
            rows = self.halves.rounded(rows)
        self.count(indices.nbytes + rows.nbytes)
        gather, what = self.comm._start_all_gather, f"the rows of {name}"
        return gather(indices, what), gather(rows, what)

    def count(self, nbytes: int) -> None:
        """Count a message of ``nbytes``."""
        self.traffic.sums += 1
        self.traffic.nbytes += nbytes

    def test(self) -> None:
        if self._announcement is not None:
            self._announcement.test()
        for flight in self._flying:
            if not flight.done and flight.test():
                self._arrived(flight)

    def finish(self, names: Sequence[str], buffer: Array | None) -> list[Found]:
        flight = self._land()
        dense = [name for name in names if name not in flight.gathered]
        there: dict[str, Any] = {}
        if buffer is not None and flight.sums is not None:
            summed = flight.sums.wait()
            if summed is not buffer:
                buffer[...] = summed
            there = dict(zip(dense, buffer[-len(dense) :].tolist(), strict=True))
        return [
            bool(there[name]) if name in there else self._rows_of(flight, name) for name in names
        ]

    def _rows_of(self, flight: Flight, name: str) -> RowSparse | None:
        """Return the rows of all ranks, None if no rank has any."""
        indices, rows = flight.gathered[name]
        where = np.concatenate(indices.wait())
        if not len(where):
            return None
        like = self.like(name)
        ops = ops_for(like)
        value = np.concatenate(rows.wait()).astype(like.dtype, copy=False)
        return RowSparse(*ops.sum_rows(ops.xp.asarray(where[where >= 0]), ops.xp.asarray(value)))

    def close(self, kind: RoundKind) -> None:
        """End the round, after receiving the announcement."""
        self._hear()
        self._ended = True
        if self._learnt:
            self._learnt = False
            self.order.group()
        if kind == "step":
            self._owner._ended()

    def _land(self) -> Any:
        """Wait for the oldest flight and return it."""
        flight = self._flying.popleft()
        if not flight.done:
            began = time.perf_counter()
            for request in flight.requests():
                request.wait()
            self.traffic.waited += time.perf_counter() - began
            self._arrived(flight)
        return flight

    def _arrived(self, flight: Flight) -> None:
        flight.done = True
        if self._busy is not None and all(other.done for other in self._flying):
            self.traffic.busy += time.perf_counter() - self._busy
            self._busy = None

    def _hear(self) -> None:
        """Receive the weights of the gradients and the factor that turns sums into means."""
        if self._announcement is not None:
            began = time.perf_counter()
            said = self._announcement.wait()
            waited = time.perf_counter() - began
            self.traffic.waited += waited
            self.traffic.busy += waited
            self._announcement = None
            self.mean = said.factor
            if said.even:
                self.weight = 1.0


class AllReduce(RankReducer):
    """Updates by the mean of the gradients of all ranks, each weighed by its samples.

    p ranks with batches of b train as one process with batches of p · b. Weighed gradients are
    copied to buffers, small ones together, and summed during backward. Finished sums are applied at
    the next call of `update`, the remaining ones in `end`. A parameter that one rank did not reach
    has zero gradients there; a parameter that no rank reached is not updated. Row-sparse gradients
    stay row-sparse: their rows are gathered. Rows of served tables are sent to the tables at the
    end, weighed like the others. Steps are recorded; then gradients are summed in place.
    ``traffic`` counts the exchanges.

    Clipping belongs inside, ``AllReduce(ClipByGlobalNorm(SGD(...), 1.0))``, accumulation outside,
    for one reduction per update. `net.step` and `fit` make the calls that your own loop needs:
    `meet`, `begin`, `end`, `join`.

    Args:
        optimizer: The optimizer, or a stage around one, that updates by the mean gradients.
        comm: Communicator of the ranks, by default `parallel.init()`.
        window: Maximum number of sums in flight, a positive int.
        dtype: "float16" to send gradients in half the bytes and add them in float32, or None for
            their own dtype. It is for slow networks; on one host the rounding takes longer than it
            saves. Numbers too large for float16 are clipped, and counted in ``overflowed``.
    """

    traits = ReducerTraits(takes=(terms.ORDER,))

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        window: int = 4,
        dtype: str | None = None,
    ) -> None:
        super().__init__(optimizer, comm)
        self.window = checked_count(type(self).__name__, "window", window, 1)
        if dtype not in (None, "float16"):
            raise ArgumentError(
                "AllReduce(dtype=)",
                expected="'float16', or None for the dtype of the gradients",
                received=brief(dtype),
                advice="pass it only on a slow network",
            )
        self.dtype = dtype
        self.reduction: Round = Round(self, self.window, None if dtype is None else Halves())

    @property
    def traffic(self) -> Traffic:
        """The traffic so far."""
        return self.reduction.traffic

    @property
    def overflowed(self) -> int:
        """The count of numbers of this rank that were too large for float16."""
        return 0 if self.reduction.halves is None else self.reduction.halves.overflowed


def listed(names: Sequence[str]) -> str:
    """Return the first of ``names`` and the number of the others, as text."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else "nothing"


_WHOSE = "*/unsent"
_SUM, _MOMENTUM = "unsent", "unsent_momentum"


class Unsent(ExtraState):
    """Unsent gradients by parameter, flat and on the host, and their momentum.

    With ``momentum`` m and gradients g the sum is r = r + u with u = m u + g; sent elements of both
    restart at 0 (Lin et al. 2018, Deep Gradient Compression, momentum correction and factor
    masking). Otherwise r = r + g. Without ``feedback`` nothing is stored.
    """

    def __init__(self, where: str, feedback: bool, momentum: float = 0.0) -> None:
        self._where, self.feedback, self.momentum = where, feedback, momentum
        self.slots: dict[str, dict[str, Array]] = {_SUM: {}, _MOMENTUM: {}}
        self.steps = 0
        self._owners, self._loaded = Owners(), False

    def turn(self, params: Sequence[Param], other: bool) -> None:
        for param in params:
            self._owners.turn(param.name, param.root, *self.slots.values())
        self.steps = self._owners.turn_all([p.root for p in params], other, self.steps, 0)

    def plus(self, name: str, grad: Array, factor: float, keep: bool, alone: bool) -> Array:
        """Return the flat sum with ``factor`` · ``grad``, which is stored if ``keep``.

        A rank that is ``alone`` stores only the momentum.
        """
        sums = np.multiply(grad, grad.dtype.type(factor), order="C").reshape(-1)
        if not self.feedback:
            return sums
        if self.momentum:
            moved = self._of(_MOMENTUM, name, sums, keep)
            moved *= moved.dtype.type(self.momentum)
            moved += sums
            sums = moved
        if alone:
            return sums
        total = self._of(_SUM, name, sums, keep)
        total += sums
        return total

    def drop(self, name: str, places: Array) -> None:
        """Reset the elements at ``places``, which were sent."""
        for slot in (_SUM, _MOMENTUM):
            if name in self.slots[slot]:
                self.slots[slot][name][places] = 0

    def _of(self, slot: str, name: str, like: Array, keep: bool) -> Array:
        kept = self.slots[slot]
        found = kept.get(name)
        if found is None:
            found = np.zeros_like(like)
        elif found.dtype != like.dtype:
            found = found.astype(like.dtype)
        elif not keep:
            return found.copy()
        if keep:
            kept[name] = found
        return found

    def expect_fit(
        self, params: Iterable[Param], like: Callable[[Param], Array], new: bool
    ) -> None:
        """Check the sizes if ``params`` are ``new`` or a state was loaded. Errors: `ShapeError`."""
        for param in params if new or self._loaded else ():
            momentum = self.slots[_MOMENTUM].get(param.name)
            found = self.slots[_SUM].get(param.name, momentum)
            if found is not None and found.size != like(param).size:
                raise ShapeError(
                    f"{self._where}, parameter {param.name!r}",
                    expected=f"{like(param).size} unsent elements, the size of the parameter",
                    received=f"{found.size}",
                    advice=f"load the state of the same net, or make a new {self._where}",
                )
        self._loaded = False

    # -- saving -----------------------------------------------------------------------------------

    def state(self, rank: int, size: int) -> dict[str, Array]:
        saved = {_WHOSE: np.array([rank, size, self.steps], np.int64)}
        for slot, kept in self.slots.items():
            saved |= {f"{name}/{slot}": array.copy() for name, array in kept.items()}
        return saved

    def parsed(self, own: Mapping[str, Array], rank: int, size: int) -> Any:
        whose = np.asarray(own.get(_WHOSE, ()))
        if whose.shape != (3,) or whose.dtype.kind not in "iu" or whose[2] < 0:
            raise DataError(
                f"{self._where}.load_state_dict",
                expected=f"{_WHOSE!r}: rank, number of ranks and steps",
                received="nothing" if _WHOSE not in own else f"an array {whose.shape}",
                advice=f"load a complete state_dict of a {self._where}",
            )
        found: dict[str, dict[str, Array]] = {slot: {} for slot in self.slots}
        for key, array in own.items():
            name, _, slot = key.rpartition("/")
            if key != _WHOSE:
                found[slot][name] = np.array(array)
        if (found[_SUM] or found[_MOMENTUM]) and tuple(whose[:2].tolist()) != (rank, size):
            warnings.warn(
                f"rank {rank} of {size} resumes from the state of rank {whose[0]} of {whose[1]}: "
                "its unsent gradients are dropped, and this rank starts with nothing unsent",
                RuntimeWarning,
                stacklevel=users_level(),
            )
            found |= {_SUM: {}, _MOMENTUM: {}}
        return int(whose[2]), found

    def take(self, parsed: Any) -> None:
        self._owners.forget()
        self._loaded = True
        self.steps, self.slots = parsed

    def is_own(self, key: str) -> bool:
        return key == _WHOSE or key.rpartition("/")[2] in self.slots


class UnsentRound(Round):
    """A `Round` that sends a part of the gradients; a preview does not change the unsent part."""

    _keeps = True

    @property
    def unsent(self) -> Any:
        """The unsent gradients."""
        return self._owner._extra_state

    def module(self, like: Array) -> Any:
        """Return NumPy: the choice of sent elements is made on the host."""
        return np

    def open(self, kind: RoundKind) -> None:
        super().open(kind)
        self._keeps = kind == "step"

    def close(self, kind: RoundKind) -> None:
        super().close(kind)
        self.unsent.steps += kind == "step"
