"""One step of a training in mixed precision."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from singanet.engine.net import Net
from singanet.ops import ops_for
from singanet.optimizer import (
    Accumulator,
    ClipByGlobalNorm,
    MixedPrecision,
    Optimizer,
    Wrapper,
)
from singanet.params.gradients import LayerGradients
from singanet.training.global_clip import norm_handed_on
from singanet.training.loss_gradient import loss_gradient
from singanet.types import Array


class HalfStep:
    """Called as a `Step`: forward and backward in half precision, the update in float32.

    Nothing is updated before the gradients of all layers are known to be finite; ``on_layer``
    sees those of a step that is taken, unscaled.
    """

    def __init__(
        self,
        net: Net,
        optimizer: Optimizer | Wrapper,
        precision: MixedPrecision,
        gathering: list[Accumulator],
        clip: ClipByGlobalNorm | None,
    ) -> None:
        self.net = net
        self.optimizer = optimizer
        self.precision = precision
        self.gathering = gathering
        self.clip = clip
        optimizer.register_all(net.param_specs())

    def __call__(self, x: Any, y: Any, weight: Array | None, on_layer: Any, measure: Any) -> float:
        """The loss from before the update."""
        # What overflows is looked for; NumPy need not say it.
        with np.errstate(over="ignore", invalid="ignore"):
            before = [(p, p.value.copy()) for p in self.net.params() if p.is_state]
            dy, loss = loss_gradient(self.net, x, y, weight, measure)
            held: list[LayerGradients] = []
            for item in self.net.backward(_scaled(dy, self.precision.scale)):
                if not all(map(_finite, item.grads)):
                    for param, value in before:
                        param.value[...] = value
                    self.precision.failed(item.layer)
                    return loss
                held.append(item)
            self._update(held, on_layer)
            self.precision.succeeded()
        return loss

    def _update(self, held: list[LayerGradients], on_layer: Any) -> None:
        knowing: Any = nullcontext()
        if self.clip is not None and all(each.fills_next() for each in self.gathering):
            items = (self._in_float32(item) for item in held)
            knowing = self.clip.knowing(norm_handed_on(self.gathering, items))
        held.reverse()
        with knowing:
            while held:
                item = held.pop()
                names, masters, grads = self._in_float32(item)
                if on_layer is not None:
                    on_layer(LayerGradients(names, item.values, grads, item.layer))
                self.optimizer.update(names, masters, grads)
                for value, master in zip(item.values, masters, strict=True):
                    value[...] = master

    def _in_float32(self, item: LayerGradients) -> tuple[list[str], list[Array], list[Any]]:
        """Names, masters and gradients of a layer."""
        names, values, grads = item
        masters = [self.precision.master(n, v) for n, v in zip(names, values, strict=True)]
        return names, masters, [self.precision.unscaled(grad) for grad in grads]


def _scaled(dy: Any, scale: float) -> Any:
    if isinstance(dy, dict):
        return {name: _scaled(part, scale) for name, part in dy.items()}
    return dy * scale


def _finite(grad: Any) -> bool:
    array = grad[1] if isinstance(grad, tuple) else grad
    return bool(ops_for(array).xp.isfinite(array).all())
