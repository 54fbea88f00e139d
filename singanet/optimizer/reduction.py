"""How gradients become those of several processes: calls that layers make, and programs too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from singanet.ops import ops_for
from singanet.optimizer.cutting import Cutting
from singanet.optimizer.scale import Scale, on_host
from singanet.optimizer.traffic import Traffic
from singanet.types import Array, RowSparse

RoundKind: TypeAlias = Literal["step", "preview"]
"""Of gradients that are updated by, or only looked at."""

Found: TypeAlias = bool | RowSparse | None
"""Where the sum of a gradient is: True for the buffer, rows themselves, None if no rank has any."""


class Reduction(ABC):
    """How the gradients of a step become those of all processes, as a few calls in one order.

    A round is `open`, for each entry `start` and, in the same order, `finish`, and `close`; at most
    ``window`` entries are under way. By the layers a `GradientRound` makes these calls, and a
    program has them written down. An entry names the parameters that are reduced by one call. Its
    dense gradients lie side by side in a flat buffer, and behind them an element for each, which is
    the reduction's own.
    """

    window: int
    traffic: Traffic
    rows_first: bool = False
    """Whether gradients of rows that tables have go there before the first `finish`."""
    cutting: Cutting | None = None
    """Which parts of parameters this process updates, where it is not all of them."""

    @property
    @abstractmethod
    def entries(self) -> Sequence[Sequence[str]]:
        """In the order in which all processes begin them."""

    @property
    def settled(self) -> bool:
        """Whether the entries are those of all steps to come: then these are recorded."""
        return True

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return 0

    @property
    def factor(self) -> float:
        """What is finished is to be multiplied by it; known after the first `finish`."""
        return 1.0

    @property
    def share(self) -> float:
        """The weight of this process's gradients in the means of all; known as ``factor``."""
        return 1.0

    @property
    def under_way(self) -> bool:
        """Whether others may still write to buffers of a round that has no end."""
        return False

    @abstractmethod
    def value(self, name: str) -> Array:
        """The parameter."""

    def like(self, name: str) -> Array:
        """An array of the type and shape that gradients of the parameter have."""
        return self.value(name)

    def is_rows(self, name: str) -> bool:
        """Whether gradients of the parameter are rows, and in no buffer."""
        return False

    def room(self, names: Sequence[str]) -> Array | None:
        """A buffer of zeros for the dense gradients of an entry, None if it has only rows."""
        likes = [self.like(name) for name in names if not self.is_rows(name)]
        if not likes:
            return None
        size = sum(like.size for like in likes) + len(likes)
        made: Array = self.module(likes[0]).zeros(size, likes[0].dtype)
        return made

    def module(self, like: Array) -> Any:
        """The array module of buffers for gradients as ``like``: NumPy, as processes talk so."""
        return np

    def parts(self, names: Sequence[str], buffer: Array | None) -> dict[str, Array]:
        """Where in its ``buffer`` the dense gradients of an entry lie."""
        parts: dict[str, Array] = {}
        start = 0
        for name in names:
            if buffer is not None and not self.is_rows(name):
                like = self.like(name)
                parts[name] = buffer[start : start + like.size].reshape(like.shape)
                start += like.size
        return parts

    def lay(self, part: Array, grad: Array) -> None:
        """Copy ``grad`` to its ``part`` of a buffer, which may lie on the host alone."""
        part[...] = ops_for(grad).host(grad) if on_host(ops_for(part).xp) else grad

    @abstractmethod
    def open(self, kind: RoundKind) -> None:
        """Begin a round."""

    def prepare(self, names: Sequence[str], given: Mapping[str, Any]) -> Sequence[str]:
        """The parameters ``names`` with a gradient on any process; ``given`` are this process's.

        Once steps are ``settled`` these are all names, and no process is asked.
        """
        return names

    def late(self, gone: Collection[str], given: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """Entries of what nobody had in steps before, none of it ``gone``."""
        return ()

    @abstractmethod
    def start(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> None:
        """Begin an entry, whose gradients are in ``buffer`` and ``rows``.

        They are still to be multiplied by ``scales``, None if this process has no gradient.
        """

    @abstractmethod
    def test(self) -> None:
        """Carry on what is under way, which nothing else does while the process computes."""

    @abstractmethod
    def finish(self, names: Sequence[str], buffer: Array | None) -> list[Found]:
        """Wait for the entry that was begun first: ``buffer`` then holds what all have of it."""

    @abstractmethod
    def close(self, kind: RoundKind) -> None:
        """End the round, of which nothing is under way."""
