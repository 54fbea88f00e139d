"""The net of an estimator, from what its ``net`` says."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from singanet import models
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Dense
from singanet.layers.layer import Layer
from singanet.net import FeedForwardNet
from singanet.types import Shape


def draw(given: Any, features: Shape, outputs: int, seed: int, where: str) -> FeedForwardNet:
    """A new net for samples of the shape ``features`` and rows of ``outputs`` numbers.

    ``given`` is a ready model's name, a list of layers, to which a `Dense` of the outputs is added,
    or a function ``(features, outputs) -> net``, which gets a number for samples that are rows.
    Errors: anything else; a net of other inputs or outputs.
    """
    if isinstance(given, str):
        net: Any = models.build(given, features, outputs, seed=seed)
    elif isinstance(given, Sequence) and all(isinstance(each, Layer) for each in given):
        # Layers become part of a net, and the estimator's own are to serve for the next fit.
        net = FeedForwardNet([*deepcopy(list(given)), Dense("output", outputs)], seed=seed)
    elif callable(given) and not isinstance(given, FeedForwardNet):
        net = given(features[0] if len(features) == 1 else features, outputs)
    else:
        net = given
    if net is given or not isinstance(net, FeedForwardNet):
        raise ArgumentError(
            f"{where}, net",
            expected="a function (features, outputs) -> FeedForwardNet, the name of a ready net "
            "or a list of layers",
            received=f"a {type(given).__name__}"
            if net is given
            else f"{given!r}, which makes a {type(net).__name__}",
            advice="every fit begins with a new net: write a function that builds it",
        )
    # Parameters are filled when they are first used, so this seed is in time for fresh ones.
    net.seed, net.rng = seed, np.random.default_rng(seed)
    found = net.build(features)
    if found != (outputs,):
        raise ShapeError(
            f"{where}, net",
            expected=f"one output of shape {(outputs,)}",
            received=f"{found}",
            advice="end the net with Dense(name, outputs), of what the function is given",
        )
    return net
