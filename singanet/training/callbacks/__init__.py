"""Callbacks: what watches a training, and what ends or changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.csv_logger import CSVLogger
from singanet.training.callbacks.early_stopping import EarlyStopping
from singanet.training.callbacks.ema import EMA
from singanet.training.callbacks.json_lines_logger import JSONLinesLogger
from singanet.training.callbacks.layer_statistics import LayerStatistics
from singanet.training.callbacks.layer_timing import LayerTiming
from singanet.training.callbacks.learning_rate import LearningRate
from singanet.training.callbacks.memory_check import MemoryCheck
from singanet.training.callbacks.memory_line import MemoryLine
from singanet.training.callbacks.ml_flow import MLflow
from singanet.training.callbacks.model_checkpoint import ModelCheckpoint
from singanet.training.callbacks.monitor import Monitor
from singanet.training.callbacks.optuna_pruning import OptunaPruning
from singanet.training.callbacks.reduce_on_plateau import ReduceOnPlateau
from singanet.training.callbacks.stop_on_nan import StopOnNaN
from singanet.training.callbacks.stop_on_signal import StopOnSignal
from singanet.training.callbacks.tensor_board import TensorBoard
from singanet.training.callbacks.wand_b import WandB

__all__ = [
    "EMA",
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

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__ = names_of(__name__, __all__)
