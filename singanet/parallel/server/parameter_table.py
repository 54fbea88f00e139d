"""Tables of rows with an update rule, in memory, in files, or on servers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from singanet.errors import DataError, ShapeError
from singanet.optimizer.chain import UpdateChain, is_plain, update_rows
from singanet.optimizer.element_wise import as_run
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Done, Request
from singanet.params.param import Param
from singanet.types import Array, Gradient, RowSparse

_BLOCK = 1 << 16
"""Elements that are drawn at a time."""


class ServedTable(ABC):
    """A table of ``rows`` × ``width`` numbers of ``dtype``, read and updated some rows at a time.

    ``rows`` in calls are distinct int64 row numbers (n,); values and gradients are (n, ``width``).
    A row's clock counts its updates. ``start_...`` returns a `Request`; the method without it
    waits. Calls of one worker take effect in their order.
    """

    name: str
    rows: int
    width: int
    dtype: np.dtype[Any]

    @abstractmethod
    def start_pull(self, rows: Array) -> Request:
        """Return copies of the values (n, width) and clocks (n,) of ``rows``."""

    @abstractmethod
    def start_push(self, rows: Array, grads: Array, clocks_added: Array | None = None) -> Request:
        """Update ``rows`` once by their gradients, with the table's rule.

        Clocks grow by 1, or by ``clocks_added`` (n,) if gradients are sums of several.
        """

    @abstractmethod
    def start_newer(self, rows: Array, clocks: Array, bound: int) -> Request:
        """Select the ``rows`` whose clocks are more than ``bound`` ahead of ``clocks``.

        The result has their positions in ``rows``, ascending, their values and their clocks.
        """

    @abstractmethod
    def start_write(self, rows: Array, values: Array) -> Request:
        """Write ``values`` (n, width) to ``rows``, whose clocks grow by 1."""

    @abstractmethod
    def prefetch(self, rows: Array) -> None:
        """Start to pull ``rows`` as they are after the current step, if a pull takes time."""

    def pull(self, rows: Array) -> tuple[Array, Array]:
        """Return copies of the values (n, width) and clocks (n,) of ``rows``."""
        values, clocks = self.start_pull(rows).wait()
        return values, clocks

    def push(self, rows: Array, grads: Array, clocks_added: Array | None = None) -> None:
        """Update ``rows`` once by their gradients, and wait."""
        self.start_push(rows, grads, clocks_added).wait()

    def write(self, rows: Array, values: Array) -> None:
        """Write ``values`` (n, width) to ``rows``, and wait."""
        self.start_write(rows, values).wait()

    def newer(self, rows: Array, clocks: Array, bound: int) -> tuple[Array, Array, Array]:
        """Return the rows whose clocks are more than ``bound`` ahead, as `start_newer` does."""
        positions, values, newer = self.start_newer(rows, clocks, bound).wait()
        return positions, values, newer

    def _checked(self, rows: Array) -> Array:
        """Return ``rows`` as an array. Errors: they are not integers, or out of range."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ShapeError(
                f"table {self.name!r}",
                expected="row numbers, an array of integers of one axis",
                received=f"an array of {rows.dtype} of shape {rows.shape}",
                advice="pass numpy.unique(ids)",
            )
        if are_outside(rows, self.rows):
            raise DataError(
                f"table {self.name!r}",
                expected=f"row numbers from 0 to {self.rows - 1}",
                received=f"from {rows.min()} to {rows.max()}",
                advice="look ids up in the table that they belong to",
            )
        return rows


