"""One step of a training, as the optimizer in use needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from singanet.engine.model import Model
from singanet.engine.net import Net
from singanet.errors import ArgumentError
from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
from singanet.params.gradients import LayerGradients
from singanet.training.global_clip import global_clip, norm_handed_on
from singanet.training.half_step import HalfStep
from singanet.training.loss_gradient import loss_gradient
from singanet.types import Array

OnLayer: TypeAlias = Callable[[LayerGradients], None] | None
Step: TypeAlias = Callable[[Any, Any, Array | None, OnLayer, Callable[[Any, Any], None]], float]
"""``step(x, y, sample_weight, on_layer, measure)``: the loss from before the update."""


def stepper(net: Model, optimizer: Optimizer | Wrapper, precision: MixedPrecision | None) -> Step:
    """The step for ``optimizer``: one pass, or two where a norm has to be known before.

    Errors: `ClipByGlobalNorm` inside of other clipping, where its norm would not be that.
    """

    def one_pass(x: Any, y: Any, weight: Array | None, on_layer: Any, measure: Any) -> float:
        return net.step(x, y, optimizer, on_layer, weight, measure)[0]

    gathering, clip = global_clip(optimizer)
    if not isinstance(net, Net):
        if clip is None:
            return one_pass
        raise ArgumentError(
            "net.fit, clip_by='global'",
            expected="a FeedForwardNet, whose backward can be run twice",
            received=f"a {type(net).__name__}",
            advice="clip by 'layer', 'running' or 'value'",
        )
    if precision is not None:
        return HalfStep(net, optimizer, precision, gathering, clip)
    if clip is None:
        return one_pass

    def two_passes(x: Any, y: Any, weight: Array | None, on_layer: Any, measure: Any) -> float:
        if not all(each.fills_next() for each in gathering):
            return one_pass(x, y, weight, on_layer, measure)
        with net.rehearsal():
            items = net.backward(loss_gradient(net, x, y, weight)[0])
            norm = norm_handed_on(gathering, items)
        with clip.knowing(norm):
            return one_pass(x, y, weight, on_layer, measure)

    return two_passes
