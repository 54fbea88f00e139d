"""The caller's own loop over a program: the same promises as by the layers."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import singanet
from singanet import Input
from singanet.errors import CallOrderError, ShapeError
from singanet.layers import (
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Layer,
    Split,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.types import RowSparse
from tests.program.twins import Twins, expect_items_same, expect_same


class Offset(Layer):
    """y = x + the largest of x, by a class that does not say that it is pure."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x + np.float32(x.max())

    def backward(self, ctx, dy):
        dx = dy.copy()
        dx.flat[int(ctx.saved["x"].argmax())] += dy.sum()
        return dx, {}


def image_net(python_step=False):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=3)
    net.add(Conv2D("conv", 4, 3, input_sample_shape=(2, 6, 6)))
    net.add(BatchNormalization("norm"))
    net.add(Activation("relu"))
    net.add(Dropout("drop", 0.3))
    if python_step:
        net.add(Offset("offset"))
    net.add(Flatten("flat"))
    net.add(Dense("out", 5))
    return net


def python_net():
    return image_net(python_step=True)


def two_headed_net():
    x = Input("x", (6,))
    h = Dropout("drop", 0.3)(Dense("body", 6)(x))
    first, second = Split("split", 2)(h)
    outs = [Dense("kind", 4)(Activation("tanh", "tanh")(first)), Dense("size", 1)(second)]
    return singanet.FeedForwardNet(inputs=x, outputs=outs, seed=1)


def word_net():
    net = singanet.FeedForwardNet(seed=1)
    net.add(Embedding("words", 11, 4, input_sample_shape=(5,)))
    net.add(Flatten("flat"))
    net.add(Dense("out", 3))
    return net


def inputs(rng, batch=4):
    return rng.standard_normal((batch, 2, 6, 6)).astype(np.float32)


def gradient(rng, batch=4):
    return rng.standard_normal((batch, 5)).astype(np.float32)


def rounds(twins, rng, count=4, walk=True):
    for _ in range(count):
        twins.forward(True, inputs(rng))
        if walk:
            twins.walk(gradient(rng))
    twins.expect_equal()


def test_loops_of_the_caller_are_recorded(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 5)
    assert twins.expect_recorded() == []


def test_loops_over_layers_in_python_run_by_the_layers(rng):
    twins = Twins(python_net)
    rounds(twins, rng, 5)
    assert twins.recorded.programs.reports() == []
    assert "a caller's loop over layer 'offset'" in twins.recorded.programs.refusals[0]


def test_updates_between_the_yields(rng):
    twins = Twins(image_net, lambda: SGD(lr=0.1, momentum=0.9))
    for _ in range(5):
        twins.forward(True, inputs(rng))
        dy = gradient(rng)
        for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            for item in net.backward(dy):
                optimizer.update(*item)
        twins.expect_equal()
    twins.expect_recorded()


