"""Nets of layers of all kinds, with several inputs and outputs, their data and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np

import singanet
from singanet import Input, layers
from singanet import loss as losses
from singanet import optimizer as kinds
from singanet.device import Device
from singanet.layers import LSTM, Activation, BatchNormalization, Concat, Conv2D, Dense, Dropout
from singanet.metric import Accuracy
from singanet.ops import numpy_ops
from singanet.optimizer import SGD, Adam, MaxNorm
from tests.layer_catalogue import CATALOGUE

from . import user_parts as own
from .user_parts import Counts, Gain, Probe, Pulled, Weighed


@dataclass(frozen=True)
class Node:
    """A layer on the value ``of`` places before the last one; a join takes ``other``, too."""

    kind: str
    of: int = 0
    other: int = 0


@dataclass(frozen=True)
class Action:
    """Something done to both nets; ``where`` chooses a layer or variant, ``size`` how much."""

    kind: str
    where: int = 0
    size: int = 1


@dataclass(frozen=True)
class Plan:
    """A net, what trains it, and what is done with it. All values of a net have one shape.

    The second input is a vector, the second output is of another value than the last one.
    """

    values: str = "vectors"
    nodes: tuple[Node, ...] = ()
    net: str = "plain"
    loss: str = "softmax"
    metric: str = "accuracy"
    optimizer: str = "momentum"
    recompute: str = "none"
    kernels: str = "default"
    dtype: str = "float32"
    inputs: int = 1
    outputs: int = 1
    actions: tuple[Action, ...] = ()


SHAPES = {"vectors": (4,), "images": (2, 4, 4), "words": (3, 4), "texts": (-1, 4)}
"""The shapes of values. Texts are of any length, and padded."""
EVERYWHERE = {
    "relu": Activation, "tanh": lambda name: Activation(name, "tanh"),
    "dropout": lambda name: Dropout(name, 0.3), "gain": lambda name: Gain(name, 1.25),
    "pure gain": lambda name: own.PureGain(name, 1.25), "probe": Probe, "follows": own.Follows,
    "counts": Counts, "draws": own.Draws,
}  # fmt: skip
WEIGHTED = {
    "vectors": {
        "dense": lambda name: Dense(name, 4),
        "tied": lambda name: Dense(name, 4),
        "layer norm": layers.LayerNorm,
        "batch norm": BatchNormalization,
        "prelu": layers.PReLU,
    },
    "images": {"conv": lambda name: Conv2D(name, 2, 3), "batch norm": BatchNormalization},
    "words": {
        "lstm": lambda name: LSTM(name, 4, return_sequences=True),
        "gru": lambda name: layers.GRU(name, 4, return_sequences=True),
    },
    "texts": {
        "dense": lambda name: Dense(name, 4),
        "lstm": lambda name: LSTM(name, 4, return_sequences=True),
        "gru": lambda name: layers.GRU(name, 4, return_sequences=True),
        "attention": lambda name: layers.MultiHeadAttention(name, 2, mask="boolean"),
        "layer norm": layers.LayerNorm,
    },
}
JOINS = ("add", "concat", "shared", "nested")
NETS = {"plain": singanet.FeedForwardNet, "clipped": own.ClippedNet, "scaled": own.ScaledNet}


def labels(rng, shape):
    return rng.integers(0, shape[-1], shape[:-1])


def ignored(rng, shape):
    """Labels, of which one at least counts."""
    found = np.where(rng.random(shape[:-1]) < 0.3, -1, labels(rng, shape))
    found.flat[0] = 0
    return found


def bits(rng, shape):
    return rng.integers(0, 2, shape).astype(np.float32)


def shares(rng, shape):
    found = rng.uniform(0.1, 1, shape).astype(np.float32)
    return found / found.sum(-1, keepdims=True)


def reals(rng, shape):
    return rng.standard_normal(shape).astype(np.float32)


LOSSES = {
    "softmax": (losses.SoftmaxCrossEntropy, labels),
    "ignoring": (lambda: losses.SoftmaxCrossEntropy(ignore_index=-1), ignored),
    "smooth": (lambda: losses.SoftmaxCrossEntropy(label_smoothing=0.1), shares),
    "of classes": (lambda: losses.SoftmaxCrossEntropy(class_weight=[1.0, 0.5, 2.0]), labels),
    "focal": (losses.SoftmaxFocal, labels),
    "sigmoid": (losses.SigmoidCrossEntropy, bits),
    "sigmoid focal": (losses.SigmoidFocal, bits),
    "kl": (losses.KLDivergence, shares),
    "hinge": (losses.Hinge, bits),
    "poisson": (losses.Poisson, bits),
    "cosine": (losses.CosineSimilarity, reals),
    "dice": (losses.Dice, bits),
    "tversky": (losses.Tversky, bits),
    "squared": (losses.SquaredError, reals),
    "summed": (lambda: losses.MeanSquaredError(reduction="sum"), reals),
    "absolute": (losses.MeanAbsoluteError, reals),
    "huber": (losses.Huber, reals),
    "smooth l1": (losses.SmoothL1, reals),
    "weighed": (Weighed, reals),
}
"""Losses, and the targets that they take for outputs of a shape."""
METRICS = {
    "none": lambda: None, "accuracy": Accuracy, "gathered": own.Gathered, "hoards": own.Hoards,
}  # fmt: skip


def momentum(**more):
    return SGD(lr=0.05, momentum=0.9, **more)


def patched():
    """An optimizer whose instance has an update of its own."""
    optimizer = momentum()
    halve(optimizer)
    return optimizer


def halve(optimizer):
    inner = optimizer.update
    optimizer.update = lambda names, values, grads, scale=1.0: inner(
        names, values, grads, 0.5 * scale
    )


OPTIMIZERS = {
    "sgd": lambda: SGD(lr=0.05),
    "momentum": momentum,
    "nesterov": lambda: momentum(nesterov=True),
    "adam": lambda: Adam(lr=lambda step: 0.02 / (1 + step)),
    "adamw": lambda: kinds.AdamW(lr=0.02, weight_decay=0.1),
    "amsgrad": lambda: kinds.AMSGrad(lr=0.02),
    "adagrad": lambda: kinds.AdaGrad(lr=0.05),
    "adadelta": lambda: kinds.Adadelta(lr=0.5),
    "adamax": lambda: kinds.Adamax(lr=0.02),
    "nadam": lambda: kinds.NAdam(lr=0.02),
    "radam": lambda: kinds.RAdam(lr=0.02),
    "rmsprop": lambda: kinds.RMSProp(lr=0.01),
    "lion": lambda: kinds.Lion(lr=0.01),
    "muon": lambda: kinds.Muon(lr=0.02),
    "galore": lambda: kinds.GaLore(lr=0.02, rank=2),
    "adalomo": lambda: kinds.AdaLomo(lr=0.01),
    "schedule free": lambda: kinds.ScheduleFreeAdamW(lr=0.02),
    "decay": lambda: momentum(weight_decay=0.1),
    "pulled": lambda: momentum(regularizer=Pulled(0.1)),
    "max norm": lambda: momentum(constraint=MaxNorm(1.0)),
    "keeps": lambda: own.KeepsGradients(momentum()),
    "writes": lambda: own.WritesGradients(momentum()),
    "empties": lambda: own.EmptiesLists(momentum()),
    "patched": patched,
    "pure twice": lambda: own.PureTwice(lr=0.05, momentum=0.9),
    "accumulator": lambda: kinds.Accumulator(momentum(), 2),
    "accumulating": lambda: kinds.AccumulatingSGD(2, lr=0.05),
    "accumulating adam": lambda: kinds.AccumulatingAdam(2, lr=0.02),
    "clip value": lambda: kinds.ClipByValue(momentum(), 0.05),
    "clip layer": lambda: kinds.ClipByLayerNorm(momentum(), 0.1),
    "clip running": lambda: kinds.ClipByRunningNorm(momentum(), 0.1),
    "clip global": lambda: kinds.ClipByGlobalNorm(momentum(), 0.1),
    "mean of global": lambda: kinds.Accumulator(kinds.ClipByGlobalNorm(momentum(), 0.1), 3),
    "blocks": lambda: kinds.BlockCoordinate(Adam(lr=0.02), 2),
    "lamb": lambda: kinds.LAMB(lr=0.01),
    "factored adam": lambda: kinds.FactoredAdam(lr=0.01),
    "adafactor": lambda: kinds.Adafactor(lr=0.01),
}
STAGES = {
    "accumulated": lambda rule: kinds.Accumulator(rule, 2, mean=False),
    "by value": lambda rule: kinds.ClipByValue(rule, 0.05),
    "by layer": lambda rule: kinds.ClipByLayerNorm(rule, 0.1),
    "by running": lambda rule: kinds.ClipByRunningNorm(rule, 0.1),
    "by global": lambda rule: kinds.ClipByGlobalNorm(rule, 0.1),
    "in blocks": lambda rule: kinds.BlockCoordinate(rule, 2),
}


def optimizer_of(name):
    """Make the optimizer of a plan, a rule and the stages around it: "adam, by value"."""
    rule, *stages = name.split(", ")
    return reduce(lambda made, stage: STAGES[stage](made), stages, OPTIMIZERS[rule]())


# -- building -------------------------------------------------------------------------------


def of_shape(name, value, shape):
    """Bring ``value`` to ``shape``, by a product where it has another."""
    if value.kind == "integers":
        value = layers.Cast(f"{name} number")(value)
    if value.shape == shape:
        return value
    if len(value.shape) > 1:
        value = layers.Flatten(f"{name} flat")(value)
    value = Dense(f"{name} dense", prod(shape))(value)
    return value if len(shape) == 1 else layers.Reshape(f"{name} shape", shape)(value)


def of_catalogue(kind, name, shape, values):
    """Apply a layer of the catalogue to ``values`` in the shapes it takes; the results' sum."""
    make, shapes = CATALOGUE[kind]
    taken = getattr(layers, kind).traits.input_kinds
    given = []
    for k, wanted in enumerate(shapes):
        each = f"{name} {k}"
        if taken[k : k + 1] == ("integers",):
            # As many indices as are asked for, below 7.
            most = of_shape(each, values[k % len(values)], (max(7, prod(wanted)),))
            each, most = f"{each} top", layers.TopIndices(f"{each} top", prod(wanted), 1)(most)
            given.append(
                most if len(wanted) == 1 else layers.Reshape(f"{each} shape", wanted)(most)
            )
        else:
            given.append(of_shape(each, values[k % len(values)], wanted))
    made = make(name)(*given)
    made = made if isinstance(made, tuple) else (made,)
    made = [of_shape(f"{name} out {k}", value, shape) for k, value in enumerate(made)]
    return made[0] if len(made) == 1 else layers.Add(f"{name} sum")(made)


