"""Nets drawn by chance, with parts as users write them and changes between the steps.

Each is run twice, recorded and by its layers: every loss, metric, output, gradient and parameter
has to be the same to the bit, and every error the same error. A failing example is a `Plan` that
reads like what was done.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet import Input
from singanet.device import Device
from singanet.errors import CallOrderError
from singanet.layers import (
    GRU,
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
    PReLU,
)
from singanet.loss import Huber, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.ops import numpy_ops, ops_for
from singanet.optimizer import (
    LAMB,
    SGD,
    Accumulator,
    Adafactor,
    Adam,
    ClipByLayerNorm,
    ClipByRunningNorm,
    ClipByValue,
    FactoredAdam,
    MaxNorm,
)

from .twins import Twins
from .user_parts import (
    ClippedNet,
    Counts,
    Draws,
    EmptiesLists,
    Follows,
    Gain,
    Gathered,
    KeepsGradients,
    Probe,
    Pulled,
    PureGain,
    ScaledNet,
    Weighed,
    WritesGradients,
    dense_of,
)

# -- what is drawn --------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A layer on the value ``of`` places before the last one; a join takes ``other``, too."""

    kind: str
    of: int = 0
    other: int = 0


@dataclass(frozen=True)
class Action:
    """Something done to both nets; ``where`` chooses a layer or parameter, ``size`` how much."""

    kind: str
    where: int = 0
    size: int = 1


@dataclass(frozen=True)
class Plan:
    """A net, what trains it, and what is done with it. All values of a net have one shape."""

    values: str
    nodes: tuple[Node, ...]
    net: str
    loss: str
    metric: str
    optimizer: str
    recompute: str
    kernels: str
    actions: tuple[Action, ...]


SHAPES = {"vectors": (4,), "images": (2, 4, 4), "words": (3, 4)}

EVERYWHERE = {
    "relu": Activation,
    "tanh": lambda name: Activation(name, "tanh"),
    "dropout": lambda name: Dropout(name, 0.3),
    "gain": lambda name: Gain(name, 1.25),
    "pure gain": lambda name: PureGain(name, 1.25),
    "probe": Probe,
    "follows": Follows,
    "counts": Counts,
    "draws": Draws,
}
WEIGHTED = {
    "vectors": {
        "dense": lambda name: Dense(name, 4),
        "layer norm": LayerNorm,
        "batch norm": BatchNormalization,
        "prelu": PReLU,
    },
    "images": {
        "conv": lambda name: Conv2D(name, 2, 3),
        "batch norm": BatchNormalization,
    },
    "words": {
        "lstm": lambda name: LSTM(name, 4, return_sequences=True),
        "gru": lambda name: GRU(name, 4, return_sequences=True),
    },
}
JOINS = ("add", "concat", "shared", "nested")
NETS = {"plain": singanet.FeedForwardNet, "clipped": ClippedNet, "scaled": ScaledNet}
LOSSES = {
    "softmax": SoftmaxCrossEntropy,
    "squared": SquaredError,
    "huber": Huber,
    "weighed": Weighed,
}
METRICS = {"none": lambda: None, "accuracy": Accuracy, "gathered": Gathered}


def momentum(**more):
    return SGD(lr=0.05, momentum=0.9, **more)


def patched():
    """An optimizer whose instance has an update of its own."""
    optimizer = momentum()
    halve(optimizer)
    return optimizer


def halve(optimizer):
    inner = optimizer.update

    def halved(names, values, grads, scale=1.0):
        inner(names, values, grads, 0.5 * scale)

    optimizer.update = halved


