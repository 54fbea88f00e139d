"""The table of ready nets; the modules that build them are imported when one is asked for."""

from __future__ import annotations

from dataclasses import replace

from singanet.models.entry import ModelEntry, Recipe

__all__ = ["ENTRIES"]

_DEEP = Recipe(epochs=30, batch_size=64, lr=0.1, augment=True)
# Without batch normalisation SGD finds no rate that serves every start.
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
        ModelEntry("mlp", "two hidden layers of 256 and 128 units", "mlp", input_shape=_MNIST),
        ModelEntry(
            "lenet",
            "two convolutions with pooling, two dense layers",
            "lenet",
            input_shape=_MNIST,
            recipe=Recipe(epochs=30, augment=True),
        ),
        ModelEntry(
            "alexnet",
            "cuda-convnet's net for CIFAR-10: three convolutions, response normalisation",
            "alexnet",
            recipe=Recipe(epochs=30, batch_size=64, augment=True),
        ),
    ]


def _vgg() -> list[ModelEntry]:
    return [
        ModelEntry(
            f"vgg{depth}",
            f"VGG of {depth} layers with batch normalisation; small images have a small head",
            "vgg",
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
            "resnet_cifar",
            {"depth": depth},
            recipe=_DEEP,
        )
        for depth in (20, 32, 44, 56, 110)
    ]
    large = [
        ModelEntry(
            f"resnet{depth}",
            f"residual net of {depth} layers for photographs",
            "resnet",
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
            "preresnet",
            {"depth": depth},
            recipe=_DEEP,
        )
        for depth in (20, 56, 110)
    ]
    wide = [
        ModelEntry(
            f"wrn-{depth}-{widen}",
            f"wide residual net of {depth} layers, {widen} times the channels",
            "wide_resnet",
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
            module or name,
            options,
            input_shape=_IMAGENET,
            num_classes=1000,
            recipe=recipe,
        )
        for name, description, module, options, recipe in (
            ("googlenet", "GoogLeNet: nine inception modules", "", {}, _PLAIN_DEEP),
            ("mobilenet", "MobileNet 1: depthwise and 1x1 convolutions", "", {}, _DEEP),
            ("mobilenet_v2", "MobileNet 2: inverted residuals, for photographs", "", {}, _INVERTED),
            ("mobilenet_v3_small", v3.format("small"), "mobilenet_v3", {"large": False}, _INVERTED),
            ("mobilenet_v3_large", v3.format("large"), "mobilenet_v3", {"large": True}, _INVERTED),
            (
                "efficientnet_b0",
                "EfficientNet B0: gated inverted residuals, for photographs",
                "efficientnet",
                {},
                _INVERTED,
            ),
            ("densenet121", "121 densely joined layers, for photographs", "densenet", {}, _DEEP),
            (
                "vit_tiny",
                "vision transformer of 12 blocks, 192 wide, for photographs",
                "vit",
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
            "unet",
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
            "lstm",
            input_shape=(28, 28),
            recipe=Recipe(epochs=40, optimizer="adam", lr=0.005, weight_decay=0.0),
        ),
        ModelEntry(
            "char_rnn",
            "LSTM language model of characters",
            "char_rnn",
            input_shape=(64,),
            num_classes=96,
            task="text",
            recipe=Recipe(epochs=6, batch_size=32, optimizer="adam", lr=0.004, weight_decay=0.0),
        ),
        ModelEntry(
            "transformer",
            "causal transformer language model of characters",
            "transformer",
            input_shape=(64,),
            num_classes=96,
            task="text",
            recipe=Recipe(epochs=10, batch_size=32, optimizer="adam", lr=0.003, weight_decay=0.0),
        ),
        ModelEntry(
            "transformer_lm",
            "GPT-like language model of characters: rotary positions, gelu",
            "transformer",
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
            name,
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
            "autoencoder",
            input_shape=_MNIST,
            task="reconstruction",
            recipe=Recipe(epochs=50, optimizer="adam", lr=0.003, weight_decay=0.0),
        ),
        ModelEntry(
            "rbm",
            "restricted Boltzmann machine of 256 hidden units, by contrastive divergence",
            "rbm",
            input_shape=_MNIST,
            task="reconstruction",
            recipe=Recipe(epochs=50, lr=0.1, weight_decay=2e-4),
        ),
    ]


# Of the usual forms; the tests compare each with the net and, where there is one, a publication.
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
    "rbm": 201_744,
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
