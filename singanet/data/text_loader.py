"""Stretches of a text, each batch going on where the one before it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import Described
from singanet.data.loader import Batch, checked_rank, restored_position
from singanet.errors import DataError
from singanet.types import Array


class TextLoader(Described):
    """Batches ``(x, y)`` of ids, both (batch_size, length); ``y`` is ``x`` one place on.

    The ids are cut into ``batch_size × world_size`` rows of equal length, of which rank *r*
    has batch_size neighbours from ``r × batch_size`` on. Row *i* of a batch goes on in row *i*
    of the next, so a recurrent net may keep its state through an epoch; at the start of one
    (``position == 0``) it must forget it. The last batch is shorter, or left out with
    ``drop_last``; at the end of the ids fewer than one place a row stay unused. Iterating
    goes on from the current position, as `ArrayLoader` does, also with another number of ranks
    that have as many rows together.
    """

    def __init__(
        self,
        ids: Array,
        batch_size: int,
        length: int,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        where = "TextLoader"
        ids = np.asarray(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(
                where,
                expected="ids of shape (N,), integers",
                received=f"shape {ids.shape}, {ids.dtype}",
                advice="give TextDataset.train or .validation",
            )
        self.samples = len(ids)
        self.batch_size = checked_count(where, "batch_size", batch_size, 1)
        self.length = checked_count(where, "length", length, 1)
        self.drop_last = bool(drop_last)
        self.rank, self.world_size = checked_rank(where, rank, world_size)
        count = self.batch_size * self.world_size
        self._columns = (len(ids) - 1) // count
        if len(self) < 1:
            raise DataError(
                where,
                expected=f"ids for {count} rows of {self.length if drop_last else 1} and one more",
                received=f"{len(ids)} ids",
                advice="use a smaller batch_size or length, or a longer text",
            )
        first = self.rank * self.batch_size
        rows = slice(first, first + self.batch_size)
        self._x = ids[: count * self._columns].reshape(count, self._columns)[rows]
        self._y = ids[1 : count * self._columns + 1].reshape(count, self._columns)[rows]
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        if self.drop_last:
            return max(self._columns, 0) // self.length
        return -(-max(self._columns, 0) // self.length)

    def __iter__(self) -> Iterator[Batch]:
        epoch, count = self.epoch, len(self)
        for k in range(self.position, count):
            self.epoch, self.position = (epoch, k + 1) if k + 1 < count else (epoch + 1, 0)
            columns = slice(k * self.length, (k + 1) * self.length)
            yield self._x[:, columns].copy(), self._y[:, columns].copy()

    def state_dict(self) -> dict[str, int]:
        """The position, and what must be equal where it is restored."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Errors: `ArgumentError` where text or settings differ."""
        where = "TextLoader"
        self.epoch, self.position = restored_position(where, state, self._identity(), len(self))

    def _identity(self) -> dict[str, int]:
        return {
            "samples": self.samples,
            "batch_size": self.batch_size * self.world_size,
            "length": self.length,
            "drop_last": int(self.drop_last),
        }
