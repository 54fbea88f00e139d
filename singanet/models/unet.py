"""U-Net: Ronneberger et al., 2015, with batch normalisation and padding that keeps the size."""

from __future__ import annotations

from singanet.layers import Concat, Conv2D, Conv2DTranspose, Input, MaxPooling2D, Permute
from singanet.layers.symbol import Symbol
from singanet.models.blocks import HE, classifier, conv_bn, is_small
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    width: int | None = None,
    depth: int = 4,
) -> FeedForwardNet:
    """Scores (H, W, num_classes) of each pixel of (C, H, W).

    Pairs of convolutions with ``width`` channels, 64 or 16 in images below 64 pixels, and twice as
    many each of up to ``depth`` times that the image can be halved; and back, beside what was there
    before the halving.
    """
    image = Input("image", input_shape)
    if width is None:
        width = 16 if is_small(image) else 64
    x = _pair(image, "down0", width)
    before: list[Symbol] = []
    while len(before) < depth and min(x.shape[1:]) > 1:
        before.append(x)
        name = f"down{len(before)}"
        x = _pair(MaxPooling2D(f"{name}_pool", 2, 2, "valid")(x), name, 2 * x.shape[0])
    for level in range(len(before), 0, -1):
        beside, name = before[level - 1], f"up{level}"
        x = Concat(f"{name}_join", 1)(beside, _doubled(x, name, beside))
        x = _pair(x, name, beside.shape[0])
    scores = Conv2D("scores", num_classes, 1)(x)
    return classifier(image, Permute("last_axis", (2, 3, 1))(scores), seed)


def _pair(x: Symbol, name: str, channels: int) -> Symbol:
    return conv_bn(conv_bn(x, f"{name}_conv1", channels), f"{name}_conv2", channels)


def _doubled(x: Symbol, name: str, like: Symbol) -> Symbol:
    """``x`` with the channels and the size of ``like``, of whose odd sides pooling left a row."""
    odd = (like.shape[1] % 2, like.shape[2] % 2)
    y: Symbol = Conv2DTranspose(
        f"{name}_double", like.shape[0], 2, 2, "valid", W_specs=HE, output_padding=odd
    )(x)
    return y