OPTIMIZERS = {
    "sgd": lambda: SGD(lr=0.05),
    "momentum": momentum,
    "nesterov": lambda: momentum(nesterov=True),
    "adam": lambda: Adam(lr=lambda step: 0.02 / (1 + step)),
    "decay": lambda: momentum(weight_decay=0.1),
    "pulled": lambda: momentum(regularizer=Pulled(0.1)),
    "max norm": lambda: momentum(constraint=MaxNorm(1.0)),
    "keeps": lambda: KeepsGradients(momentum()),
    "writes": lambda: WritesGradients(momentum()),
    "empties": lambda: EmptiesLists(momentum()),
    "patched": patched,
    "accumulator": lambda: Accumulator(momentum(), 2),
    "clip value": lambda: ClipByValue(momentum(), 0.05),
    "clip layer": lambda: ClipByLayerNorm(momentum(), 0.1),
    "clip running": lambda: ClipByRunningNorm(momentum(), 0.1),
    "lamb": lambda: LAMB(lr=0.01),
    "factored adam": lambda: FactoredAdam(lr=0.01),
    "adafactor": lambda: Adafactor(lr=0.01),
}

# -- building -------------------------------------------------------------------------------


def built(plan):
    """The net of ``plan``."""
    shape = SHAPES[plan.values]
    if plan.values == "words":
        x = Input("x", (3,))
        values = [Embedding("table", 7, 4)(x)]
    else:
        x = Input("x", shape)
        values = [x]
    shared = None
    for k, node in enumerate(plan.nodes):
        name = f"{k} {node.kind}"
        value = values[-1 - node.of % len(values)]
        other = values[-1 - node.other % len(values)]
        if node.kind == "add":
            made = Add(name)(value, other)
        elif node.kind == "concat":
            made = joined(plan.values, name, value, other)
        elif node.kind == "shared" and shared is not None:
            made = shared(value)
        elif node.kind == "nested":
            parts = [make("in") for make in list(WEIGHTED[plan.values].values())[:1]]
            made = singanet.FeedForwardNet([*parts, Gain("gain", 0.75)], name=name)(value)
        else:
            kinds = {**EVERYWHERE, **WEIGHTED[plan.values]}
            make = kinds.get(node.kind) or next(iter(WEIGHTED[plan.values].values()))
            layer = make(name)
            shared = layer if node.kind in WEIGHTED[plan.values] else shared
            made = layer(value)
        values.append(made)
    last = values[-1] if values[-1] is not x else Activation("last")(x)
    if plan.values == "words":
        last = LSTM("end", 4, return_sequences=False)(last)
    elif plan.values == "images":
        last = Flatten("flat")(last)
    loss, metric = LOSSES[plan.loss](), METRICS[plan.metric]()
    outputs = Dense("out", 3)(last)
    net = NETS[plan.net](loss, metric, inputs=x, outputs=outputs, seed=5)
    if plan.kernels == "numpy":
        net.to_device(Device("cpu", numpy_ops))
    return net


def joined(values, name, one, two):
    """Both side by side, and brought back to the shape of each."""
    if values == "images":
        return Conv2D(f"{name} back", 2, 1)(Concat(name, 1)([one, two]))
    if values == "words":
        return GRU(f"{name} back", 4, return_sequences=True)(Concat(name, 2)([one, two]))
    return Dense(f"{name} back", 4)(Concat(name, 1)([one, two]))


class Data:
    """Batches by chance, the same in every run of a plan."""

    def __init__(self, plan):
        self.plan, self.rng = plan, np.random.default_rng(7)

    def inputs(self, batch=3):
        if self.plan.values == "words":
            return self.rng.integers(0, 7, (batch, 3))
        return self.rng.standard_normal((batch, *SHAPES[self.plan.values])).astype(np.float32)

    def batch(self, batch=3):
        real = self.plan.loss != "softmax" and self.plan.metric == "none"
        x = self.inputs(batch)
        if self.plan.loss == "softmax":
            return x, self.rng.integers(0, 3, batch)
        y = self.rng.standard_normal((batch, 3)).astype(np.float32)
        return x, y if real else np.eye(3, dtype=np.float32)[y.argmax(1)]

    def gradient(self, batch=3):
        return self.rng.standard_normal((batch, 3)).astype(np.float32)