def built(plan):
    """Build the net of ``plan``."""
    x = Input("x", {"words": (3,), "texts": (None,)}.get(plan.values, SHAPES[plan.values]))
    inputs, first = [x], x
    if plan.values in ("words", "texts"):
        first = layers.Embedding("table", 7, 4, mask_index=0 if plan.values == "texts" else None)(x)
    values = [first]
    if plan.inputs == 2:
        inputs.append(Input("z", (4,)))
        values.append(beside(plan.values, first, inputs[1]))
    of_nodes(plan, values)
    last, rest = values[-1], values[max(0, len(values) - 2)]
    if plan.inputs == 2:
        # So outputs depend on all inputs.
        last = layers.Add("all")(last, *values[:2])
    if rest is x or last is x:
        rest = last = Activation("last")(last)
    if plan.values in ("words", "texts"):
        last = LSTM("end", 4, return_sequences=False)(last)
    elif plan.values == "images":
        last, rest = (layers.Flatten(name)(v) for name, v in (("flat", last), ("rest", rest)))
    outputs, loss = [Dense("out", 3)(last)], LOSSES[plan.loss][0]()
    if plan.outputs == 2:
        # Of texts and words one for each step, of texts beside its mask.
        more = Dense("more", 3)(rest)
        outputs += [more] if more.mask is None else [more, more.mask]
        masks = {} if more.mask is None else {"more": more.mask.call.layer.name}
        loss = losses.MultiLoss(
            {"out": loss, "more": losses.SquaredError()}, {"more": 0.5}, masks=masks
        )
    net = NETS[plan.net](
        loss, METRICS[plan.metric](), inputs=inputs if len(inputs) > 1 else x,
        outputs=outputs if len(outputs) > 1 else outputs[0], seed=5,
    )  # fmt: skip
    net.as_type(plan.dtype)
    if plan.kernels == "numpy":
        net.to_device(Device("cpu", numpy_ops))
    return net


