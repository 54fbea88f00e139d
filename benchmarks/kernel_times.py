"""The time that a net's kernels take, by kind, as its layers call them."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import singanet
from singanet.device import Device
from singanet.ops import NumpyOps

_KINDS = {
    "convolution": ("conv", "channel_sum"),
    "normalisation": ("norm", "moved", "lrn"),
    "pooling": ("pool",),
    "products": ("matmul", "affine", "attention"),
    "recurrent": ("lstm", "gru", "elman", "time_major", "batch_major", "side_by_side"),
}
KINDS = (*_KINDS, "element-wise", "loss", "optimizer")


class Book:
    """Seconds by kind, and the number of calls."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls = 0

    def timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is put down under ``kind``."""
        seconds, clock = self.seconds, time.perf_counter

        def run(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = function(*args, **kwargs)
            seconds[kind] += clock() - start
            self.calls += 1
            return result

        return run


def watch(net: singanet.FeedForwardNet, optimizer: Any) -> Book:
    """Put down from now on what the kernels, the loss and the optimizer of ``net`` take.

    A kernel that another one calls belongs to that one.
    """
    book = Book()
    kernels: NumpyOps = copy.copy(net.device.ops)
    for name in dir(kernels):
        inner = getattr(net.device.ops, name)
        if not name.startswith("_") and callable(inner) and name != "xp":
            setattr(kernels, name, book.timed(_kind(name), inner))
    net.to_device(Device("cpu", kernels))
    for name in ("forward", "backward"):
        setattr(net.loss, name, book.timed("loss", getattr(net.loss, name)))
    optimizer.update = book.timed("optimizer", optimizer.update)
    return book


def _kind(name: str) -> str:
    for kind, words in _KINDS.items():
        if any(word in name for word in words):
            return kind
    return "element-wise"
