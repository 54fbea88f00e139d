"""The sums of one step, of the few elements that each rank sends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.optimizer.reduction import Found, RoundKind
from singanet.optimizer.scale import Scale
from singanet.parallel.reductions.rank_reducer import RankReducer
from singanet.parallel.reductions.round import Flight, Round, listed
from singanet.parallel.reductions.unsent import Unsent
from singanet.types import Array, RowSparse

Choice = Callable[[Array, int], Array]
"""``choice(values, count)``: the rising places to send of flat ``values``, ``count`` known."""

_SILENT = 10
"""The number of steps without an element sent after which a warning comes."""

_NONE, _DENSE = -1, 0
"""How a rank's gradient of a parameter comes; above 0 are rows, one less than the number."""


class SparseRound(Round):
    """A `Round` to which each rank gives some elements of an entry, all in one message.

    A message is the number of elements and a number a parameter (int32), the places of the
    elements in the entry laid end to end (uint32), and their values; then of each row-sparse
    gradient the indices (int64) and the rows, which are sent whole. All ranks add up all messages
    in the order of ranks, and so have the same bits. What a rank has not reached it sends
    nothing of.
    """

    def __init__(self, owner: RankReducer, window: int, unsent: Unsent, choice: Choice) -> None:
        super().__init__(owner, window)
        self.unsent, self._choice, self._keeps = unsent, choice, True
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

    def module(self, like: Array) -> Any:
        """As `Reduction`: what is chosen from is on the host."""
        return np

    def open(self, kind: RoundKind) -> None:
        super().open(kind)
        self._keeps = kind == "step"

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
        return Flight(self.comm.start_all_gather(message, what))

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
        self.unsent.steps += 1
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
