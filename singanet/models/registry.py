"""The table of ready nets by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import signature
from typing import Any

from singanet.base.arguments import checked_count, is_int
from singanet.base.described import shown
from singanet.base.tracebacks import entry_point
from singanet.errors import ArgumentError, UnknownNameError, brief, did_you_mean, one_of
from singanet.net import FeedForwardNet
from singanet.types import Shape


@dataclass(frozen=True)
class Recipe:
    """The default training settings of a net.

    Args:
        epochs: Int, the passes over the data.
        batch_size: Int, the samples of a batch.
        optimizer: A name that `singanet train --optimizer` takes.
        lr: The maximum learning rate of the run.
        weight_decay: λ of the optimizer, a number.
        augment: Whether to shift training images by a few pixels.
    """

    epochs: int = 20
    batch_size: int = 32
    optimizer: str = "sgd"
    lr: float = 0.05
    weight_decay: float = 5e-4
    augment: bool = False


@dataclass(frozen=True)
class ModelEntry:
    """A row of the table of models.

    Args:
        name: Name of the model, a string.
        description: One line about it.
        builder: The function that builds it, as "file.function".
        options: Mapping of arguments for the builder.
        input_shape: Default sample shape, a tuple of ints.
        num_classes: Default number of classes, an int.
        task: The kind of data, such as "classification" or "text".
        recipe: Default `Recipe`.
        parameters: Number of trainable numbers at these defaults: weights, biases, and the scales
            and offsets of normalisation, without running means and variances.
    """

    name: str
    description: str
    builder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    input_shape: Shape = (3, 32, 32)
    num_classes: int = 10
    task: str = "classification"
    recipe: Recipe = field(default_factory=Recipe)
    parameters: int = 0

    def __repr__(self) -> str:
        names = "input_shape", "num_classes", "parameters", "task"
        return shown("ModelEntry", {n: getattr(self, n) for n in names}, repr(self.name))


_DEEP = Recipe(epochs=30, batch_size=64, lr=0.1, augment=True)
# Without batch normalisation, no learning rate of SGD works for every seed.
_PLAIN_DEEP = Recipe(30, 64, "adam", lr=0.0005, weight_decay=0.0, augment=True)
_INVERTED = Recipe(10, 64, "adam", lr=0.002, weight_decay=0.0, augment=True)
_VIT = Recipe(15, 64, "adam", lr=0.0005, weight_decay=0.0, augment=True)
_MNIST, _IMAGENET = (1, 28, 28), (3, 224, 224)
_STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def _small_image_nets() -> list[ModelEntry]:
    return [
        ModelEntry(
            "mlp", "two hidden layers of 256 and 128 units", "tabular.mlp", input_shape=_MNIST
        ),
        ModelEntry(
            "lenet",
            "two convolutions with pooling, two dense layers",
            "convnets.lenet",
            input_shape=_MNIST,
            recipe=Recipe(epochs=30, augment=True),
        ),
        ModelEntry(
            "alexnet",
            "cuda-convnet's net for CIFAR-10: three convolutions, response normalisation",
            "convnets.alexnet",
            recipe=Recipe(epochs=30, batch_size=64, augment=True),
        ),
    ]


def _vgg() -> list[ModelEntry]:
    return [
        ModelEntry(
            f"vgg{depth}",
            f"VGG of {depth} layers with batch normalisation; small images have a small head",
            "convnets.vgg",
            {"depth": depth},
            recipe=_DEEP,
        )
        for depth in (11, 13, 16, 19)
    ]


def _residual() -> list[ModelEntry]:
    plain = [
        ModelEntry(
            f"resnet{depth}",
            f"residual net of {depth} layers for small images",
            "residual.resnet_cifar",
            {"depth": depth},
            recipe=_DEEP,
        )
        for depth in (20, 32, 44, 56, 110)
    ]
    large = [
        ModelEntry(
            f"resnet{depth}",
            f"residual net of {depth} layers for photographs",
            "residual.resnet",
            {"stages": stages, "bottleneck": depth >= 50},
            input_shape=_IMAGENET,
            num_classes=1000,
            recipe=_DEEP,
        )
        for depth, stages in _STAGES.items()
    ]
    before = [
        ModelEntry(
            f"preresnet{depth}",
            f"pre-activation residual net of {depth} layers for small images",
            "residual.preresnet",
            {"depth": depth},
            recipe=_DEEP,
        )
        for depth in (20, 56, 110)
    ]
    wide = [
        ModelEntry(
            f"wrn-{depth}-{widen}",
            f"wide residual net of {depth} layers, {widen} times the channels",
            "residual.wide_resnet",
            {"depth": depth, "widen": widen},
            recipe=_DEEP,
        )
        for depth, widen in ((16, 4), (28, 10))
    ]
    return [*plain, *large, *before, *wide]


def _photograph_nets() -> list[ModelEntry]:
    v3 = "MobileNet 3, {}: gated inverted residuals, for photographs"
    return [
        ModelEntry(
            name,
            description,
            builder,
            options,
            input_shape=_IMAGENET,
            num_classes=1000,
            recipe=recipe,
        )
        for name, description, builder, options, recipe in (
            (
                "googlenet",
                "GoogLeNet: nine inception modules",
                "convnets.googlenet",
                {},
                _PLAIN_DEEP,
            ),
            (
                "mobilenet",
                "MobileNet 1: depthwise and 1x1 convolutions",
                "mobile.mobilenet",
                {},
                _DEEP,
            ),
            (
                "mobilenet_v2",
                "MobileNet 2: inverted residuals, for photographs",
                "mobile.mobilenet_v2",
                {},
                _INVERTED,
            ),
            (
                "mobilenet_v3_small",
                v3.format("small"),
                "mobile.mobilenet_v3",
                {"large": False},
                _INVERTED,
            ),
            (
                "mobilenet_v3_large",
                v3.format("large"),
                "mobile.mobilenet_v3",
                {"large": True},
                _INVERTED,
            ),
            (
                "efficientnet_b0",
                "EfficientNet B0: gated inverted residuals, for photographs",
                "mobile.efficientnet",
                {},
                _INVERTED,
            ),
            (
                "densenet121",
                "121 densely joined layers, for photographs",
                "convnets.densenet",
                {},
                _DEEP,
            ),
            (
                "vit_tiny",
                "vision transformer of 12 blocks, 192 wide, for photographs",
                "sequences.vit",
                {},
                _VIT,
            ),
        )
    ]


def _pixel_nets() -> list[ModelEntry]:
    return [
        ModelEntry(
            "unet",
            "U-Net: the class of each pixel of an image",
            "convnets.unet",
            input_shape=(3, 256, 256),
            num_classes=2,
            task="segmentation",
            recipe=Recipe(12, 16, "adam", lr=0.003, weight_decay=0.0),
        )
    ]


def _sequence_nets() -> list[ModelEntry]:
    return [
        ModelEntry(
            "lstm",
            "an LSTM that reads a sequence, or an image row by row, and names its class",
            "sequences.lstm",
            input_shape=(28, 28),
            recipe=Recipe(epochs=40, optimizer="adam", lr=0.005, weight_decay=0.0),
        ),
        ModelEntry(
            "char_rnn",
            "LSTM language model of characters",
            "sequences.char_rnn",
            input_shape=(64,),
            num_classes=96,
            task="text",
            recipe=Recipe(epochs=6, batch_size=32, optimizer="adam", lr=0.004, weight_decay=0.0),
        ),
        ModelEntry(
            "transformer",
            "causal transformer language model of characters",
            "sequences.transformer",
            input_shape=(64,),
            num_classes=96,
            task="text",
            recipe=Recipe(epochs=10, batch_size=32, optimizer="adam", lr=0.003, weight_decay=0.0),
        ),
        ModelEntry(
            "transformer_lm",
            "GPT-like language model of characters: rotary positions, gelu",
            "sequences.transformer",
            {"positions": "rotary", "mode": "gelu", "tied": True, "depth": 2, "dropout": 0.0},
            input_shape=(64,),
            num_classes=96,
            task="text",
            recipe=Recipe(epochs=4, batch_size=8, optimizer="adam", lr=0.0025, weight_decay=0.0),
        ),
    ]


def _table_nets() -> list[ModelEntry]:
    return [
        ModelEntry(
            name,
            description,
            f"tabular.{name}",
            {"vocabulary_size": 102},
            input_shape=(8, 5),
            num_classes=2,
            task="tabular",
            recipe=Recipe(epochs=4, batch_size=256, optimizer="adam", lr=0.002, weight_decay=0.0),
        )
        for name, description in (
            ("wide_deep", "wide and deep: a linear model and dense layers over a table"),
            ("deepfm", "DeepFM: a factorisation machine and dense layers over a table"),
            ("dcn", "deep and cross network: products of features and dense layers over a table"),
        )
    ]


def _unsupervised() -> list[ModelEntry]:
    return [
        ModelEntry(
            "autoencoder",
            "dense layers to a code of 16 numbers and back",
            "convnets.autoencoder",
            input_shape=_MNIST,
            task="reconstruction",
            recipe=Recipe(epochs=50, optimizer="adam", lr=0.003, weight_decay=0.0),
        ),
    ]


# At the default shapes. The tests compare each with the net and with its publication, if any.
_PARAMETERS = {
    "mlp": 235_146,
    "lenet": 857_738,
    "alexnet": 89_578,
    "vgg11": 9_491_530,
    "vgg13": 9_676_234,
    "vgg16": 14_987_210,
    "vgg19": 20_298_186,
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet44": 658_586,
    "resnet56": 853_018,
    "resnet110": 1_727_962,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "preresnet20": 269_722,
    "preresnet56": 853_018,
    "preresnet110": 1_727_962,
    "wrn-16-4": 2_748_890,
    "wrn-28-10": 36_479_194,
    "googlenet": 6_998_552,
    "mobilenet": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_small": 2_542_856,
    "mobilenet_v3_large": 5_483_032,
    "efficientnet_b0": 5_288_548,
    "densenet121": 7_978_856,
    "vit_tiny": 5_717_416,
    "unet": 31_037_698,
    "lstm": 164_362,
    "char_rnn": 360_544,
    "transformer": 627_936,
    "transformer_lm": 409_184,
    "wide_deep": 18_376,
    "deepfm": 18_382,
    "dcn": 27_960,
    "autoencoder": 205_856,
}

ENTRIES = tuple(
    replace(entry, parameters=_PARAMETERS[entry.name])
    for entry in (
        *_small_image_nets(),
        *_vgg(),
        *_residual(),
        *_photograph_nets(),
        *_pixel_nets(),
        *_sequence_nets(),
        *_table_nets(),
        *_unsupervised(),
    )
)


_BY_NAME = {entry.name: entry for entry in ENTRIES}
_SET_HERE = ("input_shape", "num_classes", "seed")


def entries() -> list[ModelEntry]:
    """Return all ready nets, in the order of the table."""
    return list(ENTRIES)


def find(name: str) -> ModelEntry:
    """Return the entry ``name``. Errors: `UnknownNameError` if there is none.

    Args:
        name: Name of a model, a string.
    """
    if name not in _BY_NAME:
        advice = did_you_mean(name, _BY_NAME, "")
        raise UnknownNameError(
            f"model {name!r}",
            # All of the names would hide the one that was meant.
            expected="a name that singanet models lists" if advice else one_of(_BY_NAME, 60),
            received=brief(name),
            advice=advice or "choose a listed name",
        )
    return _BY_NAME[name]


@entry_point
def build(
    name: str,
    input_shape: Shape | None = None,
    num_classes: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> FeedForwardNet:
    """Build the net ``name`` with a loss and a metric.

    Errors: `UnknownNameError` for an unknown name or option; `ArgumentError` if a shape or number
    of classes is not positive; `ShapeError` if a layer refuses the shape.

    Args:
        name: Name of a model, as `singanet models` prints it.
        input_shape: Sample shape without the batch axis; None for the entry's.
        num_classes: Positive int; None for the entry's.
        seed: Int, the seed of the first values; None for the next of `set_seed`.
        **options: Arguments of the model's builder.
    """
    entry = find(name)
    shape = _checked_shape(name, entry.input_shape if input_shape is None else input_shape)
    given = entry.num_classes if num_classes is None else num_classes
    classes = checked_count(f"model {name!r}", "argument num_classes", given, 1)
    file, _, function = entry.builder.partition(".")
    make = getattr(import_module(f"singanet.models.{file}"), function)
    known = [option for option in signature(make).parameters if option not in _SET_HERE]
    for option in options:
        if option not in known:
            raise UnknownNameError(
                f"model {name!r}",
                expected=f"options among {one_of(known)}" if known else "no options",
                received=brief(option),
                advice=did_you_mean(option, known, "omit it"),
            )
    net: FeedForwardNet = make(shape, classes, seed=seed, **{**entry.options, **options})
    return net


def _checked_shape(name: str, given: Any) -> Shape:
    shape = tuple(given) if isinstance(given, (tuple, list)) else ()
    good = shape and all(is_int(axis) for axis in shape)
    if not good:
        raise ArgumentError(
            f"model {name!r}, argument input_shape",
            expected="positive ints, without the batch axis",
            received=brief(given),
            advice="pass for example (1, 28, 28)",
        )
    return shape
