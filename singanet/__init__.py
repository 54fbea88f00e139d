"""Layer-wise feed-forward nets on NumPy and CuPy arrays, gradients freed layer by layer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from singanet.base.described import Codec, use_codec
from singanet.base.elsewhere import names_when_asked
from singanet.base.version import VERSION

if TYPE_CHECKING:  # else when they are asked for: a launcher needs none, and each rank few
    from singanet import (
        checkpoint,
        data,
        decoding,
        device,
        errors,
        executor,
        functional,
        initializer,
        keras,
        layers,
        loss,
        metric,
        models,
        onnx,
        ops,
        optimizer,
        parallel,
        pretrained,
        report,
        testing,
        training,
    )

    # Reached by name after a plain import, without pages of their own.
    from singanet import gradients as gradients
    from singanet import picture as picture
    from singanet import program as program
    from singanet import saving as saving
    from singanet import summary as summary
    from singanet.base.arguments import kEval, kTrain
    from singanet.base.seeding import set_seed
    from singanet.executor import Executor
    from singanet.layers.shapes import Input
    from singanet.net import FeedForwardNet, load_model
    from singanet.params.grads import LayerGradients
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
    "functional",
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
    "pretrained",
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

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
