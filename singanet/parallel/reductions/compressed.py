"""Reductions that send few numbers: the largest elements, or columns and rows."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.hyper import Scale, at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Found, RoundKind
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator, Request, Staged
from singanet.parallel.reductions.all_reduce import AllReduce, Flight, Unsent, UnsentRound, listed
from singanet.parallel.reductions.rank_reducer import RankReducer
from singanet.types import Array, RowSparse, Shape

Choice = Callable[[Array, int], Array]
"""``choice(values, count)``: the rising places to send of flat ``values``, ``count`` known."""

_SILENT = 10
"""The number of steps without an element sent after which a warning comes."""

_NONE, _DENSE = -1, 0
"""How a rank's gradient of a parameter comes; above 0 are rows, one less than the number."""


class SparseRound(UnsentRound):
    """A round to which each rank gives some elements of an entry, all in one message.

    A message is the number of elements and a number a parameter (int32), the places of the
    elements in the entry laid end to end (uint32), and their values; then of each row-sparse
    gradient the indices (int64) and the rows, which are sent whole. All ranks add up all messages
    in the order of ranks, and so have the same bits. What a rank has not reached it sends
    nothing of.
    """

    def __init__(self, owner: RankReducer, window: int, choice: Choice) -> None:
        super().__init__(owner, window)
        self._choice = choice
        # Of this step the largest element and whether any was sent; the steps before without one.
        self._found, self._passed = 0.0, False
        self._silent: int | None = 0

    @property
    def factor(self) -> float:
        """As `Reduction`: messages are weighed before."""
        return 1.0

    @property
    def settled(self) -> bool:
        """As `Reduction`; not where a lone process sums momentum."""
        return self.comm.size > 1 and super().settled

    def prepare(self, names: Sequence[str], given: Mapping[str, Any]) -> Sequence[str]:
        """As `Reduction`. Errors: row-sparse gradients with ``momentum``."""
        for name in names:
            if self.unsent.momentum and name in given and isinstance(given[name][0], tuple):
                raise ArgumentError(
                    f"SparseAllReduce(momentum=), parameter {name!r}",
                    expected="a dense gradient",
                    received="a row-sparse one, whose rows are sent whole and summed nowhere",
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
        # What was not sent belongs to the mean of its own step.
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
        """As `Reduction`; unless it was a preview, a step of the unsent gradients is counted."""
        super().close(kind)
        if kind != "step":
            return
        if self._found and not self._passed and self._silent is not None:
            self._silent += 1
            if self._silent == _SILENT:
                self._silent = None
                warnings.warn(self._nothing(), RuntimeWarning, stacklevel=2)
        elif self._passed:
            self._silent = 0
        self._found, self._passed = 0.0, False

    def _nothing(self) -> str:
        owner: Any = self._owner
        return (
            f"SparseAllReduce(threshold={owner.threshold!r}): nothing of {_SILENT} steps was"
            f" sent, as the largest element that waits is {self._found:.2g}; say a threshold in the"
            " unit of this rank's part of the mean, or ratio="
        )

    def _message(
        self,
        names: Sequence[str],
        buffer: Array,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> Array:
        """The message of this rank on an entry, as bytes."""
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
                # What weighs nothing is there, and nothing of it is sent but which rows it has.
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
        """Of the elements at ``places`` nothing is left to send."""
        start = 0
        for name, code, part in zip(names, codes, parts, strict=True):
            stop = start + part.size
            if code == _DENSE:
                first, last = np.searchsorted(places, (start, stop))
                self.unsent.drop(name, places[first:last] - start)
            start = stop


class _Message:
    """What one rank has told of an entry whose gradients are as ``likes``."""

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
"""Elements that are partitioned as they are: a sample of them would save nothing."""

_SAMPLED = 1 << 7
"""One element in so many is looked at to guess a threshold."""


def largest(values: Array, count: int) -> Array:
    """The rising places of the ``count`` elements of largest magnitude; of equals the first.

    NaN is larger than anything: it has to be seen by all ranks, and not to stay with one.
    ``values`` is flat. Most elements are only compared with a threshold that a sample suggests,
    low enough that too many pass rather than too few; those are cut to ``count`` exactly.
    """
    count = min(count, values.size)
    if count <= 0:
        return np.empty(0, np.int64)
    sizes = np.abs(values)
    found = None
    if sizes.size > _FEW:
        sample = _comparable(sizes[:: _stride(sizes.size)])
        share = count / sizes.size
        # The sample's own count of such elements varies by its root.
        wanted = share * sample.size
        wanted = int(wanted + 3.0 * wanted**0.5) + 2
        while wanted < sample.size:
            least = np.partition(sample, sample.size - wanted)[sample.size - wanted]
            # NaN is below nothing.
            found = np.flatnonzero(~(sizes < least))
            if found.size >= count:
                break
            found, wanted = None, 4 * wanted
    among = np.arange(sizes.size) if found is None else found
    return among[_exactly(_comparable(sizes[among]), count)]


def reaching(values: Array, threshold: float) -> Array:
    """The rising places of the elements of at least ``threshold`` in magnitude, and of NaN."""
    return np.flatnonzero(~(np.abs(values) < threshold))


def _stride(size: int) -> int:
    """How far apart the elements of a sample are: odd, as rows of matrices seldom are long."""
    return min(_SAMPLED, size // (_FEW // 4)) | 1


def _comparable(sizes: Array) -> Array:
    """``sizes`` with infinity for NaN."""
    return np.where(np.isnan(sizes), np.inf, sizes)


def _exactly(sizes: Array, count: int) -> Array:
    """The rising places of the ``count`` largest of ``sizes``, of equals the first."""
    if count == sizes.size:
        return np.arange(count)
    least = np.partition(sizes, sizes.size - count)[sizes.size - count]
    chosen = sizes > least
    ties = np.flatnonzero(sizes == least)[: count - int(np.count_nonzero(chosen))]
    chosen[ties] = True
    return np.flatnonzero(chosen)


_FIRST = 0.25
"""The ratio that a warm-up begins with, as in Deep Gradient Compression."""


class SparseAllReduce(AllReduce):
    """`AllReduce` of a few elements: what has the largest magnitude is sent, the rest is kept.

    Each rank sends the ``ratio`` of largest magnitude, exactly ceil(ratio · n) of n elements,
    0.001 by default; with ``threshold`` instead all of at least that, in the unit of its part of
    the mean. It warns after ten steps in which it sent nothing. What was not sent is added
    to the next gradient (``error_feedback``: Strom 2015, Aji and Heafield 2017), and takes one
    array a parameter. Small parameters are chosen from together. Row-sparse gradients are sent
    whole. The sum is an ordinary gradient, zero where nobody has sent, for what is inside. A lone
    process trains by whole gradients.

    As in Deep Gradient Compression (Lin et al. 2018) ``momentum`` is summed before the choice, in
    place of the rule's own, and the first ``warm_up`` steps send more: from a quarter on, down to
    the ratio geometrically. It is for slow networks: on one host choosing costs more than sending.

    What is not sent yet is in `state_dict`, that of each rank its own; a training state of `fit`
    has that of all. From the state of another rank it is left out.
    """

    _kept: Unsent
    _copies = 8
    """With what is not sent yet, momentum, and magnitudes to choose among: measured."""

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
                advice="leave one of them out",
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
        self._kept = Unsent(where, bool(error_feedback), momentum)
        self.reduction = SparseRound(self, self.window, self._chosen)

    @property
    def ratio(self) -> float | None:
        """The share of elements that is sent; assigning it takes the place of the threshold."""
        return self._ratio

    @ratio.setter
    def ratio(self, ratio: float) -> None:
        self._ratio, self._least = _within("ratio", ratio), None

    @property
    def threshold(self) -> float | None:
        """The least magnitude that is sent; assigning it replaces the ratio and its warm-up."""
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
                expected="a ratio, which it comes down to",
                received=f"threshold={self.threshold!r}",
                advice="give a ratio in place of the threshold",
            )
        self._warm_up = steps

    @property
    def error_feedback(self) -> bool:
        """Whether what was not sent is added to the next gradient."""
        return self._kept.feedback

    @error_feedback.setter
    def error_feedback(self, flag: bool) -> None:
        self._check_momentum(self.momentum, bool(flag))
        self._kept.feedback = bool(flag)

    @property
    def momentum(self) -> float:
        """The momentum that gradients are summed with before the choice."""
        return self._kept.momentum

    @momentum.setter
    def momentum(self, momentum: float) -> None:
        momentum = at(checked(type(self).__name__, "momentum", momentum, 0.0, 1.0), 0)
        self._check_momentum(momentum, self.error_feedback)
        self._kept.momentum = momentum

    def _check_momentum(self, momentum: float, error_feedback: bool) -> None:
        if not momentum:
            return
        if not error_feedback:
            raise ArgumentError(
                "SparseAllReduce(momentum=)",
                expected="error_feedback=True, as it is summed with what was not sent",
                received="error_feedback=False",
                advice="give the momentum to the rule: SGD(momentum=...)",
            )
        rule = UpdateChain(self.optimizer).rule
        if getattr(rule, "slots", ()):
            raise ArgumentError(
                "SparseAllReduce(momentum=)",
                expected="a rule without momentum of its own: SGD(learning_rate=...)",
                received=repr(rule),
                advice="leave momentum= out here, or there",
            )

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        super().meet(net, around)
        order = self.order
        if not order.kinds:
            # How gradients come is in each message. What is chosen from together is then the
            # same from the first step on, also of a training that was resumed.
            order.kinds = dict.fromkeys((param.name for param in order.params), "dense")
            order.group()

    @property
    def _alone(self) -> bool:
        """As `Reducer`, but that a lone process sums momentum, too."""
        return super()._alone and not self.momentum

    def _chosen(self, values: Array, count: int) -> Array:
        """The places to send of ``values``, of which ``count`` are of gradients that are there."""
        if self.comm.size == 1:
            return np.arange(values.size)
        if self.threshold is not None:
            return reaching(values, self.threshold)
        return largest(values, math.ceil(self._ratio_now * count))

    @property
    def _ratio_now(self) -> float:
        """The ratio of the next step."""
        ratio, done = self.ratio or 1.0, self._kept.steps
        if done >= self.warm_up or ratio >= _FIRST:
            return ratio
        return _FIRST * float((ratio / _FIRST) ** (done / self.warm_up))


def _within(name: str, value: Any) -> float:
    fits = is_number(value) and (0 < value <= 1 if name == "ratio" else value >= 0)
    if not fits:
        raise ArgumentError(
            f"SparseAllReduce({name}=)",
            expected="a number above 0 and at most 1" if name == "ratio" else "a number from 0 on",
            received=repr(value)[:60],
            advice="ratio=0.001 is usual; threshold= has the unit of the gradients",
        )
    return float(value)


_SLOT = "direction"

_ROWS = 1 << 8
"""Rows of what was sent that are taken off at a time."""


class Directions(Unsent):
    """What was not sent, and where to begin: by parameter a matrix (columns, ``rank``).

    All ranks have the same. A parameter of more than two axes is a matrix (shape[0], the rest).
    """

    def __init__(self, where: str, feedback: bool, rank: int, warm: bool, gain: float) -> None:
        super().__init__(where, feedback)
        self.rank, self.warm, self.gain = rank, warm, gain
        self.slots[_SLOT] = {}

    def rank_of(self, shape: Shape) -> int:
        """How many columns are sent of a parameter of this ``shape``, 0 if it is sent whole."""
        if len(shape) < 2:
            return 0
        rows, columns = shape[0], prod(shape[1:])
        rank = min(self.rank, rows, columns)
        return rank if rank * (rows + columns) * self.gain <= rows * columns else 0

    def of(self, name: str, shape: Shape, dtype: np.dtype[Any], step: int) -> Array:
        """Those to begin with: the last, or random ones of the ``step``."""
        wanted = prod(shape[1:]), self.rank_of(shape)
        found = self.slots[_SLOT].get(name) if self.warm else None
        known = found is not None and found.shape == wanted
        if found is None or not known or not found.any(axis=0).all():
            # Of a sum of zeros no direction is left, and none would come back.
            random = np.random.default_rng([zlib.crc32(name.encode()), step])
            drawn = random.standard_normal(wanted)
            found = (
                np.where(found.any(axis=0), found, drawn) if known and found is not None else drawn
            )
        return found.astype(dtype, copy=False)


class PowerRound(UnsentRound):
    """A round in which of a matrix M only P = M Q and then Q = Mᵀ P are summed, few columns each.

    P is made orthonormal in between, and the sum of all M is P Qᵀ. What that is not of this rank's
    M is ``unsent``. Of an entry there are two messages, in the first one also what is sent whole.
    """

    def _hear(self) -> None:
        super()._hear()
        # What was not sent belongs to the mean of its own step.
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
        """The sums of an entry; the first has what of its ``buffer`` goes ``whole``, too."""
        first = [*whole, *(job.columns for job in jobs)]
        request = self._sum_of(first, what)
        yield [request]
        _spread(request.wait(), first)
        for job in jobs:
            job.turn()
        # All ranks begin it where they wait.
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
    """A gradient as a matrix, with what was not sent of it before; ``part`` is where its sum goes.

    ``flag`` is not 0 where there is one, first on this rank and then on any. Where this rank has
    none it gives nothing, and what was not sent stays.
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
            np.matmul(self._mine, self._start, out=self.columns)

    def turn(self) -> None:
        """Once ``columns`` are those of all: make them orthonormal, and the ``rows`` by them."""
        self.columns = np.linalg.qr(self.columns)[0]
        if self._mine is not None:
            np.matmul(self._mine.T, self.columns, out=self.rows)

    def keep_rest(self) -> None:
        """What of this rank's matrix its own ``rows`` do not tell is not sent."""
        if self._mine is None or not (self._keeps and self._owner.unsent.feedback):
            return
        for start in range(0, len(self._mine), _ROWS):
            some = slice(start, start + _ROWS)
            self._mine[some] -= self.columns[some] @ self.rows.T

    def end(self) -> None:
        """Once ``rows`` are those of all: the sum."""
        np.matmul(self.columns, self.rows.T, out=self._part.reshape(len(self._part), -1))
        if self._flag[0] and self._keeps:
            self._owner.unsent.slots[_SLOT][self._name] = self.rows


def _spread(message: Array, arrays: Sequence[Array]) -> None:
    """Fill ``arrays`` with what lies in ``message``, one behind the other."""
    start = 0
    for array in arrays:
        array[...] = message[start : start + array.size].reshape(array.shape)
        start += array.size


class PowerSGD(AllReduce):
    """`AllReduce` of matrices by ``rank`` columns and rows (Vogels et al. 2019).

    A gradient M of m × n numbers, summed over the ranks, becomes P Qᵀ of the ``rank`` columns that
    a step of the power iteration finds: rank · (m + n) numbers are sent. With ``warm_start`` it
    begins with the Q of the step before. What P Qᵀ is not of a rank's own M is added to its next
    gradient (``error_feedback``), and takes one array a parameter. Parameters of more than two axes
    are seen as (shape[0], the rest); vectors, and matrices that would not be sent in at least
    ``gain`` times fewer numbers, go whole, row-sparse gradients as rows. The sum is an ordinary
    gradient for what is inside. A lone process trains by whole gradients.

    It is for slow networks: each gradient is multiplied four times. What is not sent yet is in
    `state_dict`, that of each rank its own, as `SparseAllReduce` has it.
    """

    _kept: Directions
    _copies = 4
    """With what is not sent yet, and the rows of it that are worked on."""

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
        self._kept = Directions(where, *given)
        self.reduction = PowerRound(self, self.window)

    @property
    def error_feedback(self) -> bool:
        """Whether what was not sent is added to the next gradient."""
        return self._kept.feedback

    @error_feedback.setter
    def error_feedback(self, flag: bool) -> None:
        self._kept.feedback = bool(flag)

    @property
    def warm_start(self) -> bool:
        """Whether a step begins with the directions of the one before."""
        return self._kept.warm

    @warm_start.setter
    def warm_start(self, flag: bool) -> None:
        self._kept.warm = bool(flag)
