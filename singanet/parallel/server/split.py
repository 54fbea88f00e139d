"""Which server has which rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from singanet.types import Array

Way: TypeAlias = Literal["hash", "range"]


@dataclass(frozen=True)
class RowSplit:
    """``rows`` over ``servers``, by their numbers: "hash" row i on i mod p, "range" runs of rows.

    Ids that come often mostly lie side by side, so that "hash" spreads them.
    """

    rows: int
    servers: Sequence[int]
    way: Way = "hash"

    def owned(self) -> Iterator[tuple[int, slice]]:
        """Each server, and the rows that it has."""
        count = len(self.servers)
        for k, server in enumerate(self.servers):
            if self.way == "hash":
                yield server, slice(k, None, count)
            else:
                yield server, slice(self.rows * k // count, self.rows * (k + 1) // count)

    def places(self, rows: Array) -> Iterator[tuple[int, Array | slice, Array]]:
        """Each server, the positions in ``rows`` of those that it has, and their numbers there."""
        count = len(self.servers)
        if count == 1:
            yield self.servers[0], slice(None), rows
            return
        if self.way == "hash":
            owners, local = rows % count, rows // count
        else:
            starts = np.array([part.start for _, part in self.owned()])
            owners = np.searchsorted(starts, rows, "right") - 1
            local = rows - starts[owners]
        for k, server in enumerate(self.servers):
            found = np.flatnonzero(owners == k)
            yield server, found, local[found]
