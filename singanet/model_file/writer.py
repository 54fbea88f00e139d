"""Writing model files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from singanet.checkpoint.formats import write_state
from singanet.model_file import settings
from singanet.model_file.layout import (
    CONTAINER,
    FORMAT,
    NET,
    TEXT,
    VERSION,
    check_path,
    encoded,
)
from singanet.net import FeedForwardNet
from singanet.net_config import net_to_config
from singanet.saveable import distinct


def save_model(net: FeedForwardNet, path: str | os.PathLike[str], training: bool = True) -> None:
    """`FeedForwardNet.save_model`."""
    path = Path(path)
    check_path(path)
    compiled = net.compiled if training else None
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "net": net_to_config(net),
        "dtype": str(net.dtype),
        "seed": int(net.seed),
        "generator": net.rng.bit_generator.state,
        "training": None if compiled is None else settings.describe(compiled),
    }
    state = {TEXT: encoded(about)}
    state |= {NET + param.name: param.value for param in distinct(net.params())}
    if compiled is not None:
        state |= settings.arrays(compiled)
    write_state(path, state, CONTAINER)
