"""What users write keeps, changes and overrides arrays: a recorded step is as one by the layers.

The numbers are those of the findings that the tests come from.
"""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet import Input
from singanet.layers import (
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Embedding,
    Flatten,
)
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Adam

from .twins import Twins, expect_same
from .user_parts import (
    Alike,
    ClippedNet,
    EmptiesLists,
    Gathered,
    KeepsGradients,
    Probe,
    ScaledNet,
    Weighed,
    WritesGradients,
    expect_kept,
    times,
)


def sgd():
    return SGD(lr=0.1, momentum=0.9)


def chain(*parts, loss=SoftmaxCrossEntropy, metric=None, kind=singanet.FeedForwardNet):
    """Dense layers of 6, 7 and 3 units, with the layers that ``parts`` make before the last."""
    net = kind(loss(), None if metric is None else metric(), seed=2)
    net.add(Dense("one", 6, input_sample_shape=(5,)))
    net.add(Activation("tanh", "tanh"))
    net.add(Dense("two", 7))
    net.add(Activation("relu"))
    for part in parts:
        net.add(part())
    net.add(Dense("out", 3))
    return net


def image_net():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=3)
    net.add(Conv2D("conv", 4, 3, input_sample_shape=(2, 6, 6)))
    net.add(BatchNormalization("norm"))
    net.add(Activation("relu"))
    net.add(Flatten("flat"))
    net.add(Dense("out", 3))
    return net


def word_net():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    net.add(Embedding("words", 11, 4, input_sample_shape=(5,)))
    net.add(Flatten("flat"))
    net.add(Dense("out", 3))
    return net


