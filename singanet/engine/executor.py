"""What carries out the passes and steps of a net."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from singanet.engine.plan import Plan
from singanet.params.gradients import LayerGradients
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net


class Pass(Protocol):
    """A training forward that an executor ran, and the walk back that may follow it."""

    def forward(self) -> dict[str, Any]:
        """The outputs by name."""

    def backward(
        self, net: Any, plan: Plan, slot_grads: dict[int, Array], asked: tuple[str, ...]
    ) -> Generator[LayerGradients, None, None]:
        """Yield once a visited layer, in reverse topological order."""

    def release(self) -> None:
        """Let go of what the forward left, when no walk follows."""


class Executor(Protocol):
    """Carries out calls of a net; None where it leaves one to the layers."""

    def evaluate(self, net: Net, feed: Mapping[str, Any]) -> dict[str, Any] | None:
        """The outputs by name."""

    def forward(self, net: Net, feed: Mapping[str, Any]) -> Pass | None:
        """A training forward."""

    def step(
        self,
        net: Net,
        feed: Mapping[str, Any],
        y: Any,
        optimizer: Any,
        weight: Any,
        measure: Any,
    ) -> tuple[float, float | None] | None:
        """One training step; ``(loss, metric)`` from before its updates."""

    def again(
        self, net: Net, x: Any, y: Any, optimizer: Any, measure: Any
    ) -> tuple[float, float | None] | None:
        """A step without weights, so far unchecked, if it is like the last one."""

    def walked(self, slot_grads: Mapping[int, Array]) -> None:
        """Learn how the gradients lay that a walk by the layers started from."""


class LayerByLayer:
    """Leaves every call to the layers."""

    def evaluate(self, net: Net, feed: Mapping[str, Any]) -> None:
        """By the layers."""

    def forward(self, net: Net, feed: Mapping[str, Any]) -> None:
        """By the layers."""

    def step(self, net: Net, feed: Any, y: Any, optimizer: Any, weight: Any, measure: Any) -> None:
        """By the layers."""

    def again(self, net: Net, x: Any, y: Any, optimizer: Any, measure: Any) -> None:
        """By the layers."""

    def walked(self, slot_grads: Mapping[int, Array]) -> None:
        """Nothing to learn."""
