"""A recorded step takes things for granted that change: it goes on as a step by the layers does."""

import dataclasses

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet import optimizer as kinds
from singanet.errors import CallOrderError
from singanet.layers import Dense, Dropout, TimeDistributed
from singanet.loss import Huber, SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam, MaxNorm
from singanet.program.replay.shared_arena import facts, facts_of_feed
from singanet.training.callbacks import Callback
from tests.kit.threads import in_threads

from .program_case import (
    CHAIN,
    HEADS,
    IMAGES,
    Net,
    adam,
    chain,
    image_net,
    of,
    sgd,
    two_headed_net,
)
from .twins import Twins, expect_same
from .user_parts import Gain, Pulled, PureGain, Weighed


def layer(net, name):
    return next(layer for layer in net.layers if layer.name == name)


def param(net, name):
    return next(param for param in net.params() if param.name == name)


def each(change):
    return lambda net, optimizer: change(net)


def assign(name, value, of=lambda net: net):
    return each(lambda net: setattr(of(net), name, value() if callable(value) else value))


def first(net):
    return net.params()[0]


# -- nets: the change, and the words by which a program recorded by hand refuses it ---------


class Mine(Dropout):
    """A class that is put in the place of the layer's."""


def drop(net):
    return layer(net, "drop")


def read_only(net):
    first(net).value.flags.writeable = False


OF_IMAGES = {
    "freeze": (each(lambda net: net.freeze("flat")), "added or frozen"),
    "add": (each(lambda net: net.add(Dense("more", 5))), "added or frozen"),
    "fix": (assign("trainable", False, first), "trainable of 'conv/weight' is False"),
    "replace": (each(lambda net: setattr(first(net), "value", first(net).value * np.float32(0.5))),
        "array of 'conv/weight' is another"),
    "tie": (
        each(lambda net: layer(net, "out").params.update(
            bias=Dense("other", 5, input_sample_shape=(2,)).params["bias"])),
        "the parameters of layer 'out' are others"),
    "rate of dropout": (assign("p", 0.7, drop), "'rate' of layer 'drop' was assigned"),
    "layer within": (assign("p", 0.5, lambda net: layer(net, "each").layer),
        "'rate' of layer 'inner' was assigned"),
    "class": (assign("__class__", lambda: Mine, drop), "'class' of layer 'drop' was assigned"),
    "list": (each(lambda net: drop(net).mine.append(3)),
        "a list or dict of a layer or loss has other contents"),
    "loss": (assign("loss", lambda: SoftmaxCrossEntropy(label_smoothing=0.2)), "another loss"),
    "smoothing": (assign("label_smoothing", 0.3, lambda net: net.loss),
        "'label_smoothing' of the SoftmaxCrossEntropy was assigned"),
    "layer": (assign("trainable", False, lambda net: net.layers[0]), "trainable"),
    "mode": (assign("mode", "tanh", lambda net: layer(net, "relu")), "mode"),
    "same rate": (assign("p", 0.3, drop), None),
    "write": (each(lambda net: np.multiply(first(net).value, 0.5, out=first(net).value)), None),
    "double": (each(lambda net: net.as_type(np.float64)), None),
    "metric": (assign("metric", None), None),
    "generator": (assign("rng", lambda: np.random.default_rng(77)), None),
    "draws": (each(lambda net: net.rng.random(7)), None),
}  # fmt: skip
OTHERS = "'weights' of the MultiLoss are others"
OF_HEADS = {
    "weights": (
        assign("weights", lambda: {"kind": 0.25, "size": 2.0}, lambda net: net.loss), "weights"),
    "weights in place": (each(lambda net: net.loss.weights.update(size=0.0)), OTHERS),
    "losses": (
        each(lambda net: setattr(net.loss, "losses", {**net.loss.losses, "size": Huber()})),
        "losses"),
    "losses in place": (each(lambda net: net.loss.losses.update(size=Huber())), "losses"),
    "smoothing": (
        assign("label_smoothing", 0.3, lambda net: net.loss.losses["kind"]),
        "'label_smoothing' of the SoftmaxCrossEntropy was assigned"),
}  # fmt: skip


def listed():
    net = image_net(lambda: TimeDistributed("each", Dropout("inner", 0.1)))
    drop(net).mine = [1, 2]
    return net


LISTED = dataclasses.replace(IMAGES, make=listed)
BY_HAND = {
    **{f"images, {name}": (LISTED, *row) for name, row in OF_IMAGES.items()},
    **{f"heads, {name}": (HEADS, *row) for name, row in OF_HEADS.items()},
}


def gained(kind, nested):
    def make():
        inner = FeedForwardNet([Dense("d", 6), kind("gain")], name="inner")
        return chain(lambda: inner if nested else kind("gain"), loss=Weighed)

    return Net(make, of(5), of(3))


