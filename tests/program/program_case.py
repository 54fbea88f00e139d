"""Nets, rules and options of the contract that a recorded step is the step by the layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from singanet import FeedForwardNet, Input
from singanet import optimizer as kinds
from singanet.layers import (
    LSTM,
    Activation,
    Add,
    BatchNormalization,
    Concat,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    MaxPooling2D,
    Split,
)
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import schedules

from .twins import Twins

# -- nets -----------------------------------------------------------------------------------


def vectors(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def chain(*parts, loss=SoftmaxCrossEntropy, metric=None, kind=FeedForwardNet):
    """Dense layers of 6, 7 and 3 units, with the layers that ``parts`` make before the last."""
    layers = [
        Dense("one", 6, input_sample_shape=(5,)), Activation("tanh", "tanh"), Dense("two", 7),
        Activation("relu"), *(part() for part in parts), Dense("out", 3),
    ]  # fmt: skip
    return kind(layers, loss=loss(), metric=None if metric is None else metric(), seed=2)


def image_net(*parts, depth=1):
    """Convolutions, a dropout and classes; with a depth of four, "cheap" drops something."""
    layers = []
    for k in range(depth):
        more = {"input_sample_shape": (2, 6, 6)} if k == 0 else {}
        specs = {"lr_mult": 2.0, "decay_mult": 0.5}
        layers += [
            Conv2D(f"conv{k or ''}", 4, 3, W_specs=specs, **more),
            BatchNormalization(f"norm{k or ''}"), Activation(f"relu{k or ''}"),
        ]  # fmt: skip
    layers += [
        MaxPooling2D("pool", 2, 2), Dropout("drop", 0.3), *(part() for part in parts),
        # More elements than a block of the optimizers.
        Flatten("flat"), Dense("wide", 300, b_specs={"decay_mult": 0.0}), Dense("out", 5),
    ]  # fmt: skip
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), metric=Accuracy(), seed=3)


def residual_net():
    x = Input("x", (6,))
    h = Dense("in", 6)(x)
    first, second = Split("split", 2)(h)
    shared = Dense("shared", 6)
    y = Add("sum")([shared(Activation("a", "tanh")(first)), shared(second), h])
    out = Dense("out", 3)(Concat("both", 1)([y, x]))
    return FeedForwardNet(SquaredError(), inputs=x, outputs=out, seed=1)


def word_net(*parts):
    words = Embedding("words", 11, 4, input_sample_shape=(5,))
    layers = [words, *(part() for part in parts), Flatten("flat"), Dense("out", 3)]
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=1)


def recurrent_net():
    words = Embedding("words", 11, 4, input_sample_shape=(5,))
    rnn = LSTM("rnn", 6, num_stacks=2, bidirectional=True, return_sequences=False)
    return FeedForwardNet([words, rnn, Dense("out", 3)], loss=SoftmaxCrossEntropy(), seed=1)


def tied_net(again=True):
    """A table of words that the last layer shares; ``again``: the table is looked up twice."""
    words, x = Embedding("words", 11, 4, padding_index=2), Input("ids", (5,), "int64")
    hidden = Flatten("flat")(words(x))
    if again:
        hidden = Concat("both", 1)(hidden, Flatten("flat2")(words(x)))
    scores = Dense("scores", 11, W_specs=words.params["weight"], W_transpose=True)
    outputs = scores(Dense("down", 4)(hidden))
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=outputs, seed=1)


def two_headed_net():
    images, numbers = Input("images", (2, 4, 4)), Input("numbers", (3,))
    h = Concat("both", 1)([Flatten("flat")(images), Dense("wide", 5)(numbers)])
    h = Dropout("drop", 0.2)(Dense("body", 7)(h))
    outs = [Dense("kind", 4)(h), Dense("size", 1)(h)]
    loss = MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()}, {"size": 0.5})
    return FeedForwardNet(loss, inputs=[images, numbers], outputs=outs, seed=1)


@dataclass(frozen=True)
class Net:
    """A net, and how its inputs and targets are drawn: functions of a generator and a number."""

    make: Callable
    inputs: Callable
    targets: Callable

    def batch(self, rng, size=4):
        return self.inputs(rng, size), self.targets(rng, size)

    def batches(self, count, size=4, seed=0):
        rng = np.random.default_rng(seed)
        return [self.batch(rng, size) for _ in range(count)]


def of(*shape):
    return lambda rng, size: vectors(rng, size, *shape)


def below(bound, *shape):
    return lambda rng, size: rng.integers(0, bound, (size, *shape))


CHAIN = Net(chain, of(5), below(3))
IMAGES = Net(image_net, of(2, 6, 6), below(5))
WORDS = Net(word_net, below(11, 5), below(3))
HEADS = Net(
    two_headed_net,
    lambda rng, n: {"images": vectors(rng, n, 2, 4, 4), "numbers": vectors(rng, n, 3)},
    lambda rng, n: {"kind": rng.integers(0, 4, n), "size": vectors(rng, n, 1)},
)
NETS = {
    "chain": CHAIN,
    "images": IMAGES,
    "deep": Net(lambda: image_net(depth=4), of(2, 6, 6), below(5)),
    "branches": Net(residual_net, of(6), of(3)),
    "words": WORDS,
    "normalised words": Net(lambda: word_net(lambda: LayerNorm("more")), below(11, 5), below(3)),
    "recurrent": Net(recurrent_net, below(11, 5), below(3)),
    "tied": Net(tied_net, below(11, 5), below(11)),
    "heads": HEADS,
}

# -- rules ----------------------------------------------------------------------------------


def falling(step):
    return 0.05 / (1 + step)


def sgd():
    return kinds.SGD(lr=0.1, momentum=0.9)


def adam():
    return kinds.Adam(lr=falling)


def public(base):
    """The classes of the public list that are a ``base``, by name, without the abstract ones."""
    found = {name: getattr(kinds, name) for name in kinds.__all__}
    return {
        name: kind
        for name, kind in found.items()
        if inspect.isclass(kind) and issubclass(kind, base) and not inspect.isabstract(kind)
    }


ACCUMULATING = {
    "AccumulatingSGD": lambda **k: kinds.AccumulatingSGD(2, decoupled=True, **k),
    "AccumulatingAdam": lambda **k: kinds.AccumulatingAdam(3, **k),
}
"""Rules of which each needs a number of batches; they refuse gradients of rows."""

RULES = {
    **public(kinds.Optimizer),
    "SGD, momentum": lambda **k: kinds.SGD(momentum=lambda step: min(0.9, step / 5), **k),
    "SGD, nesterov": lambda **k: kinds.SGD(momentum=0.9, nesterov=True, **k),
    "SGD, decoupled": lambda **k: kinds.SGD(momentum=0.9, decoupled=True, **k),
    "SGD, dampened": lambda **k: kinds.SGD(momentum=0.9, dampening=0.3, **k),
    "Adam, decoupled": lambda **k: kinds.Adam(decoupled=True, **k),
    "RMSProp, scheduled": lambda **k: kinds.RMSProp(rho=lambda step: 0.9 - 0.1 / (step + 1), **k),
    "RMSProp, centered": lambda **k: kinds.RMSProp(centered=True, momentum=0.5, **k),
    "AdamW, largest": lambda **k: kinds.AdamW(amsgrad=True, **k),
    "RAdam": lambda **k: kinds.RAdam(beta_2=0.6, **k),
    "LAMB, decoupled": lambda **k: kinds.LAMB(decoupled=True, **k),
    **ACCUMULATING,
}
STAGES = {
    "ClipByLayerNorm": lambda o: kinds.ClipByLayerNorm(o, 0.01),
    "ClipByRunningNorm": lambda o: kinds.ClipByRunningNorm(o, 0.01),
    "ClipByGlobalNorm": lambda o: kinds.ClipByGlobalNorm(o, 0.05),
    "Accumulator": lambda o: kinds.Accumulator(o, 2),
    "Accumulator, sum of 3": lambda o: kinds.Accumulator(o, 3, mean=False),
    "clipped mean": lambda o: kinds.Accumulator(kinds.ClipByLayerNorm(o, 0.01), 2),
    "norm of mean": lambda o: kinds.ClipByRunningNorm(
        kinds.Accumulator(kinds.ClipByLayerNorm(o, 1e-3), 2), 0.1
    ),
    "mean of norm": lambda o: kinds.Accumulator(kinds.ClipByGlobalNorm(o, 1e-3), 2),
    "ClipByValue": lambda o: kinds.ClipByValue(o, 0.01),
    "mean of clipped": lambda o: kinds.ClipByValue(kinds.Accumulator(o, 2), 0.01),
    "value of norm": lambda o: kinds.ClipByRunningNorm(kinds.ClipByValue(o, 1e-3), 0.1, 0.5),
}
OPTIONS = {
    "scheduled": {},
    "constant, decay": {"lr": 0.01, "weight_decay": 0.01},
    "l1": {"regularizer": kinds.L1Regularizer(0.01)},
    "l2": {"regularizer": 0.01},
    "rising l1": {"regularizer": kinds.L1Regularizer(lambda step: 0.01 * step)},
    "no l1": {"regularizer": kinds.L1Regularizer(lambda step: 0.0)},
    "cosine l2": {"regularizer": kinds.L2Regularizer(schedules.Cosine(0.1, 4))},
    "clip": {"constraint": 0.1},
    "max norm": {"constraint": kinds.MaxNorm(1.0, axis=0)},
    "l2 bound": {"constraint": kinds.L2Constraint(1e-5)},
}

# -- the contract ---------------------------------------------------------------------------


def expect_as_by_the_layers(net, rule, rng, *, steps=9, weighted=False, level="none"):
    """Train ``net`` by ``rule``, recorded and by its layers; the twins.

    Losses, metrics, outputs, parameters, state, draws and the optimizer's state are compared to the
    bit after each step: of full batches, shorter ones, weighted ones, with evaluations and a
    reloaded state between them. What looks at the recorded net alone leaves it as it is.
    """
    twins = Twins(net.make, rule)
    twins.recorded.programs.recompute = level
    for number in range(steps):
        x, y = net.batch(rng, 3 if number % 4 == 3 else 6)
        many = len(next(iter(x.values())) if isinstance(x, dict) else x)
        weight = rng.uniform(0, 2, many).astype(np.float32) if weighted and number % 2 else None
        twins.step(x, y, sample_weight=weight)
        if number % 3 == 1:
            twins.forward(False, x)
        if number == 4:
            twins.recorded.memory(6, twins.optimizers[0])
            twins.expect_equal()
        if number == steps // 2:
            twins.both(lambda _, used: used.load_state_dict(used.state_dict()))
    return twins
