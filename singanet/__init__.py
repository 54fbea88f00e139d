"""Layer-wise feed-forward nets on NumPy and CuPy arrays, gradients freed layer by layer."""

from __future__ import annotations

from singanet import (
    data,
    device,
    errors,
    initializer,
    layers,
    loss,
    metric,
    models,
    ops,
    optimizer,
)
from singanet.config import register
from singanet.execution import LayerGradients
from singanet.flags import kEval, kTrain
from singanet.layers.input import Input
from singanet.net import FeedForwardNet
from singanet.seeding import set_seed

__all__ = [
    "FeedForwardNet",
    "Input",
    "LayerGradients",
    "data",
    "device",
    "errors",
    "initializer",
    "kEval",
    "kTrain",
    "layers",
    "loss",
    "metric",
    "models",
    "ops",
    "optimizer",
    "register",
    "set_seed",
]

__version__ = "0.1.0"
