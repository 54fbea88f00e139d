"""Gradients summed over micro-batches, in one buffer a parameter."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.errors import DataError
from singanet.ops import ops_for
from singanet.optimizer.checks import Grad, check_fit, check_lists, checked_count
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import Scale, in_type, is_one
from singanet.optimizer.state import together
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.types import Array, RowSparse


class Accumulator(Wrapper):
    """Hands the mean of ``every`` successive gradients of a parameter to the optimizer.

    Until then its value stands still. ``mean=False`` hands on their sum. Costs one buffer of
    the parameter's size for each parameter; where all gradients are row-sparse, so is the mean.
    """

    def __init__(self, optimizer: Optimizer | Wrapper, every: int, mean: bool = True) -> None:
        super().__init__(optimizer)
        self.every = checked_count("Accumulator(every=)", every)
        self.mean = bool(mean)
        # By name: the sum so far, over how many micro-batches, and the rows that row-sparse ones
        # touched where there were no others.
        self._totals: dict[str, Array] = {}
        self._counts: dict[str, int] = {}
        self._touched: dict[str, Array | None] = {}

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
            touched = _add(xp, total, self._touched[name], grad, scale, first)
            self._touched[name] = touched
        # The count goes back only after the update, so that a refused one loses nothing.
        for count, ready in self._gathered(jobs).items():
            yield (
                ready,
                [jobs[name][0] for name in ready],
                [_gathered(self._totals[name], self._touched[name]) for name in ready],
                1.0 / count if self.mean else 1.0,
            )
            self._begin(ready)

    def settle(self, names: Sequence[str], values: Sequence[Array]) -> Sequence[Array]:
        """As `Wrapper.settle`: a buffer for each of them that has none."""
        for name, value in zip(names, values, strict=True):
            if name not in self._totals:
                self._totals[name] = ops_for(value).xp.empty_like(value)
                self._counts[name] = 0
                self._touched[name] = None
        return values

    def case(self) -> Hashable:
        """Of each parameter whether this is the first of its micro-batches, the last, or neither.

        Once for all of them where they go together.
        """
        return together(map(self._turn, self._counts.values() or [0]))

    def _turn(self, count: int) -> tuple[bool, int]:
        return count == 0, count + 1 if count + 1 >= self.every else 0

    def skip(self, names: Sequence[str]) -> None:
        """As `Wrapper.skip`."""
        for ready in self._gathered(names).values():
            self._begin(ready)

    def _gathered(self, names: Iterable[str]) -> dict[int, list[str]]:
        """Count a micro-batch; the names whose gradients are to be handed on, by their counts."""
        due: dict[int, list[str]] = {}
        for name in names:
            self._counts[name] += 1
            if self._counts[name] >= self.every:
                due.setdefault(self._counts[name], []).append(name)
        return due

    def _begin(self, names: Iterable[str]) -> None:
        self._counts.update(dict.fromkeys(names, 0))

    def will_change(self, name: str) -> bool:
        """As `Optimizer.will_change`."""
        fills = self._counts.get(name, 0) + 1 >= self.every
        return fills and self.optimizer.will_change(name)

    def fills_next(self) -> bool:
        """Whether the next gradients are the last of their ``every``."""
        return max(self._counts.values(), default=0) + 1 >= self.every

    def preview(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Grad]
    ) -> list[Grad]:
        """What `update` would hand on for these gradients, nothing changed; None where not yet."""
        found: list[Grad] = []
        for name, value, grad in zip(names, values, grads, strict=True):
            count = self._counts.get(name, 0) + 1
            if grad is None or count < self.every:
                found.append(None)
                continue
            xp = ops_for(value).xp
            if name in self._totals:
                total, rows = xp.array(self._totals[name]), self._touched[name]
            else:
                total, rows = xp.empty_like(value), None
            rows = None if rows is None else rows.copy()
            rows = _add(xp, total, rows, grad, 1.0, count == 1)
            if self.mean:
                total *= 1.0 / count
            found.append(_gathered(total, rows))
        return found

    def _own_state(self) -> dict[str, Array]:
        saved: dict[str, Array] = {}
        for name, count in self._counts.items():
            if count:
                saved[f"{name}/gathered"] = self._totals[name].copy()
                saved[f"{name}/gathered_count"] = np.array(count, np.int64)
                touched = self._touched[name]
                if touched is not None:
                    saved[f"{name}/gathered_rows"] = touched.copy()
        return saved

    def _is_own(self, key: str) -> bool:
        return key.rpartition("/")[2] in ("gathered", "gathered_count", "gathered_rows")

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        parsed: dict[str, tuple[Array, int, Array | None]] = {}
        for key in own:
            name, _, slot = key.rpartition("/")
            total, count = own.get(f"{name}/gathered"), own.get(f"{name}/gathered_count")
            if total is None or count is None:
                raise DataError(
                    f"Accumulator.load_state_dict, parameter {name!r}",
                    expected="'gathered' and 'gathered_count'",
                    received=f"{slot!r} alone",
                    advice="load a complete state_dict",
                )
            touched = own.get(f"{name}/gathered_rows")
            copy = None if touched is None else touched.copy()
            parsed[name] = total.copy(), int(count), copy
        return parsed

    def _take(self, parsed: Any) -> None:
        self._totals = {name: total for name, (total, _, _) in parsed.items()}
        self._counts = {name: count for name, (_, count, _) in parsed.items()}
        self._touched = {name: touched for name, (_, _, touched) in parsed.items()}


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
