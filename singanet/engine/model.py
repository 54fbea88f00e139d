"""Protocols: of the net that executors need, and of objects that are trained and saved like one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from singanet.base.collectives import Collectives
from singanet.device import Device
from singanet.engine.plan import Plan
from singanet.graph.nesting import Ports
from singanet.params.gradients import LayerGradients
from singanet.params.param import Param, ParamSpec

if TYPE_CHECKING:
    from singanet.optimizer.optimizer import Optimizer
    from singanet.optimizer.wrapper import Wrapper

Measure: TypeAlias = Callable[..., Any] | None
"""``measure(output, y)``: the metric of a batch, or what gathers it. See `Seen` for weights."""

OnLayer: TypeAlias = Callable[[LayerGradients], None] | None
"""A function of each layer's gradients, called before they are applied."""


def metrics_of(measure: Measure) -> Sequence[Any]:
    """The metrics that are all that ``measure`` shows outputs; none where it does not tell."""
    return () if measure is None else tuple(getattr(measure, "shows", ()))


def looks_of(measure: Measure) -> tuple[Hashable, ...] | None:
    """What decides over what `metrics_of` a ``measure`` find of single rows of outputs.

    None where something looks at outputs that is no metric which goes by rows.
    """
    if measure is None:
        return ()
    shown = getattr(measure, "shows", None)
    if shown is None:
        return None
    found = []
    for metric in shown:
        # A user's own that only judges single batches has none.
        settings = metric.row_settings() if hasattr(metric, "row_settings") else None
        if settings is None:
            return None
        found.append(settings)
    return tuple(found)


class StepRequest(NamedTuple):
    """One training step to be carried out: on inputs ``x``, so far unchecked, and targets ``y``.

    ``weight`` has a number a sample.
    """

    x: Any
    y: Any
    optimizer: Any
    weight: Any = None
    measure: Measure = None
    on_layer: OnLayer = None


class Placed(Protocol):
    """An executor of a net whose layers lie on several ranks, as a training sees it.

    ``comm`` is of all of them. A rank takes the part ``share`` = (number, of how many) of each
    batch; outputs in training are seen on the ranks ``measuring`` alone. ``part`` is what of the
    net is on this rank, ``places`` has the stage of each layer.
    """

    comm: Collectives
    share: tuple[int, int]
    measuring: Sequence[int]
    places: dict[str, int]

    @property
    def part(self) -> Any:
        """Layers and parameters of this rank, as a net."""

    @property
    def exchanged(self) -> tuple[int, int]:
        """The bytes that this process has sent and received."""

    def on_first(self, work: Callable[[], Any]) -> Any:
        """``work()`` on rank 0, where all parameters can be read meanwhile. All ranks call it."""

    def can_move(self, places: Mapping[str, int]) -> bool:
        """Whether the layers may be where ``places`` says."""

    def move(self, places: Mapping[str, int]) -> None:
        """Let them be there. All ranks call it."""

    def owner(self, name: str) -> int:
        """The rank that updates the parameter, the first of several."""


def placed_by(net: Any) -> Placed | None:
    """The executor of ``net``, where its layers lie on several ranks."""
    found: Placed | None = net.executor.placed if hasattr(net, "executor") else None
    return found


def makes_passes_together(net: Any) -> bool:
    """Whether all ranks that train ``net`` make each of its passes together."""
    return hasattr(net, "executor") and bool(net.executor.can.together)


class NetCore(Protocol):
    """The part of a `Net` that executors need."""

    loss: Any
    device: Device
    dtype: np.dtype[Any]
    rng: np.random.Generator
    executor: Any

    @property
    def version(self) -> int:
        """Another number after each change of the graph."""

    @property
    def passes_are_its_own(self) -> bool:
        """Whether `forward` and `backward` are not overridden."""

    def execution_plan(self) -> Plan:
        """The sorted steps, with every parameter filled."""

    def params(self) -> list[Param]:
        """All parameters, a shared one once."""

    def param_specs(self) -> list[ParamSpec]:
        """Their training settings."""

    def rehearsal(self, only_failed: bool = False) -> AbstractContextManager[None]:
        """A block after which draws and running state of its forwards are undone."""


class Model(Protocol):
    """A net that `singanet.training.fit` trains and `singanet.saving` saves: `Net`, or one like it.

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
        """The layers in order; empty without layers."""

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
        on_layer: OnLayer = None,
        sample_weight: Any = None,
        measure: Measure = None,
    ) -> tuple[float, float | None]:
        """One training step; ``(loss, metric)`` from before the update."""
