"""The nets of the comparisons: singanet's side of each, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import singanet
from singanet import models
from singanet.layers import (
    Activation,
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    Embedding,
    Flatten,
    GatedUnit,
    Input,
    MaxPooling2D,
    MultiHeadAttention,
    RMSNorm,
    RotaryEmbedding,
)


@dataclass(frozen=True)
class Case:
    """A net at a batch size."""

    model: str
    batch: int

    @property
    def name(self) -> str:
        """As rows are chosen on the command line."""
        return f"{self.model}:{self.batch}"


_SIZES = {
    "64-64-10": (1, 32, 128),
    "mlp": (1, 32, 128),
    "lenet": (1, 32, 128),
    "alexnet": (1, 32, 128),
    "char_rnn": (1, 32, 128),
    "transformer": (1, 32, 128),
    "wide_deep": (1, 32, 128),
    "resnet20": (1, 32, 128),
    "convnet3": (32,),
    "convnet5": (24,),
    "convnet24": (48,),
    "vgg11": (1, 32, 128),
    "resnet50": (1, 8),
}
CASES = [Case(model, batch) for model, sizes in _SIZES.items() for batch in sizes]
"""Of the comparisons with PyTorch, each with a twin there."""

WITHOUT_TWIN = [Case("lstm", 32)]
"""Of the comparisons with earlier versions alone."""

_OF_CHARACTERS = ("char_rnn", "transformer")
HIDDEN = (512, 256)
"""Of the mlp on images of 784 pixels."""


CONVNETS: dict[str, tuple[tuple[int, int, int], list[tuple[int, int] | None]]] = {
    "convnet3": ((3, 32, 32), [(32, 3), (48, 3), None, (64, 3), (96, 3), None]),
    "convnet5": ((3, 40, 40), [(24, 5), None, (56, 5), None, (96, 3), None]),
    "convnet24": ((1, 24, 24), [(24, 3), (40, 3), None, (80, 3), None]),
}
"""Small nets that no model is: images, and kernels by number and size, None for 2×2 pooling.

Batch normalisation and relu follow each convolution, a dense layer of 10 classes is the last.
"""


def chosen(wanted: str) -> list[int]:
    """The rows that ``wanted`` names, by ``model`` or ``model:batch`` with commas; all if empty."""
    words = [word for word in wanted.split(",") if word]
    rows = [
        row
        for row, case in enumerate(CASES)
        if not words or case.model in words or case.name in words
    ]
    known = {name for case in CASES for name in (case.model, case.name)}
    if unknown := [word for word in words if word not in known]:
        raise SystemExit(f"unknown rows {unknown}; there are {', '.join(sorted(known))}")
    return rows


def build(model: str) -> singanet.FeedForwardNet:
    """The net, computing its loss and no metric, as the twin in PyTorch does."""
    if model == "64-64-10":
        net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
        net.add(Dense("fc1", 64, input_sample_shape=(64,)))
        net.add(Activation("relu"))
        net.add(Dense("fc2", 10))
    elif model in CONVNETS:
        net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
        shape, blocks = CONVNETS[model]
        given = {"input_sample_shape": shape}
        for k, block in enumerate(blocks):
            if block is None:
                net.add(MaxPooling2D(f"pool{k}", 2, 2))
                continue
            net.add(Conv2D(f"conv{k}", *block, use_bias=False, **given))
            net.add(BatchNormalization(f"bn{k}"))
            net.add(Activation(f"relu{k}"))
            given = {}
        net.add(Flatten("flat"))
        net.add(Dense("fc", 10))
    elif model == "mlp":
        net = models.build(model, seed=0, hidden=HIDDEN)
    else:
        net = models.build(model, seed=0)
    net.metric = None
    return net


def llama(
    blocks: int,
    width: int,
    steps: int,
    words: int,
    *,
    heads: int = 0,
    kv_heads: int = 0,
    units: int = 0,
    tied: bool = False,
) -> singanet.FeedForwardNet:
    """Return a language model of Llama's blocks; heads have 64 numbers unless they are given."""
    ids, table = Input("ids", (steps,)), Embedding("table", words, width)
    x = table(ids)
    for k in range(blocks):
        attention = MultiHeadAttention(
            f"attention{k}",
            heads or width // 64,
            use_bias=False,
            causal=True,
            num_kv_heads=kv_heads or max(1, width // 128),
            rotary=RotaryEmbedding(),
        )
        x = Add(f"add{k}")(x, attention(RMSNorm(f"before{k}")(x)))
        unit = GatedUnit(f"unit{k}", units or width * 8 // 3, width)
        x = Add(f"sum{k}")(x, unit(RMSNorm(f"after{k}")(x)))
    shared: Any = {"W_specs": table.params["weight"], "W_transpose": True} if tied else {}
    scores = Dense("head", words, use_bias=False, **shared)(RMSNorm("norm")(x))
    loss = singanet.loss.SoftmaxCrossEntropy()
    return singanet.FeedForwardNet(loss, inputs=ids, outputs=scores, seed=0)


def predictor(net: singanet.FeedForwardNet) -> Callable[[Any], Any]:
    """Predictions with the parameters taken for constants, as PyTorch's compiled twin has them."""
    # Until it was an object this was a state of the net, and earlier versions are compared with.
    if hasattr(net, "predictor"):
        return net.predictor()
    net.seal()
    return net.predict


def parameters(net: singanet.FeedForwardNet) -> int:
    """How many numbers of the net are trained."""
    return sum(param.value.size for param in net.params() if param.trainable)


def batch_of(model: str, size: int) -> tuple[Any, np.ndarray]:
    """Inputs, an array or a dict by input name, and labels."""
    rng = np.random.default_rng(0)
    if model == "64-64-10":
        return rng.standard_normal((size, 64), np.float32), rng.integers(0, 10, size)
    if model in CONVNETS:
        images = rng.standard_normal((size, *CONVNETS[model][0]), np.float32)
        return images, rng.integers(0, 10, size)
    entry = models.find(model)
    shape, classes = entry.input_shape, entry.num_classes
    if model in _OF_CHARACTERS:
        ids = rng.integers(0, classes, (size, *shape))
        return ids, rng.integers(0, classes, ids.shape)
    labels = rng.integers(0, classes, size)
    if model == "wide_deep":
        columns, measures = shape
        ids = rng.integers(0, entry.options["vocabulary_size"], (size, columns))
        numbers = rng.standard_normal((size, measures), np.float32)
        return {"categorical": ids, "numeric": numbers}, labels
    return rng.standard_normal((size, *shape), np.float32), labels
