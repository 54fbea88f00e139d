"""What is trained and saved like a net, whether or not it is a graph of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from singanet.device import Device
from singanet.graph.nesting import Ports
from singanet.params.gradients import LayerGradients
from singanet.params.param import Param

if TYPE_CHECKING:
    from singanet.optimizer.optimizer import Optimizer
    from singanet.optimizer.wrapper import Wrapper


class Model(Protocol):
    """What `singanet.training.fit` trains and `singanet.saving` keeps: `Net`, or a class like it.

    ``compiled`` is what `compile` left, ``layers`` and ``nodes`` are for files that go by layers.
    """

    loss: Any
    metric: Any
    device: Device
    dtype: np.dtype[Any]
    rng: np.random.Generator
    seed: int
    compiled: object | None

    @property
    def layers(self) -> Sequence[Any]:
        """The layers in order; empty where there are none."""

    def nodes(self) -> Sequence[Any]:
        """The uses of layers, in the order of adding."""

    def ports(self) -> Ports:
        """Where arrays enter and leave."""

    def params(self) -> list[Param]:
        """All parameters in a fixed order, each once."""

    def param_names(self) -> list[str]:
        """Their names."""

    def forward(self, flag: Any, x: Any) -> Any:
        """The output(s) for ``x``."""

    def step(
        self,
        x: Any,
        y: Any,
        optimizer: Optimizer | Wrapper,
        on_layer: Callable[[LayerGradients], None] | None = None,
        sample_weight: Any = None,
        measure: Callable[[Any, Any], float | None] | None = None,
    ) -> tuple[float, float | None]:
        """One training step; ``(loss, metric)`` from before the update."""
