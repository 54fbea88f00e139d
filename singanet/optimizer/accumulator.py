"""Gradients summed over micro-batches, in one buffer a parameter."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from singanet.errors import DataError, one_of
from singanet.ops import ops_for
from singanet.optimizer.checks import Grad, check_fit, check_lists, checked_every
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import Scale, in_type, is_one
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.types import Array, RowSparse


class Accumulator(Wrapper):
    """Hands the mean of ``every`` successive gradients of a parameter to the optimizer.

    Until then its value stands still. Gradients weigh by what the loss of their micro-batch was a
    mean over, so that theirs is the gradient of one large batch: `net.step` tells it, a loop of
    your own calls `begin`. ``mean=False`` hands on their plain sum. Costs one buffer of the
    parameter's size for each parameter; where all gradients are row-sparse, so is the mean.
    """

    gathers = True

    def __init__(self, optimizer: Optimizer | Wrapper, every: int, mean: bool = True) -> None:
        super().__init__(optimizer)
        self.every = checked_every("Accumulator", every)
        self.mean = bool(mean)
        # By name: the sum so far, over how many micro-batches, how much these weigh together, and
        # the rows that row-sparse ones touched where there were no others.
        self._totals: dict[str, Array] = {}
        self._counts: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._touched: dict[str, Array | None] = {}
        # What the net trains, and with how many micro-batches, of which weight, parameters begin
        # that it trains only since some were gathered.
        self._trained: frozenset[str] | None = None
        self._late: dict[str, tuple[int, float]] = {}
        # The count that weighs 1: the first, so that full micro-batches cost no product. What the
        # micro-batch in work weighs, and what its sum is multiplied by where only a program's
        # replay knows that.
        self._unit = 0.0
        self._weight: Scale = 1.0
        self._share: Scale | None = None

    @property
    def weighs(self) -> bool:
        """Whether micro-batches weigh by what their losses counted."""
        return self.mean

    def begin(self, count: float | None = None) -> float | None:
        """The gradients to come are of a mean over ``count`` positions, until it is said anew.

        None lets them weigh as much as the others. Returns what the mean in work is over.
        """
        weight = 1.0
        if count is not None and self.mean:
            self._unit = self._unit or float(count)
            weight = count / self._unit if self._unit else 0.0
        self.weigh(weight)
        return self.counted(count) if self.mean else count

    def weigh(self, weight: Scale, share: Scale | None = None) -> None:
        """`begin` with numbers that may be arrays which a program fills.

        Gradients weigh ``weight``. The stage hands on ``share`` times their sum, None for the
        present share.
        """
        self._weight, self._share = weight, share

    @property
    def weight(self) -> Scale:
        """The weight of the gradients of the micro-batch in work; the first ones weigh 1."""
        return self._weight

    def counted(self, count: float | None) -> float | None:
        """What the mean in work is over, with the ``count`` of this micro-batch."""
        if count is None:
            return None
        return max(self._weights.values(), default=0.0) * self._unit + count

    def share(self, name: str = "") -> float:
        """The factor of the sum if this micro-batch is the last; by default of any name."""
        before = self._begun(name or next(iter(self._weights), ""))[1]
        total = before + float(self._weight)
        return 1.0 / total if self.mean and total else 1.0

    def take(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: Scale,
    ) -> Iterator[Handed]:
        """As `Wrapper.take`; nothing is handed on before every ``every``-th call for a name."""
        check_lists("Accumulator", names, values, grads)
        jobs = {n: (v, g) for n, v, g in zip(names, values, grads, strict=True) if g is not None}
        for name, (value, grad) in jobs.items():
            total = self._totals.get(name)
            check_fit("Accumulator", name, value, grad, None if total is None else total.shape)
        self.settle(list(jobs), [value for value, _ in jobs.values()])
        for name, (value, grad) in jobs.items():
            xp = ops_for(value).xp
            total = self._totals[name] = xp.asarray(self._totals[name])
            first = self._counts[name] == 0
            weighted = scale if is_one(self._weight) else scale * self._weight
            touched = _add(xp, total, self._touched[name], grad, weighted, first)
            self._touched[name] = touched
        # The count goes back only after the update, so that a refused one loses nothing.
        for share, ready in self._gathered(jobs).items():
            yield (
                ready,
                [jobs[name][0] for name in ready],
                [_gathered(self._totals[name], self._touched[name]) for name in ready],
                share if self._share is None else self._share,
            )
            self._begin(ready)

    def train(self, names: Iterable[str]) -> None:
        """Gather for the parameters ``names`` from now on, all at the same micro-batch.

        What is frozen meanwhile loses what was gathered; what is thawed has zeros before.
        """
        trained = frozenset(names)
        if trained == self._trained:
            return
        known = trained if self._trained is None else self._trained
        thawed = trained - known | self._late.keys() & trained
        for name in self._totals.keys() - (trained - thawed):
            for of_name in (self._totals, self._counts, self._weights, self._touched):
                del of_name[name]
        begun = max(self._gone())
        self._late = dict.fromkeys(thawed, begun) if begun[0] else {}
        self._trained = trained

    def settle(self, names: Sequence[str], values: Sequence[Array]) -> Sequence[Array]:
        """As `Wrapper.settle`: a buffer for each of them that has none."""
        for name, value in zip(names, values, strict=True):
            if name not in self._totals:
                xp, (count, weight) = ops_for(value).xp, self._late.pop(name, (0, 0.0))
                self._totals[name] = xp.zeros_like(value) if count else xp.empty_like(value)
                self._counts[name], self._weights[name] = count, weight
                self._touched[name] = xp.zeros(value.shape[:1], bool) if count else None
        return values

    def case(self) -> Hashable:
        """Of each parameter whether this is the first of its micro-batches, the last, or neither.

        And whether those before weigh 1. Once for all of them where they go together.
        """
        if self.is_together():
            turns: Hashable = self._turn(*next(self._gone()))
        else:
            turns = tuple(self._turn(*gone) for gone in self._gone())
        return turns, self._unit

    def is_together(self) -> bool:
        """Whether all parameters have seen as many micro-batches, of the same weights."""
        return len(set(self._gone())) == 1

    def is_even(self) -> bool:
        """Whether all the micro-batches of the means in work weigh 1, this one too."""
        return is_one(self._weight) and all(count == weight for count, weight in self._gone())

    def _begun(self, name: str) -> tuple[int, float]:
        """How many micro-batches of the parameter were gathered, and what they weigh."""
        if name in self._counts:
            return self._counts[name], self._weights[name]
        return self._late.get(name, (0, 0.0))

    def _gone(self) -> Iterator[tuple[int, float]]:
        pairs = zip(self._counts.values(), self._weights.values(), strict=True)
        return pairs if self._counts else iter([(0, 0.0)])

    def _turn(self, count: int, weight: float) -> tuple[bool, int, bool]:
        return count == 0, count + 1 if count + 1 >= self.every else 0, count == weight

    def skip(self, names: Sequence[str]) -> None:
        for ready in self._gathered(names).values():
            self._begin(ready)

    def _gathered(self, names: Iterable[str]) -> dict[float, list[str]]:
        """Count a micro-batch; the names whose gradients are to be handed on, by their shares."""
        due: dict[float, list[str]] = {}
        # In a recording only the replays know it, and count by themselves.
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

    @contextmanager
    def before_last(self, names: Sequence[str], values: Sequence[Array]) -> Iterator[None]:
        """Within it the next micro-batch is the last and weighs other than those before.

        Afterwards all is as it was, without buffers that were not there. No other micro-batch
        needs more memory: the sums are there, and the rule within has its state.
        """
        before = dict(vars(self))
        self._totals, self._counts, self._weights = dict(self._totals), {}, {}
        self._touched = dict.fromkeys(self._totals)
        try:
            self.settle(names, values)
            self._counts = dict.fromkeys(self._totals, self.every - 1)
            self._weights = dict.fromkeys(self._totals, 0.5 * (self.every - 1))
            self.weigh(0.5)
            yield
        finally:
            vars(self).update(before)

    def will_change(self, name: str) -> bool:
        fills = self._begun(name)[0] + 1 >= self.every
        return fills and self.optimizer.will_change(name)

    @property
    def pending(self) -> bool:
        """Whether gradients wait here for those of other micro-batches."""
        return any(self._counts.values())

    @property
    def left(self) -> int:
        """How many micro-batches there are up to the next update."""
        return self.every - max(self._counts.values(), default=0)

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """What `update` would hand on for the gradients ``items`` of a step, nothing changed."""
        for names, values, grads in items:
            yield names, values, self.preview(names, values, grads)
            # As the walk itself: one layer's gradients are let go before the next one's exist.
            del names, values, grads

    def preview(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Grad]
    ) -> list[Grad]:
        """What `update` would hand on for these gradients, nothing changed; None if not yet."""
        found: list[Grad] = []
        for name, value, grad in zip(names, values, grads, strict=True):
            count = self._begun(name)[0] + 1
            if grad is None or count < self.every:
                found.append(None)
                continue
            xp = ops_for(value).xp
            if name in self._totals:
                total, rows = xp.array(self._totals[name]), self._touched[name]
            else:
                total = xp.zeros_like(value)
                rows = xp.zeros(value.shape[:1], bool) if count > 1 else None
            rows = None if rows is None else rows.copy()
            rows = _add(xp, total, rows, grad, self._weight, count == 1)
            share = self._share
            if share is None:
                share = self.share(name)
            if not is_one(share):
                total *= in_type(xp, share, total.dtype)
            found.append(_gathered(total, rows))
        return found

    def own_state(self) -> dict[str, Array]:
        """As `Wrapper.own_state`: gradients and counts."""
        saved: dict[str, Array] = {}
        for name, count in self._counts.items():
            if count:
                saved[f"{name}/gathered"] = self._totals[name].copy()
                saved[f"{name}/gathered_count"] = np.array(count, np.int64)
                saved[f"{name}/gathered_weight"] = np.array([self._weights[name], self._unit])
                touched = self._touched[name]
                if touched is not None:
                    saved[f"{name}/gathered_rows"] = touched.copy()
        return saved

    def _is_own(self, key: str) -> bool:
        return key.rpartition("/")[2] in ("gathered_rows", *_PARTS)

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        parsed: dict[str, tuple[Array, int, float, float, Array | None]] = {}
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
            touched = own.get(f"{name}/gathered_rows")
            copy = None if touched is None else touched.copy()
            parsed[name] = total.copy(), int(count), float(weight[0]), float(weight[1]), copy
        return parsed

    def _take(self, parsed: Any) -> None:
        self._totals = {name: total for name, (total, *_) in parsed.items()}
        self._counts = {name: count for name, (_, count, *_) in parsed.items()}
        self._weights = {name: weight for name, (_, _, weight, *_) in parsed.items()}
        self._touched = {name: touched for name, (*_, touched) in parsed.items()}
        self._unit = next((unit for *_, unit, _ in parsed.values()), 0.0)
        self.weigh(1.0)


_PARTS = ("gathered", "gathered_count", "gathered_weight")


def _add(
    xp: Any, total: Array, touched: Array | None, grad: Any, scale: Scale, first: bool
) -> Array | None:
    """Add ``scale`` · ``grad`` to ``total``, which begins anew where it is the ``first``.

    Returns which rows were touched, where all gradients are row-sparse.
    """
    scale = in_type(xp, scale, total.dtype)
    if isinstance(grad, tuple):
        if first:
            total.fill(0)
            touched = xp.zeros(len(total), bool)
        indices, rows = grad
        total[indices] += rows if is_one(scale) else rows * scale
        if touched is not None:
            touched = xp.asarray(touched)
            touched[indices] = True
        return touched
    if first:
        xp.multiply(grad, scale, out=total)
    else:
        xp.add(total, grad if is_one(scale) else grad * scale, out=total)
    return None


def _gathered(total: Array, touched: Array | None) -> Grad:
    if touched is None:
        return total
    rows = ops_for(total).xp.nonzero(touched)[0]
    return RowSparse(rows, total[rows])
