"""The sums of a step as a program makes them: on its own memory, by its own calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from singanet.ops import numpy_ops
from singanet.optimizer.reducer import Reduction, Traffic
from singanet.optimizer.scale import Scale
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.reductions.order import Order
from singanet.parallel.reductions.round import Flight, Round, marked
from singanet.types import Array, RowSparse


class AsCalls(Reduction):
    """What `AllReduce.update` does with gradients that come layer by layer.

    ``opened`` makes the round of a kind, ``closed`` counts a step whose round has ended.
    """

    rows_first = False

    def __init__(
        self,
        comm: Communicator,
        order: Order,
        window: int,
        traffic: Traffic,
        opened: Callable[[str], Round],
        closed: Callable[[], None],
    ) -> None:
        self.rank, self.window, self.traffic = comm.rank, window, traffic
        self._order, self._opened, self._closed = order, opened, closed
        self._entries = order.entries
        self.entries: Sequence[Sequence[str]] = [
            [param.name for param in entry] for entry in order.entries
        ]
        self.sparse = frozenset(name for name, kind in order.kinds.items() if kind == "rows")
        self._round: Round | None = None

    @property
    def factor(self) -> float:
        return 1.0 if self._round is None else self._round.scale

    @property
    def share(self) -> float:
        return 1.0 if self._round is None else self._round.share

    @property
    def under_way(self) -> bool:
        return self._round is not None and self._round.under_way

    def like(self, name: str) -> Array:
        return self._order.like(self._order.by_name[name])

    def open(self, kind: str) -> None:
        """As `Reduction`. Errors: `CallOrderError` where the round before did not end."""
        self._round = self._opened(kind)

    def start(self, entry: int, buffer: Array, scales: Sequence[Scale]) -> None:
        self._now.start_flat(self._entries[entry], buffer, scales)

    def start_rows(self, entry: int, grad: RowSparse, scale: Scale) -> None:
        (param,) = self._entries[entry]
        rows = {param.name: (*marked(*grad), scale)}
        self._now.start(Flight([param], [], None, (), rows))

    def test(self) -> None:
        if self._round is not None:
            self._round.test()

    def finish(self, entry: int, buffer: Array) -> None:
        self._now.finish_flat(buffer)

    def finish_rows(self, entry: int) -> RowSparse:
        (name,) = self.entries[entry]
        found = self._now.rows_of(self._now.land(), name)
        # This rank has rows itself.
        assert found is not None
        return RowSparse(*numpy_ops.sum_rows(*found))

    def close(self, kind: str) -> None:
        self._now.close()
        self._round = None
        if kind == "step":
            self._closed()

    @property
    def _now(self) -> Round:
        assert self._round is not None
        return self._round
