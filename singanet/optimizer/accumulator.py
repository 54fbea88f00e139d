"""Gradients summed over micro-batches, in one buffer a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singanet.errors import DataError
from singanet.ops import ops_for
from singanet.optimizer.checks import Grad, check_fit, check_lists, checked_count
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.types import Array, RowSparse


class _Buffer:
    """The sum so far, over how many micro-batches, and which rows row-sparse ones touched."""

    __slots__ = ("count", "total", "touched")

    def __init__(self, total: Array, count: int = 0, touched: Array | None = None) -> None:
        self.total = total
        self.count = count
        self.touched = touched

    def add(self, grad: Any, scale: float) -> None:
        xp = ops_for(self.total).xp
        if isinstance(grad, tuple):
            if self.count == 0:
                self.total.fill(0)
                self.touched = xp.zeros(len(self.total), bool)
            indices, rows = grad
            self.total[indices] += rows * scale if scale != 1.0 else rows
            if self.touched is not None:
                self.touched[indices] = True
        elif self.count == 0:
            xp.multiply(grad, scale, out=self.total)
            self.touched = None
        else:
            self.total += grad * scale if scale != 1.0 else grad
            self.touched = None
        self.count += 1

    def copy(self) -> _Buffer:
        touched = None if self.touched is None else self.touched.copy()
        return _Buffer(self.total.copy(), self.count, touched)

    def move(self, xp: Any) -> None:
        self.total = xp.asarray(self.total)
        self.touched = None if self.touched is None else xp.asarray(self.touched)

    def gradient(self) -> Grad:
        if self.touched is None:
            return self.total
        rows = ops_for(self.total).xp.nonzero(self.touched)[0]
        return RowSparse(rows, self.total[rows])


class Accumulator(Wrapper):
    """Hands the mean of ``every`` successive gradients of a parameter to the optimizer.

    Until then its value stands still. ``mean=False`` hands on their sum. Costs one buffer of
    the parameter's size for each parameter; where all gradients are row-sparse, so is the mean.
    """

    def __init__(self, optimizer: Optimizer | Wrapper, every: int, mean: bool = True) -> None:
        super().__init__(optimizer)
        self.every = checked_count("Accumulator(every=)", every)
        self.mean = bool(mean)
        self._buffers: dict[str, _Buffer] = {}

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`; values change at every ``every``-th call for their name."""
        check_lists("Accumulator", names, values, grads)
        jobs = [job for job in zip(names, values, grads, strict=True) if job[2] is not None]
        for name, value, grad in jobs:
            buffer = self._buffers.get(name)
            check_fit(
                "Accumulator", name, value, grad, None if buffer is None else buffer.total.shape
            )
        due: dict[int, list[tuple[str, Array, _Buffer]]] = {}
        for name, value, grad in jobs:
            if name not in self._buffers:
                self._buffers[name] = _Buffer(ops_for(value).xp.empty_like(value))
            buffer = self._buffers[name]
            if type(buffer.total) is not type(value):
                buffer.move(ops_for(value).xp)
            buffer.add(grad, scale)
            if buffer.count >= self.every:
                due.setdefault(buffer.count, []).append((name, value, buffer))
        # The count goes back only after the update, so that a refused one loses nothing.
        for count, ready in due.items():
            self.optimizer.update(
                [name for name, _, _ in ready],
                [value for _, value, _ in ready],
                [buffer.gradient() for _, _, buffer in ready],
                1.0 / count if self.mean else 1.0,
            )
            for _, _, buffer in ready:
                buffer.count = 0

    def fills_next(self) -> bool:
        """Whether the next gradients are the last of their ``every``."""
        gathered = max((buffer.count for buffer in self._buffers.values()), default=0)
        return gathered + 1 >= self.every

    def preview(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Grad]
    ) -> list[Grad]:
        """What `update` would hand on for these gradients, nothing changed; None where not yet."""
        found: list[Grad] = []
        for name, value, grad in zip(names, values, grads, strict=True):
            buffer = self._buffers.get(name)
            trial = (
                _Buffer(ops_for(value).xp.empty_like(value)) if buffer is None else buffer.copy()
            )
            if type(trial.total) is not type(value):
                trial.move(ops_for(value).xp)
            if grad is not None:
                trial.add(grad, 1.0)
            due = grad is not None and trial.count >= self.every
            if due and self.mean:
                trial.total *= 1.0 / trial.count
            found.append(trial.gradient() if due else None)
        return found

    def _own_state(self) -> dict[str, Array]:
        saved: dict[str, Array] = {}
        for name, buffer in self._buffers.items():
            if buffer.count:
                saved[f"{name}/gathered"] = buffer.total.copy()
                saved[f"{name}/gathered_count"] = np.array(buffer.count, np.int64)
                if buffer.touched is not None:
                    saved[f"{name}/gathered_rows"] = buffer.touched.copy()
        return saved

    def _is_own(self, key: str) -> bool:
        return key.rpartition("/")[2] in ("gathered", "gathered_count", "gathered_rows")

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        buffers = {}
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
            buffers[name] = _Buffer(total.copy(), int(count), copy)
        return buffers

    def _take(self, parsed: Any) -> None:
        self._buffers = parsed
