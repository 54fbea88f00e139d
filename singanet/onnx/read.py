"""The messages of an ``.onnx`` file."""

from __future__ import annotations

import os
from pathlib import Path

from singanet.schema.onnx_pb2 import ModelProto


def read(path: str | os.PathLike[str]) -> ModelProto:
    """The model in a file."""
    return ModelProto.FromString(Path(path).read_bytes())
