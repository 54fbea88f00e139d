"""Wide residual nets: Zagoruyko and Komodakis, 2016."""

from __future__ import annotations

from singanet.base.arguments import checked_count
from singanet.models.blocks import expect_depth
from singanet.models.preactivation import preactivation_net
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    depth: int = 16,
    widen: int = 4,
    dropout: float = 0.0,
) -> FeedForwardNet:
    """Pre-activation blocks with ``widen`` times the channels; ``depth`` is 6n + 4.

    Shortcuts that change the shape are 1×1 convolutions; ``dropout`` lies between the
    convolutions of a block.
    """
    blocks = expect_depth("wide resnet", depth, 6, 4)
    widen = checked_count("wide resnet", "argument widen", widen, 1)
    return preactivation_net(input_shape, num_classes, seed, blocks, widen, True, dropout)