# -- comparing ------------------------------------------------------------------------------


def expect_alike(one, two):
    """Results are the same to the bit, NaN as well, and errors are of one class and text."""
    assert type(one) is type(two), (one, two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = [*one.values()], [*two.values()]
    if isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            expect_alike(a, b)
    elif isinstance(one, np.ndarray):
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        np.testing.assert_array_equal(one, two)
    else:
        assert one == two or (one != one and two != two), (one, two)


class Run(Twins):
    """A plan carried out on both nets."""

    def __init__(self, plan):
        super().__init__(lambda: built(plan), OPTIMIZERS[plan.optimizer])
        self.plan, self.data = plan, Data(plan)
        self.recorded.programs.recompute = plan.recompute
        self.kept = []

    def do(self, act):
        """``act(net, optimizer)`` on both; results, errors and what is left have to be alike."""
        results = []
        for pair in zip(self.nets, self.optimizers, strict=True):
            try:
                results.append(act(*pair))
                finish = getattr(pair[1], "finish", None)
                if finish is not None and pair[1].kept:
                    finish()
            except Exception as error:  # noqa: BLE001 - what both refuse is alike, too
                results.append(("refused", type(error), str(error)))
        expect_alike(*results)
        self.expect_equal()
        for array, was in self.kept:
            np.testing.assert_array_equal(array, was)

    def steps(self, count=3, batch=3, **options):
        for _ in range(count):
            x, y = self.data.batch(batch)
            self.do(lambda net, optimizer, x=x, y=y: net.step(x, y, optimizer, **options))

    def loop(self, use, output=(), between=None):
        """Forward and backward on both, ``use(item, optimizer)`` at each yield."""
        x, dy = self.data.inputs(), self.data.gradient()

        def act(net, optimizer):
            out = net.forward(True, x)
            if between is not None:
                between(net, optimizer)
            items = []
            for item in net.backward(dy, output):
                items.append(taken(item))
                use(item, optimizer)
            return [out, items]

        self.do(act)

    def run(self):
        self.steps()
        for action in self.plan.actions:
            ACTIONS[action.kind](self, action)
            self.steps()
        for net in self.nets:
            for part in (*net.layers, net.loss):
                for array, was in part.seen if isinstance(part, (Probe, Weighed)) else ():
                    host = ops_for(array).host
                    np.testing.assert_array_equal(host(array), host(was))


def taken(item):
    """A copy of an item of a walk."""
    grads = [tuple(g) if isinstance(g, tuple) else g.copy() for g in item.grads]
    return item.layer, list(item.names), grads, dict(item.output_grads)


def some(walk, count):
    """Copies of the first items."""
    return [taken(item) for item, _ in zip(walk, range(count), strict=False)]


# -- what is done between the steps ---------------------------------------------------------

ACTIONS = {}


def action(function):
    """Let plans draw ``function(run, action)``."""
    ACTIONS[function.__name__.replace("_", " ")] = function
    return function


def change(function):
    """Let plans draw ``function(action, net, optimizer)``, which is done to each of both."""

    def act(run, action):
        run.do(lambda *pair: function(action, *pair))

    ACTIONS[function.__name__.replace("_", " ")] = act
    return function


def update(item, optimizer):
    optimizer.update(*item)


def pop_each(item, optimizer):
    while item.names:
        optimizer.update([item.names.pop()], [item.values.pop()], [item.grads.pop()])


def transposed(item, optimizer):
    for part in item[:3]:
        part.reverse()
    optimizer.update(*item)


@action
def loop(run, action):
    for _ in range(3):
        run.loop((update, pop_each, transposed)[action.where % 3])


def clip(item):
    for grad in item.grads:
        np.clip(dense_of(grad), -0.02, 0.02, out=dense_of(grad))


def without_first(item):
    for part in item[:3]:
        del part[:1]


@action
def on_layer(run, action):
    run.steps(action.size, on_layer=(clip, without_first)[action.where % 2])


@action
def measure(run, action):
    def keep(out, y):
        run.kept += [(out, out.copy()), (y, y.copy())]
        return float(out.sum())

    run.steps(measure=keep)


@action
def weights(run, action):
    for _ in range(3):
        run.steps(1, sample_weight=run.data.rng.uniform(0, 2, 3).astype(np.float32))


@action
def abandon(run, action):
    x, dy = run.data.inputs(), run.data.gradient()

    def act(net, optimizer):
        net.forward(True, x)
        walk = net.backward(dy)
        items = some(walk, action.size)
        walk.close()
        return items

    run.do(act)


@action
def forward_twice(run, action):
    x = run.data.inputs()
    run.do(lambda net, _: [net.forward(True, x), net.forward(True, x[::-1])])
    run.loop(update)


@action
def pause(run, action):
    """A walk goes on after a step of another batch."""
    x, dy, batch = run.data.inputs(), run.data.gradient(), run.data.batch()

    def act(net, optimizer):
        net.forward(True, x)
        walk = net.backward(dy)
        items = some(walk, action.size)
        result = net.step(*batch, optimizer)
        return [items, result, [taken(item) for item in walk]]

    for _ in range(2):
        run.do(act)


@action
def asked(run, action):
    layers = run.recorded.layers
    run.loop(update, [layers[action.where % len(layers)].name])


@action
def predict(run, action):
    x, y = run.data.batch(action.size)
    for _ in range(3):
        run.do(lambda net, _: [net.predict(x), net.evaluate(x, y), net.forward(False, x)])


@action
def fit(run, action):
    x, y = run.data.batch(5)

    def act(net, optimizer):
        net.compile(optimizer)
        return dict(net.fit(x, y, 2, 2, verbose=False))

    run.do(act)


@action
def other_batch(run, action):
    run.steps(3, 1 + action.size)


def rule_of(optimizer):
    """The rule behind all stages."""
    while not hasattr(optimizer, "lr"):
        optimizer = optimizer.optimizer
    return optimizer


@change
def learning_rate(action, net, optimizer):
    rule_of(optimizer).lr = 0.01 * action.size


@change
def optimizer_setting(action, net, optimizer):
    rule = rule_of(optimizer)
    if hasattr(rule, "nesterov"):
        rule.nesterov = bool(action.size % 2) and bool(rule.momentum)
    elif hasattr(rule, "beta_1"):
        rule.beta_1 = 0.5
    if isinstance(rule.regularizer, Pulled):
        rule.regularizer.centre = 0.1 * action.size


@change
def patch_update(action, net, optimizer):
    halve(optimizer)


@change
def patch_layer(action, net, optimizer):
    """Forward or backward of one layer's instance, scaled by a count."""
    method = ("forward", "backward")[action.size % 2]
    layer = net.layers[action.where % len(net.layers)]
    inner, count = getattr(layer, method), [0]

    def scaled(ctx, array):
        made = inner(ctx, array)
        count[0] += 1
        factor = np.float32(1 + count[0] / 16)
        if method == "backward":
            return made
        return [factor * part for part in made] if isinstance(made, list) else factor * made

    setattr(layer, method, scaled)


@change
def freeze(action, net, optimizer):
    net.freeze(net.layers[action.where % len(net.layers)].name)


@change
def unfreeze(action, net, optimizer):
    net.unfreeze()


@change
def trainable(action, net, optimizer):
    param = net.params()[action.where % len(net.params())]
    if not param.is_state and not param.name.endswith("count"):
        param.trainable = not param.trainable


@change
def layer_trainable(action, net, optimizer):
    layer = net.layers[action.where % len(net.layers)]
    if not isinstance(layer, Counts):
        layer.trainable = not layer.trainable


@change
def assign(action, net, optimizer):
    param = net.params()[action.where % len(net.params())]
    param.value = param.value * np.float32(action.size / 2)


@change
def write(action, net, optimizer):
    net.params()[action.where % len(net.params())].value[...] *= np.float32(action.size / 2)


@action
def assign_between(run, action):
    """Between forward and backward."""
    for _ in range(2):
        run.loop(update, between=lambda *pair: assign(action, *pair))


@action
def write_between(run, action):
    for _ in range(2):
        run.loop(update, between=lambda *pair: write(action, *pair))


@change
def tie(action, net, optimizer):
    found = {}
    for layer in net.layers:
        for suffix, param in layer.params.items():
            found.setdefault((suffix, param.shape), []).append(layer)
    pairs = [(suffix, layers) for (suffix, _), layers in found.items() if len(layers) > 1]
    if pairs:
        suffix, layers = pairs[action.where % len(pairs)]
        layers[1].params[suffix] = layers[0].params[suffix]


@change
def attribute(action, net, optimizer):
    for layer in net.layers:
        if isinstance(layer, Gain):
            layer.gain = 1 + action.size / 4
        elif isinstance(layer, Dropout):
            layer.p = 0.1 * action.size
        elif isinstance(layer, Activation):
            layer.mode = ("relu", "tanh", "sigmoid")[action.size % 3]
    if isinstance(net.loss, Weighed):
        net.loss.factor = float(action.size)
    elif isinstance(net.loss, SoftmaxCrossEntropy):
        net.loss.label_smoothing = 0.1 * action.size


@action
def save_and_load(run, action):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.npz"

        def act(net, optimizer):
            net.save(path)
            state = optimizer.state_dict()
            net.step(*batch, optimizer)
            net.load(path)
            optimizer.load_state_dict(state)

        batch = run.data.batch()
        run.do(act)


@action
def copied(run, action):
    run.nets = tuple(map(copy.deepcopy, run.nets))
    if run.plan.optimizer != "patched":
        run.optimizers = tuple(map(copy.deepcopy, run.optimizers))


@action
def told(run, action):
    """What looks at the recorded net alone leaves it as it is."""
    net, optimizer = run.recorded, run.optimizers[0]
    x, y = run.data.batch()
    # What the user replaced or overrides is refused.
    with contextlib.suppress(CallOrderError):
        if action.where % 3 == 0:
            net.memory(3)
        else:
            net.record(*((x,) if action.where % 3 == 1 else (x, y, optimizer)))
    run.expect_equal()


# -- drawing --------------------------------------------------------------------------------

FEW = st.integers(0, 3)


@st.composite
def plans(draw):
    values = draw(st.sampled_from(sorted(SHAPES)))
    kinds = (*WEIGHTED[values], *EVERYWHERE, *JOINS)
    node = st.builds(Node, st.sampled_from(kinds), FEW, FEW)
    action = st.builds(
        Action, st.sampled_from(sorted(ACTIONS)), st.integers(0, 9), st.integers(1, 3)
    )
    return Plan(
        values,
        tuple(draw(st.lists(node, min_size=1, max_size=6))),
        draw(st.sampled_from(("plain", "plain", "plain", "clipped", "scaled"))),
        draw(st.sampled_from(sorted(LOSSES))),
        draw(st.sampled_from(sorted(METRICS))),
        draw(st.sampled_from(sorted(OPTIMIZERS))),
        draw(st.sampled_from(("none", "none", "cheap"))),
        draw(st.sampled_from(("default", "numpy"))),
        tuple(draw(st.lists(action, min_size=1, max_size=5))),
    )


def expect_same_as_the_layers(plan):
    with np.errstate(all="ignore"):
        Run(plan).run()


HOW = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=40, **HOW)
@given(plans())
def test_recorded_nets_are_as_by_the_layers(plan):
    expect_same_as_the_layers(plan)


@pytest.mark.slow
@settings(max_examples=5000, **HOW)
@given(plans())
def test_many_recorded_nets_are_as_by_the_layers(plan):
    expect_same_as_the_layers(plan)
