"""Compressed reductions: the largest elements, or low-rank factors."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet.base import terms
from singanet.base.arguments import checked_count, is_number
from singanet.base.tracebacks import users_level
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError, brief
from singanet.ops import ops_for
from singanet.ops.blas import product
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.hyper import Scale, at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Found, ReducerTraits, RoundKind
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator, Request, Staged
from singanet.parallel.reductions.all_reduce import AllReduce, Flight, Unsent, UnsentRound, listed
from singanet.parallel.reductions.rank_reducer import RankReducer
from singanet.types import Array, RowSparse, Shape

Choice = Callable[[Array, int], Array]
"""``choice(values, count)`` returns the ascending places to send of flat ``values``.

``count`` of the values are gradients that exist."""

_SILENT = 10
"""Steps without a sent element before a warning."""

_NONE, _DENSE = -1, 0
"""The code of a rank's gradient of a parameter; a code above 0 is the number of rows plus one."""


class SparseRound(UnsentRound):
    """A round in which each rank sends some elements of an entry, all in one message.

    A message has the number of elements and a code per parameter (int32), the places of the
    elements in the concatenated entry (uint32), and their values; then for each row-sparse gradient
    the indices (int64) and all of its rows. All ranks add all messages in the order of ranks, and
    so get the same bits. A rank sends nothing for parameters that it has not reached.
    """

    def __init__(self, owner: RankReducer, window: int, choice: Choice) -> None:
        super().__init__(owner, window)
        self._choice = choice
        # The largest element of this step, and True if any was sent; then the steps without one.
        self._found, self._passed = 0.0, False
        self._silent: int | None = 0

    @property
    def factor(self) -> float:
        """1: messages are weighed when they are sent."""
        return 1.0

    @property
    def settled(self) -> bool:
        """True if all ranks know the kinds of all gradients, and there are several ranks."""
        return self.comm.size > 1 and super().settled

    def prepare(self, names: Sequence[str], given: Mapping[str, Any]) -> Sequence[str]:
        """Return ``names``. Errors: `ArgumentError` for row-sparse gradients with ``momentum``."""
        for name in names:
            if self.unsent.momentum and name in given and isinstance(given[name][0], tuple):
                raise ArgumentError(
                    f"SparseAllReduce(momentum=), parameter {name!r}",
                    expected="a dense gradient",
                    received="a row-sparse gradient, whose rows are sent whole, without a sum",
                    advice="give the momentum to the rule: SGD(momentum=...)",
                )
        return names

    def _begun(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> Flight:
        # Unsent gradients are part of the mean of their own step.
        assert buffer is not None
        message = self._message(names, buffer, scales, rows)
        self.count(message.nbytes)
        what = f"the gradients of {listed(names)}"
        return Flight(self.comm._start_all_gather(message, what))

    def finish(self, names: Sequence[str], buffer: Array | None) -> list[Found]:
        assert buffer is not None
        heard = [_Message(part, [*map(self.like, names)]) for part in self._land().sums.wait()]
        total = buffer[: buffer.size - len(names)]
        total.fill(0)
        for each in heard:
            total[each.places] += each.values
        found: list[Found] = []
        for k, (name, part) in enumerate(self.parts(names, buffer).items()):
            rows = [each.rows[k] for each in heard if k in each.rows]
            if any(each.codes[k] == _DENSE for each in heard):
                for indices, values in rows:
                    part[indices] += values
                found.append(True)
            elif rows:
                ops = ops_for(self.like(name))
                parts = [np.concatenate(each) for each in zip(*rows, strict=True)]
                found.append(RowSparse(*ops.sum_rows(*map(ops.xp.asarray, parts))))
            else:
                found.append(None)
        return found

    def close(self, kind: RoundKind) -> None:
        """End the round; unless it was a preview, count a step of the unsent gradients."""
        super().close(kind)
        if kind != "step":
            return
        if self._found and not self._passed and self._silent is not None:
            self._silent += 1
            if self._silent == _SILENT:
                self._silent = None
                warnings.warn(self._nothing(), RuntimeWarning, stacklevel=users_level())
        elif self._passed:
            self._silent = 0
        self._found, self._passed = 0.0, False

    def _nothing(self) -> str:
        owner: Any = self._owner
        return (
            f"SparseAllReduce(threshold={owner.threshold!r}): nothing was sent in {_SILENT}"
            f" steps, as the largest unsent element is {self._found:.2g}; choose a threshold in the"
            " unit of this rank's part of the mean, or ratio="
        )

    def _message(
        self,
        names: Sequence[str],
        buffer: Array,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> Array:
        """Return this rank's message for an entry, as bytes."""
        codes, parts, sent, count = [], [], [], 0
        for name, scale, part in zip(
            names, scales, self.parts(names, buffer).values(), strict=True
        ):
            offered = part.reshape(-1)
            factor = self.share * float(1.0 if scale is None else scale)
            if name in rows:
                indices, values = map(ops_for(self.like(name)).host, rows[name])
                own = np.multiply(values, part.dtype.type(factor), order="C")
                codes.append(len(own) + 1)
                sent += [indices.astype(np.int64), own]
            elif scale is None or not self.weight:
                # With weight 0 it counts as present, and only its code is sent.
                codes.append(_NONE if scale is None else _DENSE)
                offered.fill(0)
            else:
                codes.append(_DENSE)
                alone = self.comm.size == 1
                offered = self.unsent.plus(name, part, factor, self._keeps, alone)
                count += part.size
            parts.append(offered)
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        places = self._choice(whole, count) if count else np.empty(0, np.int64)
        if len(places) or any(name in rows for name in names):
            self._passed = True
        elif count and not self._passed:
            self._found = max(self._found, float(np.abs(whole).max()))
        values = whole[places].astype(buffer.dtype, copy=False)
        if self._keeps and self.weight and self.comm.size > 1:
            self._sent(names, codes, parts, places)
        head = np.array([len(places), *codes], np.int32)
        pieces = [head, places.astype(np.uint32), values, *sent]
        return np.concatenate([np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in pieces])

    def _sent(
        self, names: Sequence[str], codes: list[int], parts: list[Array], places: Array
    ) -> None:
        """Reset the unsent gradients at ``places``."""
        start = 0
        for name, code, part in zip(names, codes, parts, strict=True):
            stop = start + part.size
            if code == _DENSE:
                first, last = np.searchsorted(places, (start, stop))
                self.unsent.drop(name, places[first:last] - start)
            start = stop


class _Message:
    """A rank's message for an entry with gradients like ``likes``."""

    def __init__(self, message: Array, likes: Sequence[Array]) -> None:
        self._message, self._start = message, 0
        head = self._read((len(likes) + 1,), np.int32)
        self.codes = head[1:]
        count = (int(head[0]),)
        self.places = self._read(count, np.uint32)
        self.values = self._read(count, likes[0].dtype)
        self.rows: dict[int, tuple[Array, Array]] = {}
        for k, (code, like) in enumerate(zip(self.codes, likes, strict=True)):
            if code > _DENSE:
                indices = self._read((int(code) - 1,), np.int64)
                self.rows[k] = indices, self._read((int(code) - 1, *like.shape[1:]), like.dtype)

    def _read(self, shape: tuple[int, ...], dtype: Any) -> Array:
        found = np.frombuffer(self._message, dtype, prod(shape), self._start)
        self._start += found.nbytes
        return found.reshape(shape)


_FEW = 1 << 14
"""Elements up to which the array itself is partitioned, as a sample would save nothing."""

_SAMPLED = 1 << 7
"""The sample for a threshold has 1 element in this number."""


def largest(values: Array, count: int) -> Array:
    """Return the ascending places of the ``count`` elements of largest magnitude.

    Ties go to the first element. NaN counts as larger than any number, so that all ranks receive
    it. ``values`` is flat. Most elements are only compared with a threshold from a sample, low
    enough to pass too many rather than too few; these are then reduced to exactly ``count``.
    """
    count = min(count, values.size)
    if count <= 0:
        return np.empty(0, np.int64)
    sizes = np.abs(values)
    found = None
    if sizes.size > _FEW:
        sample = _comparable(sizes[:: _stride(sizes.size)])
        share = count / sizes.size
        # The sample's count of large elements varies by its square root.
        wanted = share * sample.size
        wanted = int(wanted + 3.0 * wanted**0.5) + 2
        while wanted < sample.size:
            least = np.partition(sample, sample.size - wanted)[sample.size - wanted]
            # Comparisons with NaN are False.
            found = np.flatnonzero(~(sizes < least))
            if found.size >= count:
                break
            found, wanted = None, 4 * wanted
    among = np.arange(sizes.size) if found is None else found
    return among[_exactly(_comparable(sizes[among]), count)]


def reaching(values: Array, threshold: float) -> Array:
    """Return the ascending places of NaN and of elements of at least ``threshold`` in magnitude."""
    return np.flatnonzero(~(np.abs(values) < threshold))


def _stride(size: int) -> int:
    """Return the step between sampled elements: odd, unlike the usual length of a row."""
    return min(_SAMPLED, size // (_FEW // 4)) | 1


def _comparable(sizes: Array) -> Array:
    """Return ``sizes`` with infinity for NaN."""
    return np.where(np.isnan(sizes), np.inf, sizes)


def _exactly(sizes: Array, count: int) -> Array:
    """Return the ascending places of the ``count`` largest of ``sizes``; ties go to the first."""
    if count == sizes.size:
        return np.arange(count)
    least = np.partition(sizes, sizes.size - count)[sizes.size - count]
    chosen = sizes > least
    ties = np.flatnonzero(sizes == least)[: count - int(np.count_nonzero(chosen))]
    chosen[ties] = True
    return np.flatnonzero(chosen)


_FIRST = 0.25
"""The first ratio of a warm-up, as in Deep Gradient Compression."""


class SparseAllReduce(AllReduce):
    """`AllReduce` of the elements of largest magnitude; the others are sent later.

    It warns after ten steps in which it sent nothing. Small parameters share one choice. Row-sparse
    gradients are sent whole. Inner stages receive the sum as an ordinary gradient, zero for
    elements that no rank has sent. A single process trains by whole gradients. It is for slow
    networks: on one host the choice costs more than the sending.

    `state_dict` has the unsent gradients of its rank; a training state of `fit` includes all ranks.
    A rank does not load the unsent gradients of another one.

    Args:
        optimizer: The optimizer, or a stage around one, that updates by the sparse means.
        comm: Communicator of the ranks, by default `parallel.init()`.
        ratio: Share of elements that is sent, in (0, 1]: exactly ceil(ratio · n) of n elements.
            None is 0.001, unless there is a ``threshold``.
        threshold: Least magnitude of the elements that are sent instead, in the unit of the rank's
            part of the mean.
        error_feedback: Whether to add unsent elements to the next gradient (Strom 2015, Aji and
            Heafield 2017), which takes one array per parameter.
        momentum: Momentum in [0, 1) that is summed before the choice, instead of the rule's
            momentum, as in Deep Gradient Compression (Lin et al. 2018).
        warm_up: Number of first steps that send more, from 1 / 4 down to the ratio geometrically.
        window: Maximum number of sums in flight, a positive int.
    """

    _extra_state: Unsent
    traits = ReducerTraits(copies=8, takes=(terms.ORDER,))
    """Copies with unsent gradients, momentum, and magnitudes for the choice: measured."""

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        ratio: float | None = None,
        threshold: float | None = None,
        error_feedback: bool = True,
        momentum: float = 0.0,
        warm_up: int = 0,
        window: int = 4,
    ) -> None:
        where = "SparseAllReduce"
        if ratio is not None and threshold is not None:
            raise ArgumentError(
                where,
                expected="ratio= or threshold=",
                received=f"ratio={ratio!r} and threshold={threshold!r}",
                advice="remove one",
            )
        super().__init__(optimizer, comm, window)
        self._least: float | None = None
        self._ratio: float | None = None
        if threshold is None:
            self.ratio = 0.001 if ratio is None else ratio
        else:
            self.threshold = threshold
        self.warm_up = warm_up
        momentum = at(checked(where, "momentum", momentum, 0.0, 1.0), 0)
        self._check_momentum(momentum, bool(error_feedback))
        self._extra_state = Unsent(where, bool(error_feedback), momentum)
        self.reduction = SparseRound(self, self.window, self._chosen)

    @property
    def ratio(self) -> float | None:
        """The share of elements that is sent; assignment replaces the threshold."""
        return self._ratio

    @ratio.setter
    def ratio(self, ratio: float) -> None:
        self._ratio, self._least = _within("ratio", ratio), None

    @property
    def threshold(self) -> float | None:
        """The least magnitude that is sent; assignment replaces the ratio and its warm-up."""
        return self._least

    @threshold.setter
    def threshold(self, threshold: float) -> None:
        self._least, self._ratio, self._warm_up = _within("threshold", threshold), None, 0

    @property
    def warm_up(self) -> int:
        """The number of first steps that send more than the ratio."""
        return self._warm_up

    @warm_up.setter
    def warm_up(self, steps: int) -> None:
        steps = checked_count(type(self).__name__, "warm_up", steps, 0)
        if steps and self.ratio is None:
            raise ArgumentError(
                f"{type(self).__name__}(warm_up=)",
                expected="a ratio, which the warm-up reaches",
                received=f"threshold={self.threshold!r}",
                advice="give a ratio in place of the threshold",
            )
        self._warm_up = steps

    @property
    def error_feedback(self) -> bool:
        """True if unsent elements are added to the next gradient."""
        return self._extra_state.feedback

    @error_feedback.setter
    def error_feedback(self, flag: bool) -> None:
        self._check_momentum(self.momentum, bool(flag))
        self._extra_state.feedback = bool(flag)

    @property
    def momentum(self) -> float:
        """The momentum with which gradients are summed before the choice."""
        return self._extra_state.momentum

    @momentum.setter
    def momentum(self, momentum: float) -> None:
        momentum = at(checked(type(self).__name__, "momentum", momentum, 0.0, 1.0), 0)
        self._check_momentum(momentum, self.error_feedback)
        self._extra_state.momentum = momentum

    def _check_momentum(self, momentum: float, error_feedback: bool) -> None:
        if not momentum:
            return
        if not error_feedback:
            raise ArgumentError(
                "SparseAllReduce(momentum=)",
                expected="error_feedback=True, as it is summed with unsent gradients",
                received="error_feedback=False",
                advice="give the momentum to the rule: SGD(momentum=...)",
            )
        rule = UpdateChain(self.optimizer).rule
        if getattr(rule, "slots", ()):
            raise ArgumentError(
                "SparseAllReduce(momentum=)",
                expected="a rule without momentum: SGD(learning_rate=...)",
                received=brief(rule),
                advice="remove momentum= here or in the rule",
            )

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        super().meet(net, around)
        order = self.order
        if not order.kinds:
            # Messages contain the kinds of gradients, so the groups need no first round. They are
            # the same from the first step on, also in a resumed training.
            order.kinds = dict.fromkeys((param.name for param in order.params), "dense")
            order.group()

    @property
    def _alone(self) -> bool:
        """True for a single process without momentum, which trains by the plain rule."""
        return super()._alone and not self.momentum

    def _chosen(self, values: Array, count: int) -> Array:
        """Return the places to send of ``values``, ``count`` of which are gradients that exist."""
        if self.comm.size == 1:
            return np.arange(values.size)
        if self.threshold is not None:
            return reaching(values, self.threshold)
        return largest(values, math.ceil(self._ratio_now * count))

    @property
    def _ratio_now(self) -> float:
        """The ratio of the next step."""
        ratio, done = self.ratio or 1.0, self._extra_state.steps
        if done >= self.warm_up or ratio >= _FIRST:
            return ratio
        return _FIRST * float((ratio / _FIRST) ** (done / self.warm_up))


def _within(name: str, value: Any) -> float:
    fits = is_number(value) and (0 < value <= 1 if name == "ratio" else value >= 0)
    if not fits:
        raise ArgumentError(
            f"SparseAllReduce({name}=)",
            expected="a number above 0 and at most 1" if name == "ratio" else "a number from 0 on",
            received=brief(value)[:60],
            advice="ratio=0.001 is usual; threshold= has the unit of the gradients",
        )
    return float(value)


_SLOT = "direction"

_ROWS = 1 << 8
"""Rows of the sent product that are subtracted at a time."""


class Directions(Unsent):
    """Unsent gradients, and the start of the power iteration: a matrix (columns, ``rank``) each.

    All ranks have the same start. A parameter of more than two axes is a matrix (shape[0], the
    rest).
    """

    def __init__(self, where: str, feedback: bool, rank: int, warm: bool, gain: float) -> None:
        super().__init__(where, feedback)
        self.rank, self.warm, self.gain = rank, warm, gain
        self.slots[_SLOT] = {}

    def rank_of(self, shape: Shape) -> int:
        """Return the number of columns sent for a parameter of ``shape``, 0 if it is sent whole."""
        if len(shape) < 2:
            return 0
        rows, columns = shape[0], prod(shape[1:])
        rank = min(self.rank, rows, columns)
        return rank if rank * (rows + columns) * self.gain <= rows * columns else 0

    def of(self, name: str, shape: Shape, dtype: np.dtype[Any], step: int) -> Array:
        """Return the start: the last Q, or random columns for ``step``."""
        wanted = prod(shape[1:]), self.rank_of(shape)
        found = self.slots[_SLOT].get(name) if self.warm else None
        known = found is not None and found.shape == wanted
        if found is None or not known or not found.any(axis=0).all():
            # A column of zeros would stay zero.
            random = np.random.default_rng([zlib.crc32(name.encode()), step])
            drawn = random.standard_normal(wanted)
            found = (
                np.where(found.any(axis=0), found, drawn) if known and found is not None else drawn
            )
        return found.astype(dtype, copy=False)


class PowerRound(UnsentRound):
    """A round that sums only P = M Q, then Q = Mᵀ P of each matrix M, few columns each.

    P is orthonormalized in between, and the sum of all M is approximated by P Qᵀ. The difference
    from this rank's M is ``unsent``. An entry has two messages; the first also has the arrays sent
    whole.
    """

    def _hear(self) -> None:
        super()._hear()
        # Unsent gradients are part of the mean of their own step.
        self.weight, self.mean = self.share, 1.0

    def _summed(self, names: Sequence[str], buffer: Array, what: str) -> Request:
        parts = self.parts(names, buffer)
        whole, jobs = [], []
        for k, (name, part) in enumerate(parts.items()):
            if not self.unsent.rank_of(part.shape):
                whole.append(part.reshape(-1))
                continue
            flag = buffer[buffer.size - len(parts) + k :][:1]
            jobs.append(_Matrix(self, name, part, flag, self._keeps))
        if not jobs:
            return super()._summed(names, buffer, what)
        whole.append(buffer[buffer.size - len(parts) :])
        return Staged(self._two_sums(buffer, whole, jobs, what))

    def _two_sums(
        self, buffer: Array, whole: Sequence[Array], jobs: Sequence[_Matrix], what: str
    ) -> Generator[Sequence[Request], None, Array]:
        """Run the two sums of an entry; the first includes ``whole`` arrays of its ``buffer``."""
        first = [*whole, *(job.columns for job in jobs)]
        request = self._sum_of(first, what)
        yield [request]
        _spread(request.wait(), first)
        for job in jobs:
            job.turn()
        # All ranks start it in their wait.
        request = self._sum_of([job.rows for job in jobs], what)
        for job in jobs:
            job.keep_rest()
        yield [request]
        _spread(request.wait(), [job.rows for job in jobs])
        for job in jobs:
            job.end()
        return buffer

    def _sum_of(self, arrays: Sequence[Array], what: str) -> Request:
        message = np.concatenate([array.reshape(-1) for array in arrays])
        self.count(message.nbytes)
        return self.comm.start_all_reduce(message, what=what)


class _Matrix:
    """A gradient as a matrix, with its unsent part added; the sum goes to ``part``.

    ``flag`` is nonzero if a gradient exists, first on this rank and then on any rank. A rank
    without a gradient contributes zeros, and its unsent part stays.
    """

    def __init__(self, owner: PowerRound, name: str, part: Array, flag: Array, keeps: bool) -> None:
        self._owner, self._name, self._part = owner, name, part
        self._flag, self._keeps = flag, keeps
        shape = len(part), prod(part.shape[1:])
        self._mine: Array | None = None
        if flag[0] and owner.weight:
            self._mine = owner.unsent.plus(name, part, 1.0, keeps, alone=False).reshape(shape)
        self._start = owner.unsent.of(name, part.shape, part.dtype, owner.unsent.steps)
        rank = self._start.shape[1]
        self.columns = np.zeros((shape[0], rank), part.dtype)
        self.rows = np.zeros((shape[1], rank), part.dtype)
        if self._mine is not None:
            product(np, self._mine, self._start, self.columns)

    def turn(self) -> None:
        """Orthonormalize the summed ``columns``, and compute ``rows`` from them."""
        self.columns = np.linalg.qr(self.columns)[0]
        if self._mine is not None:
            np.matmul(self._mine.T, self.columns, out=self.rows)

    def keep_rest(self) -> None:
        """Store the difference of this rank's matrix from its own product as unsent."""
        if self._mine is None or not (self._keeps and self._owner.unsent.feedback):
            return
        for start in range(0, len(self._mine), _ROWS):
            some = slice(start, start + _ROWS)
            self._mine[some] -= self.columns[some] @ self.rows.T

    def end(self) -> None:
        """Compute the sum from the summed ``rows``."""
        np.matmul(self.columns, self.rows.T, out=self._part.reshape(len(self._part), -1))
        if self._flag[0] and self._keeps:
            self._owner.unsent.slots[_SLOT][self._name] = self.rows


def _spread(message: Array, arrays: Sequence[Array]) -> None:
    """Fill ``arrays`` from the concatenated ``message``."""
    start = 0
    for array in arrays:
        array[...] = message[start : start + array.size].reshape(array.shape)
        start += array.size


class PowerSGD(AllReduce):
    """`AllReduce` of matrices by low-rank factors (Vogels et al. 2019).

    The sum of gradients M of m × n numbers is approximated by P Qᵀ, from one step of the power
    iteration with ``rank`` columns: rank · (m + n) numbers are sent. Parameters of more than two
    axes count as (shape[0], the rest). Vectors are sent whole; row-sparse gradients are sent as
    rows. Inner stages receive the sum as an ordinary gradient. A single process trains by whole
    gradients.

    It is for slow networks: each gradient is multiplied four times. Unsent gradients are in
    `state_dict`, on each rank its own, as in `SparseAllReduce`.

    Args:
        optimizer: The optimizer, or a stage around one, that updates by the approximated means.
        comm: Communicator of the ranks, by default `parallel.init()`.
        rank: Number of columns of the factors, a positive int.
        warm_start: Whether to start with the Q of the previous step.
        error_feedback: Whether to add the difference of P Qᵀ from a rank's own M to its next
            gradient, which takes one array per parameter.
        gain: Least ratio of the sizes of a matrix and its factors; matrices below it are sent
            whole.
        window: Maximum number of sums in flight, a positive int.
    """

    _extra_state: Directions
    traits = ReducerTraits(copies=4, takes=(terms.ORDER,))
    """Copies with unsent gradients and the rows in progress."""

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        rank: int = 4,
        warm_start: bool = True,
        error_feedback: bool = True,
        gain: float = 2.0,
        window: int = 4,
    ) -> None:
        super().__init__(optimizer, comm, window)
        where = type(self).__name__
        self.rank = checked_count(where, "rank", rank, 1)
        self.gain = at(checked(where, "gain", gain, 0.0), 0)
        given = bool(error_feedback), self.rank, bool(warm_start), self.gain
        self._extra_state = Directions(where, *given)
        self.reduction = PowerRound(self, self.window)

    @property
    def error_feedback(self) -> bool:
        """True if unsent gradients are added to the next gradient."""
        return self._extra_state.feedback

    @error_feedback.setter
    def error_feedback(self, flag: bool) -> None:
        self._extra_state.feedback = bool(flag)

    @property
    def warm_start(self) -> bool:
        """True if a step starts with the factors of the previous one."""
        return self._extra_state.warm

    @warm_start.setter
    def warm_start(self, flag: bool) -> None:
        self._extra_state.warm = bool(flag)
