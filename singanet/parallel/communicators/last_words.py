"""The report of an error that ends a rank."""

from __future__ import annotations

import traceback

from singanet.layers import Layer


def layer_of(error: BaseException) -> str:
    """The name of the innermost layer in whose code ``error`` was raised; "" for none."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    layers = [each for frame in frames if isinstance(each := frame.f_locals.get("self"), Layer)]
    return layers[-1].name if layers else ""
