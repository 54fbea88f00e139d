"""Files of whole models, ours and others': which they are, and the nets in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from singanet import keras, onnx
from singanet.model_file import is_model_file, load_model, save_model
from singanet.net import FeedForwardNet

_OTHERS: Mapping[str, Callable[[Path], FeedForwardNet]] = {
    ".keras": keras.load_model,
    ".onnx": onnx.load,
}
"""Those that go by their suffix, as what they begin with is what many files begin with."""


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file of a whole model at ``path``."""
    path = Path(path)
    return is_model_file(path) or (path.suffix.lower() in _OTHERS and path.is_file())


def whole_net(path: str | os.PathLike[str]) -> FeedForwardNet:
    """The net in a file of a whole model, without what it was trained with."""
    path = Path(path)
    load = _OTHERS.get(path.suffix.lower())
    return load(path) if load is not None else load_model(path, training=False)


def convert_whole(source: Path, target: Path, format: str | None) -> str | None:
    """Write the net in another library's file as a model file of ours, or its weights.

    What was done, as a text; None where ``source`` is no such file.
    """
    if source.suffix.lower() not in _OTHERS:
        return None
    net = whole_net(source)
    if target.suffix.lower() == ".singanet":
        save_model(net, target)
        return f"{target}: model; {len(net.layers)} layers"
    net.save(target, format=format)
    return f"{target}: {len(net.param_names())} arrays of {len(net.layers)} layers"
