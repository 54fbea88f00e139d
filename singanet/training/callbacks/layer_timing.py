"""How long each layer takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from singanet.layers import Layer
from singanet.training.callbacks.callback import Callback


class LayerTiming(Callback):
    """Seconds in each layer's forward and backward, over the whole fit, validation included.

    ``forward`` and ``backward`` map layer names to seconds, `table` prints them. Costs two
    readings of the clock a call. On a GPU kernels run on behind the clock, so that the times are
    those of their launch.
    """

    def __init__(self) -> None:
        self.forward: dict[str, float] = {}
        self.backward: dict[str, float] = {}
        self._timed: list[Layer] = []

    def on_train_begin(self) -> None:
        """Put a clock around the layers' methods."""
        self._timed = list(self.session.net.layers)
        self.forward = {layer.name: 0.0 for layer in self._timed}
        self.backward = dict(self.forward)
        for layer in self._timed:
            vars(layer)["forward"] = _clocked(layer.forward, self.forward, layer.name)
            vars(layer)["backward"] = _clocked(layer.backward, self.backward, layer.name)

    def on_train_end(self) -> None:
        """Take the clocks away."""
        for layer in self._timed:
            vars(layer).pop("forward", None)
            vars(layer).pop("backward", None)
        self._timed = []

    def table(self) -> str:
        """A line a layer: name, milliseconds forward and backward, share of the whole."""
        total = sum(self.forward.values()) + sum(self.backward.values()) or 1.0
        width = max(map(len, [*self.forward, "layer"]))
        lines = [f"{'layer':<{width}}  {'forward ms':>10}  {'backward ms':>11}  share"]
        for name, seconds in self.forward.items():
            back = self.backward[name]
            lines.append(
                f"{name:<{width}}  {1e3 * seconds:>10.2f}  {1e3 * back:>11.2f}  "
                f"{100 * (seconds + back) / total:>4.0f}%"
            )
        return "\n".join(lines)


def _clocked(call: Callable[..., Any], seconds: dict[str, float], name: str) -> Callable[..., Any]:
    clock = time.perf_counter

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        try:
            return call(*args, **kwargs)
        finally:
            seconds[name] += clock() - start

    return timed