def batches(count, shape=(5,), batch=4, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        x = rng.standard_normal((batch, *shape)).astype(np.float32)
        yield x, rng.integers(0, 3, batch)


def real_batches(count, seed=0):
    rng = np.random.default_rng(seed)
    for x, _ in batches(count, seed=seed):
        yield x, rng.standard_normal((len(x), 3)).astype(np.float32)


# -- optimizers (01) ------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "shape"), [(chain, (5,)), (image_net, (2, 6, 6))])
def test_an_optimizer_may_keep_the_gradients_of_a_step(make, shape, placed):
    twins = Twins(lambda: placed(make()), lambda: KeepsGradients(sgd()))
    for x, y in batches(6, shape):
        twins.both(lambda net, optimizer, x=x, y=y: net.step(x, y, optimizer))
        twins.both(lambda _, optimizer: optimizer.finish())
        twins.expect_equal()


def test_an_optimizer_may_keep_rows_of_tables(placed, rng):
    twins = Twins(lambda: placed(word_net()), lambda: KeepsGradients(Adam(lr=0.1)))
    for _ in range(6):
        x, y = rng.integers(0, 11, (4, 5)), rng.integers(0, 3, 4)
        twins.both(lambda net, optimizer, x=x, y=y: net.step(x, y, optimizer))
        twins.both(lambda _, optimizer: optimizer.finish())
        twins.expect_equal()


def test_gradients_kept_over_steps_stay_as_they_were(placed):
    twins = Twins(lambda: placed(chain()), lambda: KeepsGradients(sgd()))
    for number, (x, y) in enumerate(batches(8)):
        twins.both(lambda net, optimizer, x=x, y=y: net.step(x, y, optimizer))
        if number % 2:
            twins.both(lambda _, optimizer: optimizer.finish())
        twins.expect_equal()


def test_an_optimizer_may_write_into_the_gradients(placed):
    twins = Twins(lambda: placed(image_net()), lambda: WritesGradients(sgd()))
    for x, y in batches(6, (2, 6, 6)):
        twins.step(x, y)


def test_an_optimizer_that_keeps_gradients_in_fit(placed):
    """The step's end is the beginning of the next one, as an optimizer alone can tell."""

    class AtTheNextStep(KeepsGradients):
        def update(self, names, values, grads, scale=1.0):
            if any(name == kept[0] for name in names for kept in self.kept):
                self.finish()
            super().update(names, values, grads, scale)

    twins = Twins(lambda: placed(chain()), lambda: AtTheNextStep(sgd()))
    (x, y) = next(batches(1, batch=24))

    def fit(net, optimizer):
        net.compile(optimizer)
        return net.fit(x, y, batch_size=4, epochs=2, verbose=False)["loss"]

    one, two = twins.both(fit)
    assert one == two
    twins.expect_equal()


# -- metrics and measures (02) --------------------------------------------------------------


def test_a_metric_that_keeps_outputs_tells_fit_the_truth(placed):
    twins = Twins(lambda: placed(chain()), sgd)
    (x, y) = next(batches(1, batch=40))

    def fit(net, optimizer):
        net.compile(optimizer, metrics={"kept": Gathered(), "plain": Accuracy()})
        return net.fit(x, y, batch_size=8, epochs=3, verbose=False)

    one, two = twins.both(fit)
    for history in (one, two):
        np.testing.assert_allclose(history["kept"], history["plain"], rtol=1e-6)
    assert one["kept"] == two["kept"]
    assert one["loss"] == two["loss"]


def test_a_measure_may_keep_outputs_and_targets(placed):
    twins, kept = Twins(lambda: placed(chain()), sgd), []

    def keep(out, y):
        kept.extend([(out, out.copy()), (y, y.copy())])
        return float(out[0, 0])

    for x, y in batches(6):
        twins.step(x, y, measure=keep)
    expect_kept(kept)


def test_a_measure_may_write_into_outputs(placed):
    """By the layers the gradient is worked out of what the loss kept before."""
    twins = Twins(lambda: placed(chain(loss=SquaredError)), sgd)

    def write(out, y):
        out[...] = 0
        return 1.0

    for x, y in real_batches(6):
        twins.step(x, y, measure=write)


def test_a_metric_of_the_net_may_keep_outputs(placed):
    class Hoards(Accuracy):
        def __init__(self):
            super().__init__()
            self.kept = []

        def evaluate(self, x, y):
            self.kept += [(x, x.copy()), (y, y.copy())]
            return super().evaluate(x, y)

    twins = Twins(lambda: placed(chain(metric=Hoards)), sgd)
    for x, y in batches(6):
        twins.step(x, y)
    expect_kept(twins.recorded.metric.kept)


# -- overridden methods of nets (04) --------------------------------------------------------


@pytest.mark.parametrize("kind", [ClippedNet, ScaledNet])
def test_an_overridden_pass_is_obeyed_at_every_step(kind, placed):
    twins = Twins(lambda: placed(chain(kind=kind)), sgd)
    plain = placed(chain())
    steps = [(twins.step(x, y)[0], plain.step(x, y, sgd())[0]) for x, y in batches(6)]
    assert any(one != two for one, two in steps)


@pytest.mark.parametrize("kind", [ClippedNet, ScaledNet])
def test_an_overridden_pass_is_obeyed_by_fit_and_predict(kind, placed):
    twins = Twins(lambda: placed(chain(kind=kind)), sgd)
    x, y = next(batches(1, batch=24))

    def fit(net, optimizer):
        net.compile(optimizer)
        losses = net.fit(x, y, batch_size=4, epochs=2, verbose=False)["loss"]
        return losses, [net.evaluate(x, y) for _ in range(4)], [net.predict(x) for _ in range(4)]

    one, two = twins.both(fit)
    assert one[:2] == two[:2]
    expect_same(one[2], two[2])
    twins.expect_equal()


@pytest.mark.parametrize("method", ["forward", "backward"])
def test_a_pass_overridden_on_the_instance_or_later_on_the_class(method, placed, monkeypatch):
    class Mine(singanet.FeedForwardNet):
        """Nothing of its own yet."""

    twins = Twins(lambda: placed(chain(kind=Mine)), sgd)
    data = list(batches(12))
    for x, y in data[:4]:
        twins.step(x, y)

    def patch(net, _):
        inner = getattr(net, method)

        def doubled(*given):
            if method == "forward":
                return inner(given[0], times(2, given[1]), *given[2:])
            return inner(times(2, given[0]), *given[1:])

        setattr(net, method, doubled)

    twins.both(patch)
    for x, y in data[4:8]:
        twins.step(x, y)
    twins.both(lambda net, _: delattr(net, method))
    inner = getattr(singanet.FeedForwardNet, method)
    if method == "forward":
        later = lambda net, flag, x, output=(): inner(net, flag, times(3, x), output)  # noqa: E731
    else:
        later = lambda net, dy, output=(): inner(net, times(3, dy), output)  # noqa: E731
    monkeypatch.setattr(Mine, method, later, raising=False)
    for x, y in data[8:]:
        twins.step(x, y)


# -- methods replaced on instances (05) -----------------------------------------------------


class PureTwice(SGD):
    """A rule that says it is pure, with an update of its own."""

    pure = True

    def update(self, names, values, grads, scale=1.0):
        super().update(names, values, [2 * grad for grad in grads], scale)


def test_an_update_of_a_pure_optimizer_s_own_is_called():
    """Programs recorded the rule, and the gradients were not doubled."""
    twins = Twins(chain, lambda: PureTwice(lr=0.1, momentum=0.9))
    x, y = np.ones((4, 5), np.float32), np.arange(4) % 3
    for _ in range(3):
        twins.step(x, y)
    assert any("an update of its own" in note for note in twins.recorded.programs.notes)


@pytest.mark.parametrize("after", [0, 4])
def test_a_replaced_update_of_the_optimizer_is_called(after, placed):
    calls = []

    def patch(_, optimizer):
        inner = optimizer.update

        def halved(names, values, grads, scale=1.0):
            calls.append(optimizer)
            inner(names, values, [np.float32(0.5) * grad for grad in grads], scale)

        optimizer.update = halved

    twins = Twins(lambda: placed(chain()), sgd)
    for number, (x, y) in enumerate(batches(8)):
        if number == after:
            twins.both(patch)
        twins.step(x, y)
    assert [calls.count(optimizer) for optimizer in twins.optimizers] == [
        len(calls) // 2, len(calls) // 2]  # fmt: skip
    # Once a layer of the walk, with or without parameters of its own.
    assert len(calls) >= 2 * 3 * (8 - after)


@pytest.mark.parametrize("method", ["forward", "backward"])
@pytest.mark.parametrize("name", ["two", "relu"])
def test_a_replaced_method_of_a_layer_is_called(method, name, placed):
    """A number that the replacement counts is not what it was when the step was recorded."""
    calls = []

    def patch(net, _):
        layer = next(layer for layer in net.layers if layer.name == name)
        inner = getattr(layer, method)
        count = [0]

        def scaled(ctx, array):
            calls.append(net)
            count[0] += 1
            made = inner(ctx, array)
            factor = np.float32(1 + count[0] / 10)
            return made * factor if method == "forward" else (made[0] * factor, made[1])

        setattr(layer, method, scaled)

    twins = Twins(lambda: placed(chain()), sgd)
    for number, (x, y) in enumerate(batches(10)):
        if number == 4:
            twins.both(patch)
        twins.step(x, y)
    assert [calls.count(net) for net in twins.nets] == [6, 6]


@pytest.mark.parametrize(("of", "method"), [("loss", "forward"), ("metric", "evaluate")])
def test_a_replaced_method_of_loss_or_metric_is_called(of, method, placed):
    calls = []

    def patch(net, _):
        part = getattr(net, of)
        inner = getattr(part, method)

        def doubled(*given):
            calls.append(net)
            return inner(*given) * 2

        setattr(part, method, doubled)

    twins = Twins(lambda: placed(chain(metric=Accuracy)), sgd)
    for number, (x, y) in enumerate(batches(9)):
        if number == 4:
            twins.both(patch)
        twins.step(x, y)
    assert [calls.count(net) for net in twins.nets] == [5, 5]


def test_a_parameter_tied_through_the_layers_dict(placed):
    def make():
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=2)
        net.add(Dense("one", 5, input_sample_shape=(5,)))
        net.add(Activation("tanh", "tanh"))
        net.add(Dense("two", 5))
        net.add(Dense("out", 3))
        return placed(net)

    twins = Twins(make, sgd)
    for number, (x, y) in enumerate(batches(10)):
        if number == 4:
            for net in twins.nets:
                one, two = (layer for layer in net.layers if layer.name in ("one", "two"))
                two.params["weight"] = one.params["weight"]
        twins.step(x, y)
        twins.forward(False, x)


# -- arrays that layers and losses keep (06) ------------------------------------------------


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_layer_may_keep_its_arrays(where, placed):
    def make():
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=2)
        for name in ("first", "middle", "last"):
            if name == where:
                net.add(Probe("probe", input_sample_shape=(5,) if name == "first" else None))
            net.add(Dense(name, 3 if name == "last" else 5, input_sample_shape=(
                (5,) if name == "first" and where != "first" else None)))  # fmt: skip
        if where == "last":
            net.add(Activation("tanh", "tanh"))
            net.add(Probe("end"))
        return placed(net)

    twins = Twins(make, sgd)
    for x, y in batches(6):
        twins.step(x, y)
        probes = [layer for layer in twins.recorded.layers if isinstance(layer, Probe)]
        for probe in probes:
            # Right after the step, and over the steps.
            expect_kept(probe.seen[-3:])
            expect_kept(probe.seen)
    for one, two in zip(*(net.layers for net in twins.nets), strict=True):
        if isinstance(one, Probe):
            expect_same([copy for _, copy in one.seen], [copy for _, copy in two.seen])


