"""The time of a recorded step by kind of layer, from the report of its program."""

from __future__ import annotations

from collections import Counter
from typing import Any

import singanet

_KINDS = {
    "convolution": ("Conv", "Depthwise"),
    "normalisation": ("Norm", "LRN"),
    "pooling": ("Pool",),
    "products": ("Dense", "TimeDistributed", "Attention"),
    "recurrent": ("LSTM", "GRU", "RNN"),
}
KINDS = (*_KINDS, "element-wise", "loss", "optimizer")


def by_kind(net: singanet.FeedForwardNet, calls: list[dict[str, Any]]) -> Counter[str]:
    """Seconds of each kind, for the ``calls`` of `ProgramReport.as_dict`."""
    seconds: Counter[str] = Counter()
    for call in calls:
        seconds[_kind(net, call)] += call["seconds"]
    return seconds


def _kind(net: singanet.FeedForwardNet, call: dict[str, Any]) -> str:
    if call["phase"] in ("loss", "update"):
        return "loss" if call["phase"] == "loss" else "optimizer"
    layer = type(net[call["layer"]]).__name__ if call["layer"] in net else ""
    for kind, words in _KINDS.items():
        if any(word in layer for word in words):
            return kind
    return "element-wise"
