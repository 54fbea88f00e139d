"""Layer-wise feed-forward nets on NumPy and CuPy arrays, gradients freed layer by layer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from singanet import device, errors, initializer, layers, ops
from singanet.base.described import Codec, use_codec
from singanet.base.flags import kEval, kTrain
from singanet.base.seeding import set_seed
from singanet.base.version import VERSION
from singanet.layers.dummy import Input
from singanet.net import FeedForwardNet, load_model
from singanet.params.gradients import LayerGradients

if TYPE_CHECKING:
    from singanet import (
        checkpoint,
        data,
        decoding,
        executor,
        keras,
        loss,
        metric,
        models,
        onnx,
        optimizer,
        parallel,
        report,
        testing,
        training,
    )
    from singanet.executor import Executor
    from singanet.saving.objects import register
    from singanet.saving.predictor import Predictor, load_predictor

__all__ = [
    "Executor",
    "FeedForwardNet",
    "Input",
    "LayerGradients",
    "Predictor",
    "checkpoint",
    "data",
    "decoding",
    "device",
    "errors",
    "executor",
    "initializer",
    "kEval",
    "kTrain",
    "keras",
    "layers",
    "load_model",
    "load_predictor",
    "loss",
    "metric",
    "models",
    "onnx",
    "ops",
    "optimizer",
    "parallel",
    "register",
    "report",
    "set_seed",
    "testing",
    "training",
]

__version__ = VERSION


def _objects() -> Codec:
    codec: Any = import_module("singanet.saving.objects")
    return codec


use_codec(_objects)

_ROOMS = frozenset(
    {
        *("checkpoint", "data", "decoding", "executor", "gradients", "keras", "launch", "loss"),
        *("metric", "model_file", "models", "onnx", "optimizer", "parallel", "picture", "program"),
        *("proto", "report", "saving", "summary", "testing", "training", "tuning"),
    }
)
"""What is reached by `singanet.NAME` after a plain import."""


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for, so that ``import singanet`` stays light."""
    if name == "register":
        return import_module("singanet.saving.objects").register
    if name in ("Predictor", "load_predictor"):
        return getattr(import_module("singanet.saving.predictor"), name)
    if name == "Executor":
        return import_module("singanet.executor").Executor
    if name == "load_model":
        return import_module("singanet.model_file").load_model
    if name in _ROOMS:
        return import_module(f"singanet.{name}")
    from singanet.base.elsewhere import names_of

    return names_of(__name__, __all__)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
