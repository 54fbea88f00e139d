"""An autoencoder of dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from singanet.layers import Activation, Dense, Flatten, Reshape
from singanet.loss import SquaredError
from singanet.models.blocks import HE
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int = 1,
    seed: int | None = None,
    hidden: Sequence[int] = (128,),
    code: int = 16,
) -> FeedForwardNet:
    """Samples of any shape through ``hidden`` layers to ``code`` numbers, and back again.

    Hinton and Salakhutdinov, 2006, trained whole. The layer "code" gives the code. There are no
    classes, so ``num_classes`` has no effect.
    """
    net = FeedForwardNet(SquaredError(), seed=seed)
    net.add(Flatten("flat", input_sample_shape=input_shape))
    for k, size in enumerate(hidden, start=1):
        net.add(Dense(f"encoder{k}", size, W_specs=HE))
        net.add(Activation(f"encoder_relu{k}"))
    net.add(Dense("code", code))
    for k, size in enumerate(reversed(hidden), start=1):
        net.add(Dense(f"decoder{k}", size, W_specs=HE))
        net.add(Activation(f"decoder_relu{k}"))
    net.add(Dense("decoded", prod(input_shape)))
    net.add(Reshape("reconstruction", input_shape))
    return net
