"""Parameters of which each process updates a part: how the others get to know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from singanet.types import Array


class Cutting(ABC):
    """The parts of parameters that processes update, each its own, as a few calls in one order.

    Of a step it is asked for each entry of its `Reduction`: `part` of values and gradients, then,
    once these are updated, `pass_over` and `tell`, and in the same order `hear`. As many as
    ``ahead`` entries may be updated before others' values are heard.
    """

    ahead: int

    @abstractmethod
    def part(self, name: str, array: Any) -> Any:
        """The part that this process updates of ``array``, or of rows, as large as the parameter.

        None if it has none: others do.
        """

    @abstractmethod
    def pass_over(self, names: Sequence[str]) -> None:
        """Count an update of the parameters ``names``, of which this process has no `part`."""

    @abstractmethod
    def tell(self, names: Sequence[str], targets: Sequence[Array], grads: Sequence[Any]) -> None:
        """Begin to tell others this process's parts of ``targets``, and to hear theirs.

        They were updated by ``grads``, which are whole.
        """

    @abstractmethod
    def hear(self) -> None:
        """Wait for the `tell` that was begun first: its targets are whole then."""
