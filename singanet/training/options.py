"""Options of a fit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from singanet.base.arguments import checked_count
from singanet.base.files import path_of
from singanet.engine.net import Net
from singanet.errors import ArgumentError
from singanet.layers.convolution import Convolution
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn.library import GAIN, INSTALL, find_library, has_wheel
from singanet.ops.selection import VARIABLE
from singanet.summary import multiply_adds
from singanet.training.batches import checked_class_weight
from singanet.types import Array

LEAST: Mapping[str, int] = MappingProxyType(
    {"batch_size": 1, "epochs": 1, "initial_epoch": 0, "accumulate": 1, "steps_per_epoch": 1}
)
"""The least that each count may be."""


@dataclass(frozen=True)
class FitOptions:
    """The arguments of `FeedForwardNet.fit` beside the data, each in its range.

    Each step goes through its batch in parts of ``micro_batch`` samples, None for all at once. A
    batch of a source that has more samples than ``largest`` is refused, None for any.
    Errors: an argument out of range; validation data twice; callbacks that are no list.
    """

    batch_size: int = 32
    epochs: int = 1
    validation_data: Any = None
    validation_split: float = 0.0
    callbacks: Iterable[Any] = ()
    shuffle: bool = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Array | None = None
    initial_epoch: int = 0
    resume: Mapping[str, Array] | str | os.PathLike[str] | None = None
    clip: float | None = None
    clip_by: str = "layer"
    accumulate: int = 1
    steps_per_epoch: int | None = None
    drop_last: bool = False
    verbose: bool | int = True
    micro_batch: int | None = None
    largest: int | None = None

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None or name != "steps_per_epoch":
                self._set(name, checked_count("net.fit", name, value, least))
        if self.validation_data is not None and self.validation_split:
            raise ArgumentError(
                "net.fit",
                expected="validation_data or validation_split",
                received="both",
                advice="leave one of them out",
            )
        if not isinstance(self.callbacks, Iterable):
            raise ArgumentError(
                "net.fit, callbacks",
                expected="a list of callbacks",
                received=f"a {type(self.callbacks).__name__}",
                advice="write callbacks=[...]",
            )
        self._set("callbacks", tuple(self.callbacks))
        if self.resume is not None and not isinstance(self.resume, Mapping):
            self._set("resume", path_of(self.resume, "resume"))
        self._set("class_weight", checked_class_weight(self.class_weight))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def _validates(self) -> bool:
        """Whether epochs end with a validation."""
        return self.validation_data is not None or bool(self.validation_split)

    @property
    def stages(self) -> tuple[float | None, str, int]:
        """What is put around the optimizer: a clip, how, and an accumulation."""
        return self.clip, self.clip_by, self.accumulate

    def facts(self) -> dict[str, Any]:
        """The options that have to be the same on all ranks."""
        return {
            "batch_size": self.batch_size,
            "epochs": (self.initial_epoch, self.epochs, self.steps_per_epoch),
            "order": (self.shuffle, self.drop_last, self.validation_split, self.class_weight),
            "steps": (*self.stages, self.micro_batch),
            "callbacks": [type(each).__name__ for each in self.callbacks],
            "validation_data": self.validation_data is not None,
            "resume": self.resume is not None,
        }


_MUCH = 1_000_000
"""Multiply-adds of convolutions for a sample above which it is worth a line."""

_told = False


def tell_once(net: Net) -> None:
    """Say on the standard error what would make ``net`` train faster, if it has not been said."""
    global _told
    text = "" if _told else advice(net)
    if text:
        _told = True
        sys.stderr.write(f"{text}\n")


def advice(net: Net) -> str:
    """What to install for nets such as ``net``; empty where nothing is to be gained.

    That is where other kernels serve than NumPy's, or these were asked for by name, no wheel fits
    the machine, or ``net`` is not on the CPU, or has few convolutions.
    """
    if net.device.ops is not numpy_ops or os.environ.get(VARIABLE):
        return ""
    if not has_wheel() or find_library() is not None or _convolutions(net) < _MUCH:
        return ""
    return f"NumPy's kernels train this net. With oneDNN's, {GAIN}; {INSTALL}"


def _convolutions(net: Net) -> int:
    """The multiply-adds of convolutions that are known, for a sample."""
    found = 0
    for node in net.nodes():
        layer = node.layer
        if isinstance(layer, Convolution) and isinstance(layer.in_shapes, tuple):
            found += multiply_adds(layer, [layer.in_shapes], node.output_shapes()) or 0
    return found