def gain(net):
    next(layer for layer in net.layers if isinstance(layer, Gain)).gain += 1.25
    net.loss.factor = 3.0


CHANGES = {
    **{name: (net, change) for name, (net, change, _) in BY_HAND.items()},
    "gain": (gained(Gain, False), each(gain)),
    "pure gain": (gained(PureGain, False), each(gain)),
    "nested gain": (gained(Gain, True), each(gain)),
    "nested pure gain": (gained(PureGain, True), each(gain)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_net_goes_on_as_it_is_now(name, placed):
    net, change = CHANGES[name]
    twins = Twins(lambda: placed(net.make()), adam)
    for count in (4, 5):
        for x, y in net.batches(count, 8, count):
            if twins.recorded.dtype == np.float64:
                x = x.astype(np.float64)
            twins.step(x, y)
            twins.forward(False, x)
        if count == 4:
            twins.both(change)
    twins.expect_recorded()


def by_hand(rerecord=False, net=IMAGES, rule=adam):
    twins = Twins(net.make, rule)
    return twins, twins.recorded.record(
        *net.batches(1, 8)[0], twins.optimizers[0], rerecord=rerecord
    )


def run(twins, made, x, y, weight=None):
    by_layers = twins.nets[1].step(x, y, twins.optimizers[1], sample_weight=weight)
    assert made.run(x, y, weight) == by_layers
    twins.expect_equal()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", [name for name, (*_, words) in BY_HAND.items() if words])
def test_a_changed_net_is_refused_by_a_program_of_hand_or_recorded_again(name, again):
    net, change, words = BY_HAND[name]
    twins, made = by_hand(again, net)
    for x, y in net.batches(2, 8):
        run(twins, made, x, y)
    twins.both(change)
    if again:
        for x, y in net.batches(3, 8):
            run(twins, made, x, y)
    else:
        expect_refused(twins, made, (x, y), words)


def expect_refused(twins, made, batch, words):
    """At each run until it is undone, and before anything is changed."""
    before = [value.copy() for value in twins.recorded.param_values()]
    for _ in range(2):
        with pytest.raises(CallOrderError, match=words):
            made.run(*batch)
        expect_same(before, twins.recorded.param_values())


OF_HAND = {
    "loaded": (lambda net, rule: rule.load_state_dict(rule.state_dict()), "optimizer"),
    "update": (
        lambda net, rule: setattr(rule, "update", rule.update), "'update' of the SGD was assigned"),
    "_rule": (
        lambda net, rule: setattr(rule, "_rule", rule._rule), "'_rule' of the SGD was assigned"),
    "coefficient": (
        lambda net, rule: setattr(rule.regularizer, "coefficient", 0.2),
        "optimizer"),
    "read-only": (lambda net, rule: read_only(net), "read-only"),
    "method of the class": (lambda net, rule: None, "a method of Dropout was replaced"),
    # Hyper-parameters are asked anew at each step.
    "hyper-parameters": (lambda net, rule: vars(rule).update(lr=0.2, momentum=0.5), None),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_HAND)
def test_changed_optimizers_and_methods_are_refused_by_a_program_of_hand(name, monkeypatch):
    change, words = OF_HAND[name]
    twins, made = by_hand(rule=lambda: SGD(0.1, 0.9, regularizer=kinds.L2Regularizer(0.1)))
    x, y = IMAGES.batches(1, 8)[0]
    run(twins, made, x, y)
    twins.both(change)
    if name == "method of the class":
        whole = Dropout.forward
        monkeypatch.setattr(Dropout, "forward", lambda self, ctx, x: whole(self, ctx, x))
    if words is None:
        run(twins, made, x, y)
    else:
        expect_refused(twins, made, (x, y), words)
    if name == "read-only":
        first(twins.recorded).value.flags.writeable = True
        first(twins.nets[1]).value.flags.writeable = True
        run(twins, made, x, y)
    elif name == "method of the class":
        monkeypatch.undo()
        run(twins, made, x, y)


def test_weights_of_losses_annealed_in_fit(placed, rng):
    class Annealed(Callback):
        def __init__(self, net):
            self.of = net

        def on_epoch_end(self, epoch, logs):
            self.of.loss.weights = {"kind": 1 / (2 + epoch), "size": 0.5 * epoch}

    twins, (x, y) = Twins(lambda: placed(two_headed_net()), adam), HEADS.batch(rng)
    for net, rule in zip(twins.nets, twins.optimizers, strict=True):
        net.compile(rule)
        net.fit(x, y, 2, 5, callbacks=[Annealed(net)], shuffle=False, verbose=False)
    twins.expect_equal()


# -- optimizers -----------------------------------------------------------------------------


def of_rule(name, value, of=lambda rule: rule):
    return lambda rule: setattr(of(rule), name, value)


def regularizer(rule):
    return rule.regularizer


def registered(**more):
    def change(rule):
        for spec in chain().param_specs():
            rule.register(spec.name, dataclasses.replace(spec, **more))

    return change


def counted(rule):
    """Replace a method of the regularizer by one that counts."""
    inner, calls = rule.regularizer.add, [0]

    def add(xp, value, grad, coefficient, out):
        calls[0] += 1
        inner(xp, value, grad, coefficient * calls[0], out)

    rule.regularizer.add = add


def halved(rule):
    inner = rule.update
    rule.update = lambda names, values, grads, scale=1.0: inner(names, values, grads, scale / 2)


OF_RULES = {
    "nesterov": of_rule("nesterov", False),
    "momentum": of_rule("momentum", 0.5),
    "rate": of_rule("lr", 0.5),
    "schedule": of_rule("lr", lambda step: 0.3 / (1 + step)),
    "centre": of_rule("centre", 0.7, regularizer),
    "coefficient": of_rule("coefficient", 0.4, regularizer),
    "no coefficient": of_rule("coefficient", 0.0, regularizer),
    "coefficients": of_rule("coefficient", lambda step: 0.1 * step, regularizer),
    "regularizer": of_rule("regularizer", kinds.L2Regularizer(0.5)),
    "constraint": of_rule("threshold", 0.2, lambda rule: rule.constraint),
    # A rule of an instance: the momentum is let alone.
    "rule": of_rule("_rule", lambda xp, w, g, arrays, s, *n: xp.subtract(w, g, out=w)),
    "bounds": registered(constraint=MaxNorm(0.1)),
    "multipliers": registered(lr_mult=0.25, decay_mult=3.0),
    "counted": counted,
    "halved": halved,
}


@pytest.mark.parametrize("kind", ["step", "fit"])
@pytest.mark.parametrize("name", OF_RULES)
def test_settings_changed_between_steps_are_those_of_the_next(name, kind, placed, rng):
    def make():
        regularizer, constraint = Pulled(0.1), MaxNorm(2.0)
        return SGD(0.1, 0.9, nesterov=True, regularizer=regularizer, constraint=constraint)

    def go(count):
        for x, y in CHAIN.batches(count, 4):
            for pair in (twins, still):
                pair.step(x, y) if kind == "step" else pair.fit(x, y, 2, shuffle=False)

    twins, still = (Twins(lambda: placed(chain()), make) for _ in range(2))
    go(4 if kind == "step" else 1)
    for rule in twins.optimizers:
        OF_RULES[name](rule)
    go(7 if kind == "step" else 2)
    # What counts by itself looks like a change at every step.
    if name != "counted":
        twins.expect_recorded()
    changed, kept = (pair.recorded.param_values()[0] for pair in (twins, still))
    assert not np.array_equal(changed, kept)


def test_a_regularizer_of_one_parameter(placed):
    def make():
        specs = {"regularizer": Pulled(0.2)}
        layers = [Dense("one", 6, input_sample_shape=(5,), W_specs=specs), Dense("out", 3)]
        return placed(FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=2))

    twins = Twins(make, lambda: Adam(lr=0.1))
    twins.train(CHAIN.batches(4))
    twins.both(lambda net, _: setattr(param(net, "one/weight").spec.regularizer, "centre", -1.0))
    twins.train(CHAIN.batches(5))


# -- steps like the last one take a short cut -----------------------------------------------


def test_several_inputs_in_another_order(rng):
    twins = Twins(two_headed_net, sgd)
    x, y = HEADS.batch(rng)
    twins.train([(x, y)] * 4)
    twins.step({"numbers": x["numbers"] + 1, "images": x["images"]}, y)
    twins.step({**x, "numbers": x["numbers"].astype(np.float64)}, y)
    twins.step(x, y)


def test_facts_that_arrays_have_in_common():
    x, y = CHAIN.batches(1)[0]
    assert facts(x + 1) == facts(x) == facts_of_feed({"x": x})
    assert facts({"x": x, "y": y}) == facts({"y": y, "x": x}) == facts_of_feed({"x": x, "y": y})
    for other in (x[:2], x.astype(np.float64), np.asfortranarray(x), x.view(np.matrix), x.tolist()):
        assert facts(other) != facts(x)
    assert facts({"x": x}) != facts({"z": x})
    assert facts_of_feed({"x": [x, x]}) not in (facts([x, x]), facts_of_feed({"x": [x, x[:2]]}))


def test_another_thread_has_programs_of_its_own():
    twins, data = Twins(chain, sgd), CHAIN.batches(4)
    twins.train(data)
    in_threads(lambda: twins.train(data))
    assert len(twins.recorded.programs.reports()) == 2
    twins.train(data)


def test_a_forward_waiting_for_its_backward_is_let_go():
    twins = Twins(chain, sgd)
    for x, y in CHAIN.batches(6):
        twins.forward(True, x)
        twins.step(x, y)
        assert twins.recorded._pass is None
