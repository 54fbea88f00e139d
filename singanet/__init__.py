"""Layer-wise feed-forward nets on NumPy and CuPy arrays, gradients freed layer by layer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from singanet import device, errors, initializer, layers, ops
from singanet.base.described import Codec, use_codec
from singanet.base.flags import kEval, kTrain
from singanet.base.seeding import set_seed
from singanet.layers.dummy import Input
from singanet.net import FeedForwardNet, load_model
from singanet.params.gradients import LayerGradients

if TYPE_CHECKING:
    from singanet import data, loss, metric, models, optimizer
    from singanet.saving.objects import register
    from singanet.saving.predictor import Predictor, load_predictor

__all__ = [
    "FeedForwardNet",
    "Input",
    "LayerGradients",
    "Predictor",
    "data",
    "device",
    "errors",
    "initializer",
    "kEval",
    "kTrain",
    "layers",
    "load_model",
    "load_predictor",
    "loss",
    "metric",
    "models",
    "ops",
    "optimizer",
    "register",
    "set_seed",
]

__version__ = "0.1.0"


def _objects() -> Codec:
    codec: Any = import_module("singanet.saving.objects")
    return codec


use_codec(_objects)


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for, so that ``import singanet`` stays light."""
    if name == "register":
        return import_module("singanet.saving.objects").register
    if name in ("Predictor", "load_predictor"):
        return getattr(import_module("singanet.saving.predictor"), name)
    if name == "load_model":
        return import_module("singanet.model_file").load_model
    if name in ("data", "loss", "metric", "models", "optimizer"):
        return import_module(f"singanet.{name}")
    raise AttributeError(f"module 'singanet' has no attribute {name!r}")