def test_a_layer_may_keep_its_arrays_in_the_callers_loop(placed, rng):
    twins = Twins(lambda: placed(chain(lambda: Probe("probe"))))
    for x, _ in batches(6):
        twins.forward(True, x)
        twins.walk(rng.standard_normal((4, 3)).astype(np.float32))
        twins.forward(False, x)
        for net in twins.nets:
            expect_kept(next(layer for layer in net.layers if isinstance(layer, Probe)).seen)


def test_a_layer_may_write_into_its_input_and_gradient(placed):
    class InPlace(Alike):
        """y = x², by a layer that works where its own copies of arrays are."""

        def forward(self, ctx, x):
            ctx.save(x=x.copy())
            x *= x
            return x

        def backward(self, ctx, dy):
            return 2 * ctx.saved["x"] * dy, {}

    # After a dense layer whose output nobody else reads.
    def make():
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=2)
        net.add(Dense("one", 5, input_sample_shape=(5,)))
        net.add(InPlace("square"))
        net.add(Dense("out", 3))
        return placed(net)

    twins = Twins(make, sgd)
    for x, y in batches(6):
        twins.step(x, y)


def test_a_loss_may_keep_outputs_and_targets(placed):
    twins = Twins(lambda: placed(chain(loss=Weighed)), sgd)
    for x, y in real_batches(6):
        twins.step(x, y)
        for net in twins.nets:
            expect_kept(net.loss.seen)