class Shard(ServedTable):
    """The ``owned`` rows of a parameter, their clocks, and the rule that updates them.

    The initial values equal the values of ``param`` in one process, to the bit. ``optimizer`` may
    be any, stages included, and may be shared with other shards; its state is by parameter name.
    With a ``folder`` values and state are memory-mapped files, which need not fit in memory.
    """

    def __init__(
        self,
        param: Param,
        optimizer: Optimizer | Wrapper,
        owned: slice = slice(None),
        folder: Path | None = None,
    ) -> None:
        self.param, self.optimizer, self.name = param, optimizer, param.name
        whole = param.shape[0] if param.shape else 1
        kept = range(whole)[owned]
        self.rows, self.width = len(kept), math.prod(param.shape[1:])
        self.dtype, self._folder = param.dtype, folder
        self._is_float = self.dtype.name in ("float32", "float64")
        self.clocks = np.zeros(self.rows, np.int64)
        shape = (self.rows, *param.shape[1:]) if param.shape else ()
        self.values = _room(folder, f"{self.name}.values", shape, self.dtype)
        self._table = self.values.reshape(self.rows, self.width)
        self._fill(kept)
        optimizer.register(self.name, param.spec)
        self.keep_state()

    def _fill(self, kept: range) -> None:
        """Draw the initial values of the rows ``kept``."""
        if not self.values.size:
            return
        block = max(1, _BLOCK // self.width) * self.width
        for start, piece in self.param.initial_pieces(block):
            rows, first = piece.reshape(-1, self.width), start // self.width
            edges = (first, first + len(rows))
            low, high = (max(0, -(-(edge - kept.start) // kept.step)) for edge in edges)
            if own := kept[low:high]:
                rows = rows[own[0] - first : own[-1] - first + 1 : kept.step]
                self._table[low : low + len(own)] = rows

    def start_pull(self, rows: Array) -> Request:
        """Return values and clocks. Errors: `DataError` for a row out of range."""
        rows = self._checked(rows)
        return Done((self._table.take(rows, 0), self.clocks.take(rows)))

    def prefetch(self, rows: Array) -> None:
        """Do nothing: a pull takes no time."""

    def start_push(self, rows: Array, grads: Array, clocks_added: Array | None = None) -> Request:
        """Update ``rows``. Errors: rows out of range or repeated, gradients of another shape."""
        rows = np.asarray(rows)
        rise = rows.ndim == 1 and bool((rows[1:] > rows[:-1]).all())
        # The ends of ascending rows bound all of them.
        ends = rows[:: len(rows) - 1].tolist() if rise and len(rows) > 1 else [-1]
        if rows.dtype != np.int64 or ends[0] < 0 or ends[-1] >= self.rows:
            rows = self._checked(rows)
        if grads.shape != (len(rows), self.width):
            raise ShapeError(
                f"table {self.name!r}, push",
                expected=f"gradients of shape {(len(rows), self.width)}",
                received=f"shape {grads.shape}",
                advice="pass one gradient row per row number",
            )
        if not rise:
            order = np.argsort(rows)
            rows, grads = rows[order], grads[order]
            clocks_added = None if clocks_added is None else clocks_added[order]
        self._change(RowSparse(rows, grads), 1.0, clocks_added, checked=rise)
        return Done()

    def start_newer(self, rows: Array, clocks: Array, bound: int) -> Request:
        rows = self._checked(rows)
        ahead = np.flatnonzero(self.clocks[rows] - clocks > bound)
        return Done((ahead, self._table[rows[ahead]], self.clocks[rows[ahead]]))

    def start_write(self, rows: Array, values: Array) -> Request:
        rows = self._checked(rows)
        self._table[rows] = values
        self.clocks[rows] += 1
        return Done()

    def update(self, grad: Gradient, scale: float = 1.0, clocks_added: Array | None = None) -> None:
        """Update once by ``scale`` · ``grad``, a gradient of all rows or of some, ascending."""
        self._change(grad, scale, clocks_added)

    def _change(
        self, grad: Gradient, scale: float, clocks_added: Array | None, checked: bool = False
    ) -> None:
        """Do `update`; the optimizer skips its checks of ``checked`` rows."""
        rule = self.optimizer
        rows: Array | slice = slice(None)
        if isinstance(grad, RowSparse):
            rows = as_run(grad.indices) or grad.indices
            grad = RowSparse(grad.indices, grad.rows.reshape(-1, *self.param.shape[1:]))
        if (
            checked
            and isinstance(grad, RowSparse)
            and self._is_float
            and isinstance(rule, Optimizer)
            and is_plain(rule)
        ):
            update_rows(rule, self.name, self.values, grad, scale)
        else:
            rule.update([self.name], [self.values], [grad], scale)
        self.clocks[rows] += 1 if clocks_added is None else clocks_added

    def lie_in(self, values: Array, clocks: Array) -> None:
        """Move to ``values`` and ``clocks``, arrays with the same elements and layout."""
        self.values, self.clocks = values, clocks
        self._table = values.reshape(self.rows, self.width)

    def keep_state(self) -> None:
        """Move the state of the rule, after a load, to the files of ``folder``."""
        rule = UpdateChain(self.optimizer).rule
        state = rule.state(self.name)
        if self._folder is None:
            return
        loaded = state.arrays or [0.0] * len(rule.slots)
        sizes = rule._slot_sizes(self.values.shape, rule.state(self.name))
        arrays = []
        for slot, size, array in zip(rule.slots, sizes, loaded, strict=True):
            place = _room(self._folder, f"{self.name}.{slot}", (size,), self.dtype)
            place[...] = array
            arrays.append(place)
        state.arrays = arrays


def are_outside(rows: Array, count: int) -> bool:
    """Return True if any of ``rows`` is not from 0 to ``count`` − 1."""
    if not len(rows):
        return False
    if rows.dtype == np.int64:
        # As unsigned, negative numbers are huge, so one comparison is enough.
        return int(np.maximum.reduce(rows.view(np.uint64))) >= count
    return bool(rows.min() < 0 or rows.max() >= count)


def _room(folder: Path | None, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return zeros, in a new file of ``folder`` if it is not None."""
    if folder is None or not math.prod(shape):
        return np.zeros(shape, dtype)
    path = folder / name.replace("/", ".")
    path.parent.mkdir(parents=True, exist_ok=True)
    return np.memmap(path, dtype, "w+", shape=shape or (1,)).reshape(shape)
