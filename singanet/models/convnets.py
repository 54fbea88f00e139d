"""Convolutional nets, sequential and with branches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from singanet.errors import ArgumentError, brief, one_of
from singanet.layers import (
    LRN,
    Activation,
    AvgPooling2D,
    Concat,
    Conv2D,
    Conv2DTranspose,
    Dense,
    Dropout,
    EndPadding,
    Flatten,
    GlobalAvgPooling2D,
    Input,
    MaxPooling2D,
    Permute,
    Reshape,
)
from singanet.layers.symbol import Symbol
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.models.blocks import (
    HE,
    batch_norm,
    classifier,
    conv,
    conv_bn,
    is_small,
    pooled_classifier,
    relu,
)
from singanet.net import FeedForwardNet
from singanet.types import Shape


def alexnet(input_shape: Shape, num_classes: int, seed: int | None = None) -> FeedForwardNet:
    """Build three 5×5 convolutions with pooling, two of them with response normalisation.

    Weights use He initialisation. SINGA's small deviations need many epochs to start learning.
    """
    net = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
    net.add(Conv2D("conv1", 32, 5, W_specs=HE, input_shape=input_shape))
    net.add(MaxPooling2D("pool1", 3, 2))
    net.add(Activation("relu1"))
    net.add(LRN("norm1", size=3, alpha=5e-5, beta=0.75))
    net.add(Conv2D("conv2", 32, 5, W_specs=HE))
    net.add(Activation("relu2"))
    net.add(AvgPooling2D("pool2", 3, 2))
    net.add(LRN("norm2", size=3, alpha=5e-5, beta=0.75))
    net.add(Conv2D("conv3", 64, 5, W_specs=HE))
    net.add(Activation("relu3"))
    net.add(AvgPooling2D("pool3", 3, 2))
    net.add(Flatten("flat"))
    net.add(Dense("fc", num_classes))
    return net


def lenet(input_shape: Shape, num_classes: int, seed: int | None = None) -> FeedForwardNet:
    """Build two 5×5 convolutions, each with 2×2 pooling, and two dense layers.

    Convolutions preserve the size of the image, so any size works.
    """
    net = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
    he = {"init": "msra"}
    net.add(Conv2D("conv1", 32, 5, W_specs=he, input_shape=input_shape))
    net.add(Activation("relu1"))
    net.add(MaxPooling2D("pool1", 2, 2))
    net.add(Conv2D("conv2", 64, 5, W_specs=he))
    net.add(Activation("relu2"))
    net.add(MaxPooling2D("pool2", 2, 2))
    net.add(Flatten("flat"))
    net.add(Dropout("drop1", 0.25))
    net.add(Dense("fc1", 256, W_specs=he))
    net.add(Activation("relu3"))
    net.add(Dropout("drop2", 0.5))
    net.add(Dense("fc2", num_classes))
    return net


_CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_CHANNELS = (64, 128, 256, 512, 512)


def vgg(
    input_shape: Shape, num_classes: int, seed: int | None = None, depth: int = 16
) -> FeedForwardNet:
    """Build five stages of 3×3 convolutions, each followed by 2×2 pooling, and dense layers.

    The published head has three dense layers, the first two of 4096 units. Images below 64 pixels
    use the head of SINGA's CIFAR-10 example: 512 units with batch normalisation between two
    dropouts. Convolutions then have no bias, since normalisation cancels it. Pooling skips an axis
    of one pixel.
    """
    if depth not in _CONVOLUTIONS:
        raise ArgumentError(
            "vgg, argument depth",
            expected=one_of(map(str, _CONVOLUTIONS)),
            received=brief(depth),
            advice="choose a depth from this list",
        )
    image = Input("image", input_shape)
    small = is_small(image)
    x = image
    for stage, (channels, count) in enumerate(
        zip(_CHANNELS, _CONVOLUTIONS[depth], strict=True), start=1
    ):
        for k in range(1, count + 1):
            x = conv_bn(x, f"conv{stage}_{k}", channels, bias=not small)
        x = MaxPooling2D(f"pool{stage}", 2, 2)(x)
    x = Flatten("flat")(x)
    x = _small_head(x) if small else _published_head(x)
    return classifier(image, Dense("fc2" if small else "fc3", num_classes)(x), seed)


def _small_head(x: Symbol) -> Symbol:
    x = Dense("fc1", 512, use_bias=False, W_specs=HE)(Dropout("drop1", 0.5)(x))
    y: Symbol = Dropout("drop2", 0.5)(relu(batch_norm(x, "fc1_bn"), "fc1_relu"))
    return y


def _published_head(x: Symbol) -> Symbol:
    for k in (1, 2):
        x = relu(Dense(f"fc{k}", 4096, W_specs=HE)(x), f"fc{k}_relu")
        x = Dropout(f"drop{k}", 0.5)(x)
    return x


# Channels: 1×1; 3×3 reduce, 3×3; 5×5 reduce, 5×5; pooling projection.
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(input_shape: Shape, num_classes: int, seed: int | None = None) -> FeedForwardNet:
    """Build nine inception modules, with the names, response normalisation and pooling of Caffe.

    Images below 64 pixels start with 3×3 convolutions without strides and pooling.
    """
    image = Input("image", input_shape)
    if is_small(image):
        x = _conv(image, "conv1", 64, 3)
        x = _conv(_conv(x, "conv2_reduce", 64, 1), "conv2", 192, 3)
    else:
        x = _pool(_conv(image, "conv1", 64, 7, stride=2), "pool1")
        x = LRN("norm1", 5, alpha=1e-4 / 5)(x)
        x = _conv(_conv(x, "conv2_reduce", 64, 1), "conv2", 192, 3)
        x = _pool(LRN("norm2", 5, alpha=1e-4 / 5)(x), "pool2")
    for name, channels in _INCEPTIONS.items():
        if name in ("4a", "5a"):
            x = _pool(x, f"pool{int(name[0]) - 1}")
        x = _inception(x, f"inception_{name}", *channels)
    x = Dropout("drop", 0.4)(GlobalAvgPooling2D("pool5")(x))
    return classifier(image, Dense("fc", num_classes)(x), seed)


def _conv(x: Symbol, name: str, channels: int, kernel: int, stride: int = 1) -> Symbol:
    return relu(Conv2D(name, channels, kernel, stride, W_specs=HE)(x), f"{name}_relu")


def _pool(x: Symbol, name: str) -> Symbol:
    """Add 3×3 pooling with stride 2 and output size rounded up, unless an axis has one pixel."""
    if min(x.shape[1:]) < 2:
        return x
    y: Symbol = MaxPooling2D(name, 3, 2, "valid")(EndPadding(f"{name}_pad")(x))
    return y


def _inception(
    x: Symbol, name: str, one: int, before3: int, three: int, before5: int, five: int, pool: int
) -> Symbol:
    pooled = MaxPooling2D(f"{name}_pool", 3, 1)(x)
    parts = [
        _conv(x, f"{name}_1x1", one, 1),
        _conv(_conv(x, f"{name}_3x3_reduce", before3, 1), f"{name}_3x3", three, 3),
        _conv(_conv(x, f"{name}_5x5_reduce", before5, 1), f"{name}_5x5", five, 5),
        _conv(pooled, f"{name}_pool_proj", pool, 1),
    ]
    y: Symbol = Concat(f"{name}_output", 1)(*parts)
    return y


def densenet(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    blocks: Sequence[int] = (6, 12, 24, 16),
    growth: int = 32,
) -> FeedForwardNet:
    """Build dense blocks: each layer adds ``growth`` channels to its concatenated inputs.

    Between blocks a 1×1 convolution halves the channels and pooling halves the size. Images below
    64 pixels start with a 3×3 convolution instead of the 7×7 one and pooling.
    """
    image = Input("image", input_shape)
    if is_small(image):
        x = conv_bn(image, "conv", 2 * growth)
    else:
        x = conv_bn(image, "conv", 2 * growth, kernel=7, stride=2)
        x = MaxPooling2D("conv_pool", 3, 2)(x)
    for block, layers in enumerate(blocks, start=1):
        if block > 1:
            x = _ready_conv(x, f"transition{block - 1}", x.shape[0] // 2, 1)
            x = AvgPooling2D(f"transition{block - 1}_pool", 2, 2)(x)
        for k in range(1, layers + 1):
            name = f"block{block}_layer{k}"
            y = _ready_conv(x, f"{name}_reduce", 4 * growth, 1)
            y = _ready_conv(y, name, growth, 3)
            x = Concat(f"{name}_join", 1)(x, y)
    return pooled_classifier(image, relu(batch_norm(x, "last_bn"), "last_relu"), num_classes, seed)


def _ready_conv(x: Symbol, name: str, channels: int, kernel: int) -> Symbol:
    """Add normalisation, relu and a convolution, in this order."""
    return conv(relu(batch_norm(x, f"{name}_bn"), f"{name}_relu"), name, channels, kernel)


def unet(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    width: int | None = None,
    depth: int = 4,
) -> FeedForwardNet:
    """Build a U-Net: scores (H, W, num_classes) of each pixel of (C, H, W).

    The encoder has a pair of convolutions of ``width`` channels, then doubles the channels and
    halves the image up to ``depth`` times. The decoder inverts this and concatenates the encoder's
    output of the same size. ``width`` defaults to 64, or 16 for images below 64 pixels.
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
    """Upsample ``x`` to the channels and size of ``like``, whose sides may be odd."""
    odd = (like.shape[1] % 2, like.shape[2] % 2)
    y: Symbol = Conv2DTranspose(
        f"{name}_double", like.shape[0], 2, 2, "valid", W_specs=HE, output_padding=odd
    )(x)
    return y


def autoencoder(
    input_shape: Shape,
    num_classes: int = 1,
    seed: int | None = None,
    hidden: Sequence[int] = (128,),
    code: int = 16,
) -> FeedForwardNet:
    """Build an autoencoder: ``hidden`` layers to a code of ``code`` numbers, and back.

    It is trained end to end (Hinton and Salakhutdinov, 2006), on samples of any shape. The layer
    "code" outputs the code. ``num_classes`` has no effect.
    """
    net = FeedForwardNet(SquaredError(), seed=seed)
    net.add(Flatten("flat", input_shape=input_shape))
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
