"""Writing model files."""

from __future__ import annotations

import os
from typing import Any

from singanet.base.files import path_of
from singanet.checkpoint.entry import sources_of
from singanet.checkpoint.formats import write_state
from singanet.checkpoint.halves import stored_as
from singanet.engine.holding import rounding_of
from singanet.engine.net import Net
from singanet.params.files import param_sources
from singanet.params.held import words_among
from singanet.saving import model_settings as settings
from singanet.saving.frames import intake_to_config
from singanet.saving.model_layout import CONTAINER, MODEL, NET, check_path, encoded
from singanet.saving.nets import net_to_config
from singanet.saving.parameters import distinct
from singanet.training.compiled import expect_compiled


def save_model(net: Net, path: str | os.PathLike[str], training: bool = True) -> None:
    """`FeedForwardNet.save_model`."""
    path = path_of(path)
    check_path(path)
    compiled = expect_compiled(net, "net.save_model") if training and net.compiled else None
    about = description(net)
    about["training"] = None if compiled is None else settings.describe(net, compiled)
    state = sources_of({MODEL.text: encoded(MODEL, about)}, "net.save_model")
    params = distinct(net.params())
    own = param_sources(params, NET)
    state += stored_as(own, words_among((NET + p.name, p) for p in params), "net.save_model")
    if compiled is not None:
        compiled.turn(net)
        state += settings.sources(compiled)
    write_state(path, state, CONTAINER)


def description(net: Net) -> dict[str, Any]:
    """The description of ``net`` in a model file, without parameters and training."""
    rounding = rounding_of(net)
    return {
        **({} if rounding is None else {"rounding": rounding}),
        "net": net_to_config(net),
        "dtype": str(net.dtype),
        "seed": int(net.seed),
        "generator": net.rng.bit_generator.state,
        **intake_to_config(net.intake),
    }
