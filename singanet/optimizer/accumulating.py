"""Accumulation of gradients over steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from singanet.base.terms import ORDER, Terms
from singanet.errors import ArgumentError, DataError, brief, one_of
from singanet.ops import Ops, ops_for
from singanet.optimizer.adam import Adam, descend
from singanet.optimizer.hyper import Hyper, Scale, in_type, is_one, put
from singanet.optimizer.optimizer import Optimizer, Shared
from singanet.optimizer.sgd import SGD
from singanet.optimizer.state import (
    Grad,
    Grads,
    Names,
    Owners,
    ParamState,
    Values,
    check_fit,
    check_lists,
    checked_every,
    refuse_rows,
    together,
)
from singanet.optimizer.wrapper import Handed, StageTraits, Wrapper
from singanet.params.param import Param, ParamRoot, owner_of
from singanet.params.storage import is_served
from singanet.types import Array, RowSparse

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AccumulatingAdam(Adam):
    """`Adam` over ``every`` micro-batches, without a buffer for their sum (Zhang et al. 2023).

    At the first of k micro-batches m = β₁ m, v = β₂ v; at each m += (1 − β₁) g / k and
    v += (1 − β₂) (g / k)²; at the last w changes as in Adam. m is the moving mean of the mean
    gradient. v sums squares instead of squaring the sum, which is equal in expectation if
    micro-batches differ by noise alone. Schedules count the changes of w. A constraint acts on
    each micro-batch. Gradients must be dense.

    Args:
        every: The number k of micro-batches.
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.
        epsilon_after_correction: If True, ε is added after the bias correction, as in PyTorch.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first; if False, the default, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> optimizer = singanet.optimizer.AccumulatingAdam(every=2, learning_rate=0.1)
        >>> [optimizer.apply(0, g, w, "w").round(4).tolist() for _ in range(2)]
        [[1.0, 1.0], [0.8586, 1.1414]]
    """

    def __init__(
        self,
        every: int,
        learning_rate: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        *,
        epsilon_after_correction: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        later = epsilon_after_correction
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, epsilon_after_correction=later, **shared
        )
        self.every = checked_every("AccumulatingAdam", every)

    def update(self, names: Names, values: Values, grads: Grads, scale: float = 1.0) -> None:
        """As `Optimizer.update`; values change at every ``every``-th call for their name."""
        refuse_rows("AccumulatingAdam", names, grads)
        super().update(names, values, grads, scale)

    def case(self) -> Hashable:
        """Whether the next micro-batch is the first or last; one case for equal parameters."""
        turns = (state.step % self.every for state in self.states())
        return together((turn == 0, turn == self.every - 1) for turn in turns)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        turn = state.step % self.every
        return (*super()._scalars(state, rate), turn == 0, turn == self.every - 1)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, epsilon, begins, ends = n
        first, second = arrays
        if begins:
            xp.multiply(first, beta_1, out=first)
            xp.multiply(second, beta_2, out=second)
        xp.multiply(g, (1.0 - beta_1) / self.every, out=s)
        xp.add(first, s, out=first)
        xp.multiply(g, g, out=s)
        xp.multiply(s, (1.0 - beta_2) / self.every**2, out=s)
        xp.add(second, s, out=second)
        if ends:
            xp.sqrt(second, out=s)
            descend(xp, w, first, s, alpha, epsilon)


class AccumulatingSGD(SGD):
    """`SGD` with momentum over the mean of ``every`` micro-batches, without a buffer for it.

    h = μ h at the first micro-batch, h += lr g / every at each, w −= h at the last. The result is
    the same as with `Accumulator` around `SGD`, without its buffer. Schedules count the changes of
    w. A constraint acts on each micro-batch. Gradients must be dense.

    Args:
        every: The number of micro-batches.
        learning_rate: A number or schedule.
        momentum: μ in (0, 1), a number or schedule.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first; if False, the default, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> optimizer = singanet.optimizer.AccumulatingSGD(every=2, learning_rate=0.1)
        >>> [optimizer.apply(0, g, w, "w").round(4).tolist() for _ in range(2)]
        [[1.0, 1.0], [0.9, 1.05]]
    """

    def __init__(
        self,
        every: int,
        learning_rate: Hyper | None = 0.01,
        momentum: Hyper = 0.9,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, momentum, **shared)
        self.every = checked_every("AccumulatingSGD", every)
        if not self.slots:
            raise ArgumentError(
                "AccumulatingSGD(momentum=)",
                expected="a momentum above 0, since its state stores the sum",
                received=brief(momentum),
                advice="use Accumulator(SGD(...)) without momentum",
            )

    def update(self, names: Names, values: Values, grads: Grads, scale: float = 1.0) -> None:
        """As `Optimizer.update`; values change at every ``every``-th call for their name."""
        refuse_rows("AccumulatingSGD", names, grads)
        super().update(names, values, grads, scale)

    def case(self) -> Hashable:
        """Whether the next micro-batch is the last; one case for equal parameters."""
        return together(state.step % self.every == self.every - 1 for state in self.states())

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        rate, momentum = super()._scalars(state, rate)
        turn = state.step % self.every
        return rate / self.every, momentum if turn == 0 else 1.0, turn == self.every - 1

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        rate, kept, last = n
        h = arrays[0]
        if kept != 1.0:
            xp.multiply(h, kept, out=h)
        xp.multiply(g, rate, out=s)
        xp.add(h, s, out=h)
        if last:
            xp.subtract(w, h, out=w)


class RowSum:
    """The ``sum`` of row-sparse gradients of a parameter, or None before the first gradient."""

    def __init__(self, sum: RowSparse | None = None) -> None:
        self.sum = sum

    def begin(self, grad: RowSparse, weight: Any) -> RowSparse:
        """Set the sum to ``weight`` · ``grad``, and return it."""
        self.sum = self.with_first(grad, weight)
        return self.sum

    def add(self, grad: RowSparse, weight: Any) -> RowSparse:
        """Add ``weight`` · ``grad`` to the sum, and return it."""
        self.sum = self.with_added(grad, weight)
        return self.sum

    def with_first(self, grad: RowSparse, weight: Any, share: Any = 1.0) -> RowSparse:
        """Return ``share`` times the sum after `begin`."""
        return _weighed(_weighed(grad, weight), share)

    def with_added(self, grad: RowSparse, weight: Any, share: Any = 1.0) -> RowSparse:
        """Return ``share`` times the sum after `add`."""
        more = _weighed(grad, weight)
        if self.sum is not None:
            more = RowSparse(*ops_for(more.rows).add_rows(self.sum, more))
        return _weighed(more, share)

    def dense(self, ops: Ops, like: Array) -> Array:
        """Return the sum as an array of the shape of ``like``."""
        none: Array = ops.zeros(like.shape, like)
        return none if self.sum is None else ops.add_to_rows(none, *self.sum, out=none)


def _weighed(grad: RowSparse, weight: Any) -> RowSparse:
    """Return ``weight`` · ``grad``."""
    if is_one(weight):
        return grad
    xp = ops_for(grad.rows).xp
    return RowSparse(grad.indices, grad.rows * in_type(xp, weight, grad.rows.dtype))


class Accumulator(Wrapper):
    """Updates by the mean of ``every`` successive gradients of a parameter.

    The value does not change before. Gradients are weighted by the count of the loss of their
    micro-batch, so that the mean is the gradient of one large batch: `net.step` passes the count, a
    loop of your own calls `begin`. The cost is a buffer of each parameter's size. If all gradients
    are row-sparse, the mean is row-sparse.

    Args:
        optimizer: The optimizer of the mean gradients.
        every: The number of micro-batches.
        mean: If False, the optimizer receives the sum instead.

    Examples:
        >>> w, g = np.ones(2), np.array([3.0, -4.0])
        >>> sgd = singanet.optimizer.SGD(learning_rate=0.1)
        >>> optimizer = singanet.optimizer.Accumulator(sgd, every=2)
        >>> [optimizer.update(["w"], [w], [g]) or w.round(4).tolist() for _ in range(2)]
        [[1.0, 1.0], [0.7, 1.4]]
    """

    traits = StageTraits(gathers=True, takes=(ORDER,))

    def __init__(self, optimizer: Optimizer | Wrapper, every: int, mean: bool = True) -> None:
        super().__init__(optimizer)
        self.every = checked_every("Accumulator", every)
        self.mean = bool(mean)
        # By name: the dense sum so far, the sum of rows if all gradients are row-sparse, the number
        # of micro-batches, their total weight, and whether the sum is row-sparse.
        self._totals: dict[str, Array] = {}
        self._rows: dict[str, RowSum] = {}
        self._counts: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._by_rows: dict[str, bool] = {}
        self._owners = Owners()
        # The trained parameters; for parameters that join later, the number and weight of the
        # micro-batches before.
        self._trained: frozenset[str] | None = None
        self._late: dict[str, tuple[int, float]] = {}
        # The count with weight 1: the first one, so that full micro-batches need no product. Then
        # the weight of the current micro-batch, and the factor of its sum if a program's replay
        # computes it.
        self._unit = 0.0
        # The unit before the current step, until the first gradients of the step.
        self._unit_before: float | None = None
        self._weight: Scale = 1.0
        self._share: Scale | None = None

    @property
    def _terms(self) -> Terms:
        return self.traits._terms

    @property
    def _weighs(self) -> bool:
        """Whether micro-batches are weighted by the counts of their losses."""
        return self.mean

    def begin(self, count: float | None = None) -> float | None:
        """Weight the next gradients by ``count``, the positions of their mean; None is 1.

        Returns the count of the current mean.
        """
        weight = 1.0
        if self._unit_before is None:
            self._unit_before = self._unit
        if count is not None and self.mean:
            self._unit = self._unit or float(count)
            weight = count / self._unit if self._unit else 0.0
        self.weigh(weight)
        return self.counted(count) if self.mean else count

    def refused(self) -> None:
        if self._unit_before is not None:
            self._unit, self._unit_before = self._unit_before, None

    def weigh(self, weight: Scale, share: Scale | None = None) -> None:
        """Set the ``weight`` of gradients and the factor of their sum; both may be arrays.

        ``share`` None is the current `share`.
        """
        self._weight, self._share = weight, share

    @property
    def weight(self) -> Scale:
        """The weight of the current micro-batch; the first one has weight 1."""
        return self._weight

    def counted(self, count: float | None) -> float | None:
        """Return the count of the current mean, including ``count`` of this micro-batch."""
        if count is None:
            return None
        return max(self._weights.values(), default=0.0) * self._unit + count

    def share(self, name: str = "") -> float:
        """Return the factor of the sum if this micro-batch is the last.

        It is for the parameter ``name``; by default for any.
        """
        before = self._begun(name or next(iter(self._weights), ""))[1]
        total = before + float(self._weight)
        return 1.0 / total if self.mean and total else 1.0

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Add the gradients, and pass on the mean at every ``every``-th call for a name."""
        check_lists("Accumulator", names, values, grads)
        for name, value in zip(names, values, strict=True):
            root = owner_of(value)
            if root is not None:
                self._turn(name, root)
                self._move_sum(name, value, value.dtype)
        jobs = {n: (v, g) for n, v, g in zip(names, values, grads, strict=True) if g is not None}
        for name, (value, grad) in jobs.items():
            total = self._totals.get(name)
            check_fit("Accumulator", name, value, grad, None if total is None else total.shape)
        # Before the sums change: the optimizer would refuse the rate after that.
        self.optimizer._expect_rates(n for n in jobs if self._begun(n)[0] + 1 >= self.every)
        self.settle(list(jobs), [value for value, _ in jobs.values()])
        sums = {name: self._add(name, value, grad, scale) for name, (value, grad) in jobs.items()}
        # The count is reset after the update, so that a refused update loses nothing.
        for share, ready in self._gathered(jobs).items():
            yield (
                ready,
                [jobs[name][0] for name in ready],
                [sums[name] for name in ready],
                share if self._share is None else self._share,
            )
            self._begin(ready)

    def _add(self, name: str, value: Array, grad: Any, scale: Scale) -> Grad:
        """Add ``scale`` · ``grad`` to the sum of a parameter, and return the sum."""
        ops, first = ops_for(value), self._counts[name] == 0
        weighted = scale if is_one(self._weight) else scale * self._weight
        by_rows = isinstance(grad, tuple) and (first or self._by_rows.get(name, True))
        # A replay adds rows without a note in `_by_rows`.
        was_by_rows = self._by_rows.get(name, self._rows[name].sum is not None)
        self._by_rows[name] = by_rows
        if by_rows:
            self._totals.pop(name, None)
            gather = self._rows[name].begin if first else self._rows[name].add
            return RowSparse(*ops.map_rows(gather, *grad, weighted))
        if name not in self._totals:
            self._totals[name] = ops.xp.empty_like(value)
        total: Array = ops.xp.asarray(self._totals[name])
        if not first and was_by_rows:
            total[...] = self._rows[name].dense(ops, total)
        _add(ops, total, grad, weighted, first)
        return total

    def _move_sum(self, name: str, value: Array, dtype: np.dtype[Any]) -> None:
        """Move the sum of a parameter to the device of ``value``, and convert it to ``dtype``."""
        total = self._totals.get(name)
        if total is not None and (type(total) is not type(value) or total.dtype != dtype):
            self._totals[name] = put(ops_for(value).xp, total, dtype)

    def _let_go(self, names: Names, values: Values) -> None:
        """Count micro-batches of which a program has the sums, without own ones between steps."""
        self.settle(names, values)
        self._totals.clear()

    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        """Move the sums to the device of ``net``."""
        for param in net.params():
            if param.name in self._totals and param.storage.in_memory:
                # A sum may be of a master, which has another type.
                self._move_sum(param.name, param.value, self._totals[param.name].dtype)

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Switch to the sums of the net of ``params``."""
        for param in params:
            self._turn(param.name, param.root)

    def _turn(self, name: str, root: ParamRoot) -> None:
        self._owners.turn(name, root, *self._by_name())

    def _by_name(self) -> tuple[dict[str, Any], ...]:
        return self._totals, self._rows, self._counts, self._weights, self._by_rows

    def drop(self) -> bool:
        """Drop the micro-batches of the current mean. Return True if no mean was passed on."""
        begun = [count for count in self._counts.values() if count]
        whole = len(begun) == len(self._counts)
        self._begin(self._counts)
        self._unit_before = None
        return whole or not begun

    def train(self, names: Iterable[str]) -> None:
        """Accumulate for the parameters ``names`` from now on, all at the same micro-batch.

        A parameter that is frozen meanwhile loses its sum; a thawed parameter starts from zeros.
        """
        trained = frozenset(names)
        if trained == self._trained:
            return
        known = trained if self._trained is None else self._trained
        thawed = trained - known | self._late.keys() & trained
        for name in self._counts.keys() - (trained - thawed):
            for of_name in self._by_name():
                of_name.pop(name, None)
        begun = max(self._gone())
        self._late = dict.fromkeys(thawed, begun) if begun[0] else {}
        self._trained = trained

    def settle(self, names: Names, values: Values) -> Sequence[Array]:
        """Create missing buffers."""
        for name, value in zip(names, values, strict=True):
            if name not in self._counts:
                xp, (count, weight) = ops_for(value).xp, self._late.pop(name, (0, 0.0))
                if not is_served(value):
                    self._totals[name] = xp.zeros_like(value) if count else xp.empty_like(value)
                self._counts[name], self._weights[name] = count, weight
                self._rows[name] = RowSum()
        return values

    def case(self) -> Hashable:
        """Return if a micro-batch is first, last or neither, and if earlier ones have weight 1.

        There is one entry a parameter, or one entry for all if they are equal.
        """
        if self._is_together():
            turns: Hashable = self._micro_batch(*next(self._gone()))
        else:
            turns = tuple(self._micro_batch(*gone) for gone in self._gone())
        return turns, self._unit

    def _is_together(self) -> bool:
        """Whether all parameters have the same number and weight of micro-batches."""
        return len(set(self._gone())) == 1

    def _is_even(self) -> bool:
        """Whether all micro-batches of the current means, including this one, have weight 1."""
        return is_one(self._weight) and all(count == weight for count, weight in self._gone())

    def _begun(self, name: str) -> tuple[int, float]:
        """Return the number and the weight of the parameter's micro-batches so far."""
        if name in self._counts:
            return self._counts[name], self._weights[name]
        return self._late.get(name, (0, 0.0))

    def _gone(self) -> Iterator[tuple[int, float]]:
        pairs = zip(self._counts.values(), self._weights.values(), strict=True)
        return pairs if self._counts else iter([(0, 0.0)])

    def _micro_batch(self, count: int, weight: float) -> tuple[bool, int, bool]:
        return count == 0, count + 1 if count + 1 >= self.every else 0, count == weight

    def skip(self, names: Names) -> None:
        for ready in self._gathered(names).values():
            self._begin(ready)

    def _gathered(self, names: Iterable[str]) -> dict[float, list[str]]:
        """Count a micro-batch, and return the names with a complete mean by their shares."""
        due: dict[float, list[str]] = {}
        self._unit_before = None
        # In a recording the weight is an array, and replays count by themselves.
        weight = self._weight if isinstance(self._weight, float) else 1.0
        for name in names:
            self._counts[name] += 1
            self._weights[name] += weight
            if self._counts[name] >= self.every:
                total = self._weights[name]
                share = 1.0 / total if self.mean and total else 1.0
                due.setdefault(share, []).append(name)
        return due

    def _begin(self, names: Iterable[str]) -> None:
        names = list(names)
        self._counts.update(dict.fromkeys(names, 0))
        self._weights.update(dict.fromkeys(names, 0.0))
        for name in names:
            self._by_rows.pop(name, None)

    @contextmanager
    def _before_last(self, names: Names, values: Values) -> Iterator[None]:
        """Make the next micro-batch the last one, with another weight, within the block.

        This micro-batch needs the most memory. Afterwards the state is restored, without the
        buffers created within the block.
        """
        before = dict(vars(self))
        self._totals, self._rows, self._by_rows = dict(self._totals), dict(self._rows), {}
        self._counts, self._weights = dict(self._counts), dict(self._weights)
        try:
            self.settle(names, values)
            self._counts = dict.fromkeys(self._counts, self.every - 1)
            self._weights = dict.fromkeys(self._counts, 0.5 * (self.every - 1))
            self.weigh(0.5)
            yield
        finally:
            vars(self).update(before)

    def _will_change(self, name: str) -> bool:
        fills = self._begun(name)[0] + 1 >= self.every
        return fills and self.optimizer._will_change(name)

    @property
    def pending(self) -> bool:
        """Whether the stage has gradients of an incomplete set of micro-batches."""
        return any(self._counts.values())

    @property
    def left(self) -> int:
        """The number of micro-batches up to and including the next update."""
        return self.every - max(self._counts.values(), default=0)

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the gradients that `update` would pass on for a step, without changing anything."""
        for names, values, grads in items:
            yield names, values, self.preview(names, values, grads)
            # Releases one layer's gradients before the next layer's exist.
            del names, values, grads

    def _previewed_in_parts(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the gradients of `previewed` by blocks of rows, to copy one block at a time."""
        for item in items:
            for number, name in enumerate(item[0]):
                # No variable refers to a gradient, so that it is released before the next exists.
                for part in _parts_of(item[1][number], item[2][number]):
                    yield [name], [item[1][number]], [self._previewed(*_at(item, number), part)]
            del item

    def preview(self, names: Names, values: Values, grads: Grads) -> list[Grad]:
        """Return the gradients that `update` would pass on, or None before the last micro-batch.

        ``names``, ``values`` and ``grads`` are as for `update`, an entry for each parameter.
        """
        given = zip(names, values, grads, strict=True)
        return [self._previewed(name, value, grad) for name, value, grad in given]

    def _previewed(self, name: str, value: Array, grad: Grad, part: slice | None = None) -> Grad:
        """Return the `preview` of one gradient, or of a ``part`` of its rows."""
        count = self._begun(name)[0] + 1
        if grad is None or count < self.every:
            return None
        ops, first = ops_for(value), count == 1
        share = self.share(name) if self._share is None else self._share
        by_rows = self._by_rows.get(name, isinstance(grad, tuple))
        rows = self._rows.get(name) or RowSum()
        if isinstance(grad, tuple) and (first or by_rows):
            seen = rows.with_first if first else rows.with_added
            return RowSparse(*ops.map_rows(seen, *grad, self._weight, share))
        at: Any = ... if part is None else part
        if not first and by_rows:
            total = rows.dense(ops, value)[at]
        elif name in self._totals:
            total = ops.xp.array(ops.xp.asarray(self._totals[name])[at])
        else:
            total = ops.xp.zeros_like(value[at])
        _add(ops, total, grad if part is None else cast("Array", grad)[part], self._weight, first)
        if not is_one(share):
            total *= in_type(ops.xp, share, total.dtype)
        return total

    def _own_state(self) -> dict[str, Array]:
        """Return sums, counts and weights."""
        saved: dict[str, Array] = {}
        for name, count in self._counts.items():
            if count:
                saved |= self._saved_sum(name)
                saved[f"{name}/gathered_count"] = np.array(count, np.int64)
                saved[f"{name}/gathered_weight"] = np.array([self._weights[name], self._unit])
        return saved

    def _saved_sum(self, name: str) -> dict[str, Array]:
        rows = self._rows[name].sum if self._by_rows.get(name, True) else None
        if rows is None:
            return {f"{name}/gathered": self._totals[name].copy()}
        return {f"{name}/gathered": rows.rows.copy(), f"{name}/gathered_rows": rows.indices.copy()}

    def _is_own(self, key: str) -> bool:
        return key.rpartition("/")[2] in ("gathered_rows", *_PARTS)

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        parsed: dict[str, tuple[Array | RowSparse, int, float, float]] = {}
        for key in own:
            name = key.rpartition("/")[0]
            parts = {part: own[f"{name}/{part}"] for part in _PARTS if f"{name}/{part}" in own}
            missing = [part for part in _PARTS if part not in parts]
            if missing or parts["gathered_weight"].shape != (2,):
                raise DataError(
                    f"Accumulator.load_state_dict, parameter {name!r}",
                    expected=f"{one_of(_PARTS)}, the weight of two numbers",
                    received=f"no {one_of(missing)}" if missing else "another weight",
                    advice="load a complete state_dict",
                )
            total, count, weight = (parts[part] for part in _PARTS)
            rows = own.get(f"{name}/gathered_rows")
            copy = total.copy() if rows is None else RowSparse(rows.copy(), total.copy())
            parsed[name] = copy, int(count), float(weight[0]), float(weight[1])
        return parsed

    def _take(self, parsed: Any) -> None:
        self._owners.forget()
        self._by_rows = {n: isinstance(total, RowSparse) for n, (total, *_) in parsed.items()}
        self._totals = {n: total for n, (total, *_) in parsed.items() if not self._by_rows[n]}
        self._rows = {n: RowSum(t if self._by_rows[n] else None) for n, (t, *_) in parsed.items()}
        self._counts = {name: count for name, (_, count, *_) in parsed.items()}
        self._weights = {name: weight for name, (_, _, weight, _) in parsed.items()}
        self._unit = next((unit for *_, unit in parsed.values()), 0.0)
        # Parameters without a sum were frozen; if thawed, they start from zeros.
        self._trained = frozenset(parsed) or None
        self.weigh(1.0)


