"""The training forward of a batch, and the gradient of its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from singanet.engine.net import Net
from singanet.errors import SingaNetError, one_of
from singanet.training.arrays import output_names
from singanet.types import Array


def loss_gradient(
    net: Net,
    x: Any,
    y: Any,
    weight: Array | None,
    measure: Callable[[Any, Any], object] | None = None,
) -> tuple[Any, float]:
    """The gradient of the net's output(s) and the loss; ``measure`` sees output and targets.

    Loss and metrics work in float32 where the net does in half of that.
    """
    out = widened(net.forward(True, x))
    loss: Any = net.loss
    try:
        # A user's own loss need not know of weights.
        losses = loss.forward(True, out, y, *(() if weight is None else (weight,)))
        if measure is not None:
            measure(out, y)
    except SingaNetError as error:
        # Losses and metrics know no layers.
        raise error.within(f"output of layer {one_of(output_names(net))}") from None
    return loss.backward(), float(losses.mean())


def widened(out: Any) -> Any:
    """float16 arrays as float32; all others are left as they are."""
    if isinstance(out, Mapping):
        return {name: widened(part) for name, part in out.items()}
    return out.astype("float32") if getattr(out, "dtype", None) == "float16" else out
