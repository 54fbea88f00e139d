"""Writing model files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from singanet.checkpoint.formats import write_state
from singanet.engine.net import Net
from singanet.saving import model_settings as settings
from singanet.saving.model_layout import CONTAINER, MODEL, NET, check_path, encoded
from singanet.saving.nets import net_to_config
from singanet.saving.parameters import distinct
from singanet.training.compiled import expect_compiled


def save_model(net: Net, path: str | os.PathLike[str], training: bool = True) -> None:
    """`FeedForwardNet.save_model`."""
    path = Path(path)
    check_path(path)
    compiled = expect_compiled(net, "net.save_model") if training and net.compiled else None
    about: dict[str, Any] = {
        "net": net_to_config(net),
        "dtype": str(net.dtype),
        "seed": int(net.seed),
        "generator": net.rng.bit_generator.state,
        "training": None if compiled is None else settings.describe(compiled),
    }
    state = {MODEL.text: encoded(MODEL, about)}
    state |= {NET + param.name: param.value for param in distinct(net.params())}
    if compiled is not None:
        state |= settings.arrays(compiled)
    write_state(path, state, CONTAINER)
