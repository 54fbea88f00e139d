"""Parameters that workers have whole, side by side on their server as in a worker's buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.together import Together
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.server.table import Shard
from singanet.params.storage import lay_as_one
from singanet.types import Array


class Replicas:
    """``shards`` of one type, whose values are parts of the flat ``values``, in this order.

    Their gradients come as one flat array, too, and are one update by ``optimizer`` where its rule
    treats each element by itself. Each shard stays what it was, at another place.
    """

    def __init__(self, shards: Sequence[Shard], optimizer: Optimizer | Wrapper) -> None:
        self.shards = tuple(shards)
        laid = lay_as_one([shard.values for shard in shards], np.asarray)
        self._clocks = np.concatenate([shard.clocks for shard in shards])
        start = value = 0
        for shard, values in zip(shards, laid, strict=True):
            shard.lie_in(values, self._clocks[start : start + shard.rows])
            start, value = start + shard.rows, value + values.size
        # What lies there is a view of the whole.
        whole = laid[0].base
        assert whole is not None
        self.values: Array = whole[:value]
        self._together = Together(optimizer, [shard.name for shard in shards], laid)

    def update(self, grad: Array, scale: float = 1.0) -> None:
        """Update all of them once by ``scale`` · ``grad``."""
        self._together.update(grad, scale)
        self._clocks += 1

    def parts(self, flat: Array) -> list[Array]:
        """The parts of ``flat`` that are of each of them."""
        ends = np.cumsum([shard.values.size for shard in self.shards])
        return np.split(flat, ends[:-1])