def beside(values, first, z):
    """Bring the second input to the shape of the first value."""
    if values == "texts":
        return layers.Multiply("z times")(first, layers.Reshape("z row", (1, 4))(z))
    return of_shape("z", z, SHAPES[values])


def of_nodes(plan, values):
    """Append the value of each node of ``plan`` to ``values``."""
    weighted, shared = WEIGHTED[plan.values], None
    first = next(iter(weighted.values()))
    for k, node in enumerate(plan.nodes):
        name = f"{k} {node.kind}"
        value, other = (values[-1 - at % len(values)] for at in (node.of, node.other))
        if node.kind == "add":
            made = layers.Add(name)(value, other)
        elif node.kind == "concat":
            made = joined(plan.values, name, value, other)
        elif node.kind == "shared" and shared is not None:
            made = shared(value)
        elif node.kind == "tied" and shared is not None and isinstance(shared, Dense):
            made = Dense(name, 4, W_specs=shared.params["weight"])(value)
        elif node.kind == "nested":
            inner = [first("in"), Gain("gain", 0.75)]
            made = singanet.FeedForwardNet(inner, name=name)(value)
        elif node.kind in CATALOGUE:
            made = of_catalogue(node.kind, name, SHAPES[plan.values], (value, other))
        else:
            layer = {**EVERYWHERE, **weighted}.get(node.kind, first)(name)
            shared = layer if node.kind in weighted else shared
            made = layer(value)
        values.append(made)


