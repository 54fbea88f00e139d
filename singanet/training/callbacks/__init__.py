"""Callbacks: they watch a training, end it or change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:  # else when they are asked for
    from singanet.training.callbacks.callback import Callback
    from singanet.training.callbacks.keeping import EMA, SWA, ModelCheckpoint
    from singanet.training.callbacks.logging import (
        CSVLogger,
        JSONLinesLogger,
        LayerStatistics,
        LayerTiming,
        MemoryCheck,
        MemoryLine,
    )
    from singanet.training.callbacks.stopping import (
        EarlyStopping,
        LearningRate,
        Monitor,
        ReduceOnPlateau,
        StopOnNaN,
        StopOnSignal,
    )
    from singanet.training.callbacks.trackers import MLflow, OptunaPruning, TensorBoard, WandB

__all__ = [
    "EMA",
    "SWA",
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "JSONLinesLogger",
    "LayerStatistics",
    "LayerTiming",
    "LearningRate",
    "MLflow",
    "MemoryCheck",
    "MemoryLine",
    "ModelCheckpoint",
    "Monitor",
    "OptunaPruning",
    "ReduceOnPlateau",
    "StopOnNaN",
    "StopOnSignal",
    "TensorBoard",
    "WandB",
]

if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