_AT_A_TIME = 1 << 20
"""Number of elements of a sum copied at a time for a preview."""


def _parts_of(value: Array, grad: Grad) -> list[slice | None]:
    """Return slices of rows of a dense gradient to preview together; None is all rows."""
    if grad is None or isinstance(grad, tuple) or value.size <= _AT_A_TIME or value.ndim < 2:
        return [None]
    rows = max(1, _AT_A_TIME * len(value) // value.size)
    return [slice(start, start + rows) for start in range(0, len(value), rows)]


def _at(item: Any, number: int) -> tuple[str, Array, Grad]:
    """Return name, value and gradient of one parameter of a layer."""
    names, values, grads = item
    return names[number], values[number], grads[number]


_PARTS = ("gathered", "gathered_count", "gathered_weight")


def _add(ops: Ops, total: Array, grad: Any, scale: Scale, first: bool) -> None:
    """Add ``scale`` · ``grad`` to ``total``, or overwrite it if the gradient is the ``first``."""
    xp = ops.xp
    scale = in_type(xp, scale, total.dtype)
    if isinstance(grad, tuple):
        ops.add_to_rows(total, *ops.map_rows(_weighed, *grad, scale), out=total)
    elif first:
        xp.multiply(grad, scale, out=total)
    elif is_one(scale):
        xp.add(total, grad, out=total)
    else:
        for part in _parts_of(total, grad):
            at = ... if part is None else part
            total[at] += grad[at] * scale