def test_values_are_the_live_arrays(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    net = twins.recorded
    net.forward(True, inputs(rng))
    live = dict(zip(net.param_names(), net.param_values(), strict=True))
    for names, values, _ in net.backward(gradient(rng)):
        assert all(live[name] is value for name, value in zip(names, values, strict=True))


@pytest.mark.parametrize("make", [image_net, python_net])
def test_gradients_that_the_caller_keeps_stay_right(make, rng):
    twins = Twins(make)
    rounds(twins, rng, 3)
    twins.forward(True, inputs(rng))
    dy = gradient(rng)
    kept = [list(net.backward(dy)) for net in twins.nets]
    copies = [[[grad.copy() for grad in item.grads] for item in items] for items in kept]
    rounds(twins, rng, 2)
    for items, before in zip(kept, copies, strict=True):
        expect_same([item.grads for item in items], before)
    for one, two in zip(*kept, strict=True):
        expect_items_same(one, two)


def test_gradients_are_let_go_one_layer_after_the_other(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    net = twins.recorded
    net.forward(True, inputs(rng))
    before = []
    for item in net.backward(gradient(rng)):
        assert all(grad() is None for grad in before)
        before = [weakref.ref(grad) for grad in item.grads]
        del item


def test_outputs_that_the_caller_keeps_stay_right(rng):
    twins = Twins(image_net)
    outs = [twins.forward(True, inputs(rng)) for _ in range(5)]
    for one, two in outs:
        np.testing.assert_array_equal(one, two)


def test_the_callers_arrays_are_left_alone(rng):
    twins = Twins(image_net)
    for _ in range(4):
        x, dy = inputs(rng), gradient(rng)
        copies = x.copy(), dy.copy()
        twins.forward(True, x)
        twins.walk(dy)
        expect_same((x, dy), copies)


def test_inputs_changed_before_the_walk_do_not_matter(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    twins = twins.recorded, twins.nets[1]
    x, dy = inputs(rng), gradient(rng)
    items = []
    for net in twins:
        given = x.copy()
        net.forward(True, given)
        # By the layers the input is kept as it is, so that only the program is told otherwise.
        if net.programs.enabled:
            given[...] = 0
        items.append(list(net.backward(dy)))
    for one, two in zip(*items, strict=True):
        expect_items_same(one, two)


def test_gradients_of_inner_layers_run_by_the_layers(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    for _ in range(3):
        twins.forward(True, inputs(rng))
        items = twins.walk(gradient(rng), output=["relu", "conv"])
        assert items[-1].output_grads.keys() == {"relu", "conv"}
    rounds(twins, rng, 2)


def test_inner_outputs_run_by_the_layers(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    for _ in range(3):
        outs = twins.forward(True, inputs(rng), output=["relu"])[0]
        assert outs.keys() == {"out", "relu"}
        twins.walk({"out": gradient(rng)})
    rounds(twins, rng, 2)


def test_a_walk_from_some_outputs_only(rng):
    twins = Twins(two_headed_net)
    for number in range(6):
        twins.forward(True, rng.standard_normal((4, 6)).astype(np.float32))
        dy = {
            "kind": rng.standard_normal((4, 4)).astype(np.float32),
            "size": rng.standard_normal((4, 1)).astype(np.float32),
        }
        if number == 4:
            del dy["size"]
        twins.walk(dy)
    twins.expect_equal()
    twins.expect_recorded()


def test_rows_of_tables(rng):
    twins = Twins(word_net)
    for _ in range(5):
        twins.forward(True, rng.integers(0, 11, (4, 5)))
        items = twins.walk(rng.standard_normal((4, 3)).astype(np.float32))
        assert isinstance(items[-1].grads[0], RowSparse)
    twins.expect_recorded()


@pytest.mark.parametrize("order", ["C", "F", "reversed"])
def test_gradients_in_any_layout(order, rng):
    twins = Twins(image_net)
    for _ in range(5):
        twins.forward(True, inputs(rng))
        dy = gradient(rng)
        twins.walk(dy[:, ::-1] if order == "reversed" else np.asarray(dy, order=order))
    twins.expect_recorded()


def test_layouts_of_gradients_that_change(rng):
    twins = Twins(image_net)
    for number in range(6):
        twins.forward(True, inputs(rng))
        twins.walk(np.asarray(gradient(rng), order="CF"[number % 2]))


@pytest.mark.parametrize("make", [image_net, python_net])
def test_a_walk_closed_early_leaves_the_net_usable(make, rng):
    twins = Twins(make)
    rounds(twins, rng, 3)
    for count in (0, 1, 3):
        twins.forward(True, inputs(rng))
        dy = gradient(rng)
        for net in twins.nets:
            walk = net.backward(dy)
            for _ in range(count):
                next(walk)
            walk.close()
        rounds(twins, rng, 2)


@pytest.mark.parametrize("make", [image_net, python_net])
@pytest.mark.parametrize("between", ["forward", "walk", "evaluation", "other shape"])
def test_a_walk_left_half_way_goes_on_after_others(make, between, rng):
    twins = Twins(make)
    rounds(twins, rng, 3)
    for _ in range(3):
        twins.forward(True, inputs(rng))
        dy = gradient(rng)
        walks = [net.backward(dy) for net in twins.nets]
        items = [[next(walk) for walk in walks]]
        if between == "evaluation":
            twins.forward(False, inputs(rng))
        else:
            batch = 3 if between == "other shape" else 4
            twins.forward(True, inputs(rng, batch))
            if between != "forward":
                twins.walk(gradient(rng, batch))
        items += zip(*walks, strict=True)
        for one, two in items:
            expect_items_same(one, two)
        twins.expect_equal()


def test_a_forward_whose_backward_never_comes(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    rounds(twins, rng, 3, walk=False)
    rounds(twins, rng, 2)


def test_a_step_between_forward_and_backward_takes_the_forward_away(rng):
    twins = Twins(image_net, lambda: SGD(lr=0.1))
    rounds(twins, rng, 3)
    for _ in range(4):
        twins.forward(True, inputs(rng))
        twins.step(inputs(rng), rng.integers(0, 5, 4))
        for net in twins.nets:
            with pytest.raises(CallOrderError):
                net.backward(gradient(rng))


def test_an_evaluation_between_takes_the_forward_away(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    twins.forward(True, inputs(rng))
    twins.forward(False, inputs(rng))
    for net in twins.nets:
        with pytest.raises(CallOrderError):
            net.backward(gradient(rng))


def test_backward_twice_and_wrong_gradients_are_refused(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    for net in twins.nets:
        x = inputs(np.random.default_rng(1))
        net.forward(True, x)
        with pytest.raises(ShapeError, match="'out'"):
            net.backward(gradient(rng)[:, :3])
        assert len(list(net.backward(gradient(np.random.default_rng(2))))) > 0
        with pytest.raises(CallOrderError):
            net.backward(gradient(rng))
    twins.expect_equal()


def test_parameters_changed_between_forward_and_backward(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    twins.forward(True, inputs(rng))
    for net in twins.nets:
        net.params()[-1].trainable = False
    items = twins.walk(gradient(rng))
    assert items[0].names == ["out/weight"]
    rounds(twins, rng, 3)


def test_a_frozen_layer_between_forward_and_backward(rng):
    twins = Twins(image_net)
    rounds(twins, rng, 3)
    for net in twins.nets:
        net.freeze("flat")
    rounds(twins, rng, 4)
    assert [item.names for item in _walked(twins, rng)] == [["out/weight", "out/bias"]]


def _walked(twins, rng):
    twins.forward(True, inputs(rng))
    return [item for item in twins.walk(gradient(rng)) if item.names]


def test_train_gives_all_gradients(rng):
    twins = Twins(image_net)
    for _ in range(5):
        x, y = inputs(rng), rng.integers(0, 5, 4)
        one, two = (net.train(x, y) for net in twins.nets)
        assert one[1] == two[1]
        for a, b in zip(one[0], two[0], strict=True):
            assert (a is None) == (b is None)
            assert a is None or np.array_equal(a, b)
    twins.expect_recorded()


def test_a_net_with_programs_is_let_go(rng):
    net = image_net()
    for _ in range(4):
        net.forward(True, inputs(rng))
        list(net.backward(gradient(rng)))
        net.step(inputs(rng), rng.integers(0, 5, 4), SGD(lr=0.1))
    seen = weakref.ref(net)
    gc.collect()
    gc.disable()
    try:
        del net
        assert seen() is None
    finally:
        gc.enable()