def test_a_layer_between_branches_may_keep_its_arrays(placed):
    def make():
        x = Input("x", (5,))
        h = Dense("in", 5)(x)
        both = singanet.layers.Add("sum")(Probe("left")(h), Probe("right")(Activation("r")(h)))
        out = Dense("out", 3)(both)
        return placed(singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=out, seed=1))

    twins = Twins(make, sgd)
    for x, y in batches(6):
        twins.step(x, y)
        for layer in twins.recorded.layers:
            if isinstance(layer, Probe):
                expect_kept(layer.seen)


# -- the lists of a walk's items (07) -------------------------------------------------------


def empty(names, values, grads, optimizer):
    while names:
        optimizer.update([names.pop()], [values.pop()], [grads.pop()])


def turn(names, values, grads, optimizer):
    for part in (names, values, grads):
        part.reverse()
    optimizer.update(names, values, grads)


def drop_first(names, values, grads, optimizer):
    for part in (names, values, grads):
        del part[:1]
    optimizer.update(names, values, grads)


@pytest.mark.parametrize("use", [empty, turn, drop_first])
def test_lists_of_an_item_are_the_callers(use, placed, rng):
    twins = Twins(lambda: placed(image_net()), sgd)
    before = [value.copy() for value in twins.recorded.param_values()]
    for x, _ in batches(6, (2, 6, 6)):
        dy = rng.standard_normal((4, 3)).astype(np.float32)
        twins.forward(True, x)
        for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            for names, values, grads in net.backward(dy):
                use(names, values, grads, optimizer)
        twins.expect_equal()
        after = [value.copy() for value in twins.recorded.param_values()]
        assert any((old != new).any() for old, new in zip(before, after, strict=True))
        before = after