def joined(values, name, one, two):
    """Both side by side, and brought back to the shape of each."""
    if values == "images":
        return Conv2D(f"{name} back", 2, 1)(Concat(name, 1)([one, two]))
    if values == "words":
        return layers.GRU(f"{name} back", 4, return_sequences=True)(Concat(name, 2)([one, two]))
    if values == "texts":
        # Nothing but an addition knows that both have one mask.
        return layers.GRU(f"{name} back", 4, return_sequences=True)(layers.Add(name)(one, two))
    return Dense(f"{name} back", 4)(Concat(name, 1)([one, two]))


def each(act: Callable, given):
    """Return ``act(array)`` of an array, or of each array of a dict."""
    if isinstance(given, dict):
        return {name: act(array) for name, array in given.items()}
    return act(given)


class Data:
    """Batches by chance, the same in every run of a plan; texts have ``steps``."""

    def __init__(self, plan):
        self.plan, self.rng = plan, np.random.default_rng(7)
        self.steps = 3

    def inputs(self, batch=3):
        if self.plan.values in ("words", "texts"):
            x = self.rng.integers(0, 7, (batch, self.steps))
            # A text has a step at least.
            x[:, 0] += self.plan.values == "texts" and x[:, 0] == 0
        else:
            x = reals(self.rng, (batch, *SHAPES[self.plan.values]))
        return x if self.plan.inputs == 1 else {"x": x, "z": reals(self.rng, (batch, 4))}

    def batch(self, batch=3):
        plan = self.plan
        x, targets = self.inputs(batch), LOSSES[plan.loss][1]
        y = targets(self.rng, (batch, 3))
        if targets is reals and plan.metric != "none":
            y = np.eye(3, dtype=np.float32)[y.argmax(1)]
        return x, self._of_outputs(y, batch)

    def gradient(self, batch=3):
        made = self._of_outputs(reals(self.rng, (batch, 3)), batch)
        return each(lambda array: array.astype(self.plan.dtype), made)

    def _of_outputs(self, of_first, batch):
        if self.plan.outputs == 1:
            return of_first
        steps = (self.steps,) if self.plan.values in ("words", "texts") else ()
        return {"out": of_first, "more": reals(self.rng, (batch, *steps, 3))}
