"""Opening an ``.onnx`` file as a net."""

from __future__ import annotations

import os

from singanet.net import FeedForwardNet
from singanet.onnx.read import read


def load(path: str | os.PathLike[str], seed: int | None = None) -> FeedForwardNet:
    """The net of an ONNX graph, with its weights. Errors: `FileFormatError`."""
    raise NotImplementedError(read(path))