def test_on_layer_may_take_parameters_out_of_an_item(placed):
    def without_biases(item):
        for k in reversed(range(len(item.names))):
            if item.names[k].endswith("bias"):
                for part in item[:3]:
                    del part[k]

    twins = Twins(lambda: placed(chain()), sgd)
    for x, y in batches(6):
        twins.step(x, y, on_layer=without_biases)
        twins.step(x, y)


def test_an_optimizer_may_empty_the_lists_it_is_handed(placed):
    twins = Twins(lambda: placed(image_net()), lambda: EmptiesLists(sgd()))
    for x, y in batches(6, (2, 6, 6)):
        twins.step(x, y)


# -- layers that say that they are pure (16) ------------------------------------------------


def mean_as_number(x):
    return x - np.float32(x.mean())


def largest_as_number(x):
    return x - x.dtype.type(float(x.max()))


def drawn_number(x):
    return x * np.float32(0.5 + np.random.rand())


def written_by_nditer(x):
    y = np.zeros_like(x)
    with np.nditer([x, y], op_flags=[["readonly"], ["readwrite"]]) as places:
        for a, b in places:
            b[...] = 3 * a
    return y


def scaled_by_ldexp(x):
    return np.ldexp(x, 2)


def scaled_by_ldexp_of_array(x):
    return np.ldexp(x, np.array([1, 0, 2, 1, 0, 2, 1]))


def at_largest(x):
    return x * np.float32(int(x.argmax()))


PURE = [
    mean_as_number, largest_as_number, drawn_number, written_by_nditer, scaled_by_ldexp,
    scaled_by_ldexp_of_array, at_largest,
]  # fmt: skip


@pytest.mark.parametrize("function", PURE)
def test_expressions_of_pure_layers(function, placed):
    class Pure(Alike):
        pure = True

        def forward(self, ctx, x):
            return function(x)

        def backward(self, ctx, dy):
            return 2 * dy, {}

    twins = Twins(lambda: placed(chain(lambda: Pure("pure"))), sgd)
    for number, (x, y) in enumerate(batches(6)):
        results = []
        for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            np.random.seed(number)
            results.append((net.step(x, y, optimizer), net.forward(False, x)))
        assert results[0][0] == results[1][0]
        expect_same(results[0][1], results[1][1])
        twins.expect_equal()


OF_MODULE = np.random.default_rng(0)


@pytest.mark.parametrize("around", [False, True])
def test_recording_draws_nothing_from_a_generator_outside_of_a_layer(around):
    of_function = np.random.default_rng(0)
    drawn = of_function if around else OF_MODULE

    class Noisy(Alike):
        def forward(self, ctx, x):
            rng = of_function if around else OF_MODULE
            return x + np.float32(rng.random())

        def backward(self, ctx, dy):
            return dy, {}

    net, optimizer, alone = chain(lambda: Noisy("noisy")), sgd(), np.random.default_rng(0)
    for x, y in batches(4):
        net.step(x, y, optimizer)
        alone.random()
        assert drawn.bit_generator.state == alone.bit_generator.state
    assert "noisy" in net.programs.notes[0]
