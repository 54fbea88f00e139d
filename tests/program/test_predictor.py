"""Predictors: what they predict, what they hold and what they share, which is nothing."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import Input, models
from singanet.errors import ArgumentError, ShapeError, SingaNetError
from singanet.layers import (
    LSTM,
    Activation,
    Add,
    BatchNormalization,
    Concat,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    Flatten,
    GlobalAvgPooling1D,
    GlobalAvgPooling2D,
    Layer,
    MaxPooling2D,
    Permute,
)
from singanet.loss import SigmoidCrossEntropy, SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Adam
from singanet.program.prediction.compiled import CAPACITY
from singanet.program.prediction.constant import ConstantArray, numbered, order_of
from tests.interrupts import struck_at


def ops_of_cpu():
    return singanet.device.cpu().ops


def small_net(loss=None):
    net = singanet.FeedForwardNet(loss or SoftmaxCrossEntropy(), seed=1)
    net.add(Dense("one", 8, input_sample_shape=(5,)))
    net.add(Activation("relu"))
    net.add(Dense("two", 3))
    return net


def image_net(kind="float32"):
    """Every way in which a convolution goes on."""
    x = Input("x", (3, 12, 12))
    h = Activation("a1")(BatchNormalization("n1")(Conv2D("c1", 16, 3)(x)))
    left = BatchNormalization("n2")(Conv2D("c2", 16, 3, use_bias=False)(h))
    h = Activation("a2")(Add("s1")([left, h]))
    right = BatchNormalization("n3")(Conv2D("c3", 16, 1)(h))
    left = BatchNormalization("n4")(Conv2D("c4", 16, 3, groups=4)(h))
    h = Add("s2")([right, left])
    h = Activation("a3")(Conv2D("c5", 32, 3, stride=2)(h))
    h = Activation("a4", "tanh")(Conv2D("c6", 8, 3)(h))
    h = MaxPooling2D("p", 2, 2)(BatchNormalization("n5")(h))
    y = Dense("out", 4)(Flatten("f")(h))
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=2)
    net.as_type(kind)
    stir(net)
    return net


def stir(net):
    """Running statistics and scales as after a training."""
    rng = np.random.default_rng(5)
    for param in net.params():
        if param.name.endswith(("gamma", "var")):
            param.value[...] = rng.uniform(0.5, 2.0, param.shape)
        elif param.name.endswith(("beta", "mean", "bias")):
            param.value[...] = rng.normal(0.0, 0.3, param.shape)


def images(n=3, seed=0, kind=np.float32):
    return np.random.default_rng(seed).standard_normal((n, 3, 12, 12)).astype(kind)


def rows(n=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)


def by_layers(net, x):
    """What the net predicts with the parameters of now."""
    net.programs.enabled = False
    try:
        return net.predict(x)
    finally:
        net.programs.enabled = True


def close(got, wanted):
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * abs(wanted).max())


# -- what is predicted ----------------------------------------------------------------------


def test_a_convolution_with_another_border_keeps_it():
    """Folded, it would pad with zeros."""
    x = Input("x", (3, 12, 12))
    h = BatchNormalization("n")(Conv2D("c", 4, 3, padding_mode="reflect")(x))
    y = Dense("out", 4)(Flatten("f")(Activation("a")(h)))
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=2)
    stir(net)
    close(net.predictor()(images()), by_layers(net, images()))


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_predictions_are_those_of_the_net(batch):
    net = image_net()
    wanted = by_layers(net, images(batch))
    predictor = net.predictor()
    for _ in range(3):
        close(predictor(images(batch)), wanted)


def test_in_double_precision_only_rounding_differs():
    net = image_net("float64")
    x = images(2, kind=np.float64)
    np.testing.assert_allclose(net.predictor()(x), by_layers(net, x), rtol=1e-10, atol=1e-12)


def test_half_precision_is_widened():
    net = image_net()
    net.compile(SGD(lr=0.1), mixed_precision="float16")
    made = net.predictor()(images())
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, net.predict(images()), atol=2e-2)


def test_all_calls_give_the_same_bits():
    net = image_net()
    predictor = net.predictor()
    first, other, again = (predictor(images(2, seed)) for seed in (0, 1, 0))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(net.predictor()(images(2)), first)


def test_one_kernel_does_several_layers():
    net = image_net()
    before = {kernel.layer for kernel in net.record(images(2)).report().kernels}
    predictor = net.predictor()
    predictor(images(2))
    (report,) = predictor.reports()
    after = {kernel.layer for kernel in report.kernels}
    assert {"n1", "n2", "s1", "n3", "n4", "n5"} <= before
    assert {"c1", "c2", "c3", "c5"} <= after  # a convolution, for all that it does
    assert not {"n1", "a1", "n2", "s1", "a2", "n3", "n4", "s2", "a3"} & after


@pytest.mark.parametrize("name", ["resnet20", "preresnet20", "mobilenet", "googlenet"])
def test_ready_nets(name):
    net = models.build(name, seed=0)
    stir(net)
    shape = models.find(name).input_shape
    x = np.random.default_rng(0).standard_normal((2, *shape), np.float32)
    close(net.predictor()(x), by_layers(net, x))


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_convolutions(channels, multiplier):
    x = images(2) if channels == 3 else np.random.default_rng(0).standard_normal((2, 16, 12, 12))
    net = singanet.FeedForwardNet(seed=1)
    net.add(
        DepthwiseConv2D("d1", 3, depth_multiplier=multiplier, input_sample_shape=(channels, 12, 12))
    )
    net.add(BatchNormalization("n1"))
    net.add(Activation("a1"))
    net.add(DepthwiseConv2D("d2", 3, 2, use_bias=False))
    net.add(BatchNormalization("n2"))
    stir(net)
    close(net.predictor()(x), by_layers(net, x))


@pytest.mark.parametrize("W_transpose", [False, True])
def test_fully_connected_layers(W_transpose):
    net = singanet.FeedForwardNet(seed=1)
    net.add(Dense("one", 40, W_transpose=W_transpose, input_sample_shape=(5,)))
    net.add(Activation("a1"))
    net.add(Dense("two", 30, use_bias=False))
    net.add(Activation("a2", "sigmoid"))
    net.add(Dense("three", 3))
    net.add(Activation("a3"))
    close(net.predictor()(rows()), by_layers(net, rows()))


def test_words():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    net.add(Embedding("words", 11, 4, input_sample_shape=(5,)))
    net.add(LSTM("lstm", 6, return_sequences=False))
    net.add(Dense("out", 3))
    x = np.random.default_rng(0).integers(0, 11, (4, 5))
    close(net.predictor()(x), by_layers(net, x))


def test_a_layer_called_twice_has_two_weights_where_it_is_normalised_twice():
    x, conv = Input("x", (3, 6, 6)), Conv2D("c", 3, 3)
    h = BatchNormalization("n1")(conv(x))
    y = BatchNormalization("n2")(conv(Activation("a")(h)))
    net = singanet.FeedForwardNet(inputs=x, outputs=y, seed=1)
    stir(net)
    x = images()[:, :, :6, :6]
    close(net.predictor()(x), by_layers(net, x))


def test_nets_in_nets_that_share_parameters():
    tower = singanet.FeedForwardNet(
        [Conv2D("c", 4, 3, input_sample_shape=(3, 6, 6)), BatchNormalization("n")], name="tower"
    )
    a, b = Input("a", (3, 6, 6)), Input("b", (3, 6, 6))
    net = singanet.FeedForwardNet(inputs=[a, b], outputs=Add("s")([tower(a), tower(b)]), seed=1)
    stir(net)
    feed = {"a": images()[:, :, :6, :6], "b": images(seed=1)[:, :, :6, :6]}
    close(net.predictor()(feed), by_layers(net, feed))


@st.composite
def chains(draw):
    """A net of convolutions, normalisations, sums and relus in any order, some of them outputs."""
    x = Input("x", (draw(st.sampled_from([3, 16])), 6, 6))
    made, count = [x], draw(st.integers(1, 7))
    for k in range(count):
        source = made[draw(st.integers(max(0, len(made) - 3), len(made) - 1))]
        kind = draw(st.sampled_from(["conv", "conv", "norm", "relu", "sum", "depthwise", "drop"]))
        if kind == "conv":
            y = Conv2D(f"c{k}", 16, draw(st.sampled_from([1, 3])), use_bias=draw(st.booleans()))(
                source
            )
        elif kind == "depthwise":
            y = DepthwiseConv2D(f"d{k}", 3, use_bias=draw(st.booleans()))(source)
        elif kind == "norm":
            y = BatchNormalization(f"n{k}")(source)
        elif kind == "drop":
            y = Dropout(f"o{k}", 0.5)(source)
        elif kind == "sum" and len(made) > 2:
            other = made[draw(st.integers(1, len(made) - 1))]
            alike = other.shape == source.shape
            y = Add(f"s{k}")([source, other]) if alike else Activation(f"a{k}")(source)
        else:
            y = Activation(f"a{k}", draw(st.sampled_from(["relu", "tanh"])))(source)
        made.append(y)
    last = made[-1]
    inner = draw(st.sampled_from(made[1:]))
    outputs = [last] if inner is last or draw(st.booleans()) else [inner, last]
    net = singanet.FeedForwardNet(inputs=x, outputs=outputs, seed=draw(st.integers(0, 9)))
    stir(net)
    return net


@given(chains(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_any_net_predicts_as_its_layers_do(net, batch):
    shape = net.predictor().inputs["x"]
    x = np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
    wanted, predictor = by_layers(net, x), net.predictor()
    for made in (predictor(x), predictor(x)):
        if isinstance(wanted, dict):
            assert list(made) == list(wanted)
            for name in wanted:
                close(made[name], wanted[name])
        else:
            close(made, wanted)


def test_outputs_come_in_the_order_of_their_layers():
    """Whatever is folded: a normalisation is done where its convolution stands, which is first."""
    x = Input("x", (3, 6, 6))
    deep, relu = DepthwiseConv2D("d", 3)(x), Activation("a")(x)
    net = singanet.FeedForwardNet(inputs=x, outputs=[relu, BatchNormalization("n")(deep)], seed=1)
    stir(net)
    assert list(net.predictor()(images()[:, :, :6, :6])) == ["a", "n"]
    relu_last = singanet.FeedForwardNet(inputs=x, outputs=[relu, Activation("r")(deep)], seed=1)
    for flag in (True, False):
        assert list(relu_last.forward(flag, images()[:, :, :6, :6])) == ["a", "r"]


@pytest.mark.parametrize(
    ("shape", "kind"), [((16, 6, 6), "2D"), ((7, 9), "1D"), ((4, 40, 9), "2D")]
)
def test_means_of_all_positions(shape, kind):
    x = Input("x", shape)
    pool = {"1D": GlobalAvgPooling1D, "2D": GlobalAvgPooling2D}[kind]
    made = [pool("as it lies")(x)]
    if kind == "2D":
        made.append(pool("channels last")(Conv2D("c", 8, 3)(x)))
    else:
        made.append(pool("turned")(Permute("p", (2, 1))(x)))
    net = singanet.FeedForwardNet(inputs=x, outputs=made, seed=1)
    given = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    wanted, got = by_layers(net, given), net.predictor()(given)
    for name in wanted:
        close(got[name], wanted[name])


def sums(again):
    """A block whose shortcut is read by its sum, and after it as ``again`` says."""
    x = Input("x", (16, 6, 6))
    h = Conv2D("c0", 16, 3)(x)
    y = Add("s1")([Conv2D("c2", 16, 3)(Conv2D("c1", 16, 3)(h)), h])
    if again == "later":
        y = Add("s2")([Conv2D("c3", 16, 1)(Activation("a2")(y)), h])
    elif again == "by itself":
        y = Add("s2")([Conv2D("c3", 16, 1)(y), y])
    elif again == "the input":
        y = Add("s2")([Conv2D("c3", 16, 1)(y), x])
    outputs = [h, y] if again == "handed out" else y
    return singanet.FeedForwardNet(inputs=x, outputs=outputs, seed=4)


@pytest.mark.parametrize("again", ["never", "later", "by itself", "the input", "handed out"])
def test_a_sum_takes_the_memory_of_a_shortcut_that_nobody_needs(again):
    net = sums(again)
    x = np.random.default_rng(1).standard_normal((2, 16, 6, 6)).astype(np.float32)
    wanted, given, predictor = by_layers(net, x), x.copy(), net.predictor()
    kept = []
    for _ in range(3):
        made = predictor(x)
        for name in made if isinstance(made, dict) else [None]:
            close(*((made, wanted) if name is None else (made[name], wanted[name])))
        kept.append(made)
    np.testing.assert_array_equal(x, given)
    if again == "never":
        np.testing.assert_array_equal(kept[0], kept[2])


@pytest.mark.skipif(ops_of_cpu().name != "onednn", reason="NumPy adds in a call of its own")
def test_a_shortcut_is_copied_where_it_is_needed():
    def copies(again):
        predictor = sums(again).predictor()
        predictor(np.ones((2, 16, 6, 6), np.float32))
        (report,) = predictor.reports()
        pairs = {(kernel.reads, kernel.writes) for kernel in report.kernels
                 if kernel.name == "positive"}  # fmt: skip
        taken = set(report.layout.in_place)
        return sum((reads[0], writes[0]) not in taken for reads, writes in pairs)

    assert copies("never") == 0
    assert [copies(again) for again in ("later", "by itself", "handed out")] == [1, 1, 1]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_products_do_the_relu_after_them(layers, batch):
    net = singanet.FeedForwardNet(seed=3)
    for k, (size, bias, relu) in enumerate(layers):
        first = {"input_sample_shape": (7,)} if k == 0 else {}
        net.add(Dense(f"d{k}", size, use_bias=bias, **first))
        if relu:
            net.add(Activation(f"a{k}"))
    stir(net)
    x = np.random.default_rng(batch).standard_normal((batch, 7)).astype(np.float32)
    predictor = net.predictor()
    close(predictor(x), by_layers(net, x))
    x[-1, 3] = np.nan
    got, clean = predictor(x), by_layers(net, x)
    assert np.isnan(got[-1]).any()
    np.testing.assert_allclose(got[:-1], clean[:-1], rtol=0, atol=1e-5)


# -- NaN ------------------------------------------------------------------------------------


def test_nan_in_a_sample_shows_in_that_sample_alone():
    predictor = image_net().predictor()
    x = images(4)
    clean = predictor(x)
    x[2, 1, 5, 5] = np.nan
    got = predictor(x)
    assert np.isnan(got[2]).any()
    np.testing.assert_allclose(got[[0, 1, 3]], clean[[0, 1, 3]], atol=1e-6)


def test_nan_in_a_parameter_shows(tmp_path):
    net = image_net()
    dict(zip(net.param_names(), net.param_values(), strict=True))["c2/weight"][0, 0] = np.nan
    predictor = net.predictor()
    predictor.save(tmp_path / "a.singanet")
    # oneDNN's maximum of nothing but NaN is the least number; BLAS warns of NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        for each in (predictor, singanet.load_predictor(tmp_path / "a.singanet")):
            assert np.isnan(each(images())).any(axis=1).all()


# -- users' own -----------------------------------------------------------------------------


class Doubled(Layer):
    """Not said to be pure: its Python runs at each call, and counts them."""

    calls = 0

    def setup(self, in_shapes):
        self.add_param("scale", (1,), default=singanet.initializer.Constant(2.0))
        return in_shapes

    def forward(self, ctx, x):
        self.calls += 1
        return x * self.params["scale"].value

    def backward(self, ctx, dy):
        return dy * ctx.params["scale"], {}


def own_net():
    net = singanet.FeedForwardNet(seed=1)
    net.add(Conv2D("c1", 4, 3, input_sample_shape=(3, 12, 12)))
    net.add(Doubled("twice"))
    net.add(Conv2D("c2", 4, 3))
    net.add(BatchNormalization("n"))
    return net


def test_layers_of_a_user_run_as_they_are():
    net = own_net()
    wanted = by_layers(net, images())
    predictor, calls = net.predictor(), net.layers[1].calls
    net.layers[1].params["scale"].value[...] = 7.0
    for _ in range(3):
        close(predictor(images()), wanted)
    assert net.layers[1].calls == calls
    assert any("twice" in note for note in predictor.notes)


class Halved(SoftmaxCrossEntropy):
    """A link in Python of its own."""

    def link(self, x):
        return x / self.by if float(abs(x).max()) > 0 else x

    by = 2.0


def test_a_link_of_a_user_runs_as_it_is():
    net = small_net(Halved())
    wanted, predictor = by_layers(net, rows()), net.predictor()
    net.loss.by = 3.0
    for _ in range(3):
        close(predictor(rows()), wanted)


class Clamped(singanet.FeedForwardNet):
    def predict(self, x, batch_size=None):
        return np.clip(super().predict(x, batch_size), 0.1, 0.9)


def test_a_net_with_predictions_of_its_own_is_refused():
    net = Clamped([Dense("d", 3, input_sample_shape=(5,))], seed=1)
    with pytest.raises(ArgumentError, match="Clamped with its own predict"):
        net.predictor()


def test_a_layer_whose_forward_was_assigned_is_not_folded():
    net = image_net()
    for layer in net.layers:
        if layer.name in ("c1", "n2", "a3", "s2"):
            layer.forward = (lambda of: lambda ctx, x: of(ctx, x) + 1)(
                type(layer).forward.__get__(layer)
            )
    close(net.predictor()(images()), by_layers(net, images()))


def test_a_layer_that_cannot_be_copied_is_told():
    net = own_net()
    net.layers[1].lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"layer 'twice'.*lock"):
        net.predictor()


# -- what is shared, which is nothing -------------------------------------------------------


def changed_in_place(net):
    for value in net.param_values():
        value *= 0.5


def assigned(net):
    for param in net.params():
        param.value = param.value * 0.5


def grown(net):
    net.add(Dense("more", 2))
    net.loss = SigmoidCrossEntropy()


def reconfigured(net):
    for layer in net.layers:
        if isinstance(layer, BatchNormalization):
            layer.epsilon = 1.0
        if isinstance(layer, Activation):
            layer.mode = "sigmoid"


def trained(net):
    net.fit(images(8), np.arange(8) % 4, verbose=False, epochs=2)


def trained_by_hand(net):
    for _ in range(4):
        net.step(images(8), np.arange(8) % 4, Adam(lr=0.01))


CHANGES = [changed_in_place, assigned, grown, reconfigured, trained, trained_by_hand]


@pytest.mark.parametrize("change", CHANGES)
def test_what_becomes_of_the_net_changes_no_prediction(change):
    net = image_net()
    net.compile(SGD(lr=0.1))
    wanted, predictor = by_layers(net, images()), net.predictor()
    first = predictor(images())
    change(net)
    np.testing.assert_array_equal(predictor(images()), first)
    # A shape that comes later has the same constants.
    close(predictor(images()[:1]), wanted[:1])
    assert abs(by_layers(net, images()).max() - wanted.max()) > 1e-4
    assert all(value.flags.writeable for value in net.param_values())


def test_recorded_steps_go_on_as_if_nothing_was():
    nets, y = (small_net(), small_net()), np.arange(4) % 3
    sgds = [SGD(lr=0.1, momentum=0.9) for _ in nets]
    for k in range(6):
        if k == 3:
            nets[0].predictor()(rows())
        for net, sgd in zip(nets, sgds, strict=True):
            net.step(rows(seed=k), y, sgd)
    for one, two in zip(*(net.param_values() for net in nets), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_forward_under_way_goes_on():
    net = small_net()
    y = net.forward(True, rows())
    net.predictor()(rows())
    assert len(list(net.backward(np.ones_like(y)))) == 3


def test_the_net_is_let_go():
    net = image_net()
    net.compile(Adam(lr=0.1), metrics=Accuracy())
    net.train_on_batch(images(), np.arange(3))
    held = (net, net.compiled.optimizer, net.metric, *net.layers, *net.param_values())
    gone = [weakref.ref(each) for each in held]
    del held
    predictor = net.predictor()
    wanted = predictor(images())
    del net
    gc.collect()
    assert not any(ref() for ref in gone)
    np.testing.assert_array_equal(predictor(images()), wanted)


def test_predictions_are_the_callers_own():
    predictor = small_net().predictor()
    x = rows()
    first = predictor(x)
    kept = first.copy()
    predictor(rows(seed=1))
    np.testing.assert_array_equal(first, kept)
    first[...] = 7.0
    np.testing.assert_array_equal(predictor(x), kept)
    np.testing.assert_array_equal(x, rows())


# -- memory ---------------------------------------------------------------------------------


def wide_net():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    net.add(Conv2D("c1", 64, 3, input_sample_shape=(32, 8, 8)))
    net.add(BatchNormalization("n1"))
    net.add(Activation("a1"))
    net.add(Conv2D("c2", 200, 1))
    net.add(Flatten("f"))
    net.add(Dense("d1", 300))
    net.add(Activation("a2"))
    net.add(Dense("d2", 100, W_transpose=True))
    stir(net)
    return net


def test_weights_are_held_about_once():
    net, x = wide_net(), np.random.default_rng(0).standard_normal((64, 32, 8, 8), np.float32)
    weights = sum(value.nbytes for value in net.param_values())
    wanted = net.predict(x)
    tracemalloc.start()
    try:
        predictor = net.predictor()
        close(predictor(x), wanted)
        close(predictor(x[:32]), wanted[:32])
        assert predictor.nbytes < 1.2 * weights
        arena = max(report.layout.nbytes for report in predictor.reports())
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1.2 * weights + arena + (2 << 20)
    finally:
        tracemalloc.stop()
    # Shapes that come later find the weights again.
    for n in (1, 2, 16):
        close(predictor(x[:n]), wanted[:n])


@pytest.mark.parametrize(
    ("shape", "made"),
    [
        ((6, 4), lambda a: a),
        ((6, 4), lambda a: a.T),
        ((64, 12), lambda a: a.reshape(4, 16, 12).transpose(0, 2, 1)),
        ((20, 6), lambda a: np.pad(a, ((0, 4), (0, 0))).reshape(3, 8, 6).transpose(0, 2, 1)),
        ((5, 20), lambda a: np.pad(a, ((0, 0), (0, 4))).reshape(5, 3, 8).transpose(1, 0, 2)),
        ((8, 3, 2), lambda a: a.transpose(2, 1, 0)),
    ],
)
def test_orders_are_found_and_undone(shape, made):
    size = int(np.prod(shape))
    numbers = made(numbered(size).view(np.float32).reshape(shape)).reshape(-1)
    order = order_of(np.ascontiguousarray(numbers).view(np.uint8), size)
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(order.array(made(array).reshape(-1)), array.reshape(-1))


@pytest.mark.parametrize("made", [lambda a: a[::-1], lambda a: a * 2, np.zeros_like])
def test_what_is_no_order_is_refused(made):
    numbers = made(numbered(24).view(np.float32))
    assert order_of(np.ascontiguousarray(numbers).view(np.uint8), 24) is None


def test_an_array_goes_only_where_all_of_it_comes_back():
    constant = ConstantArray(np.arange(24, dtype=np.float32).reshape(4, 6))
    for transposed in ([0, 2, 1, *range(3, 24)], range(24)):
        numbers = numbered(24).view(np.float32)[transposed].view(np.uint8)
        memory = constant.lend().reshape(-1)[transposed].view(np.uint8)
        constant.found(memory, numbers)
        constant.let_go()
    assert [array is not None for array in constant.arrays] == [True]
    np.testing.assert_array_equal(constant.lend(), np.arange(24).reshape(4, 6))


# -- shapes, inputs, threads ----------------------------------------------------------------


def test_predictions_of_many_batches():
    net = image_net()
    wanted = np.concatenate([by_layers(net, images(5)[part]) for part in np.s_[:2, 2:4, 4:]])
    predictor = net.predictor()
    close(predictor(images(5), batch_size=2), wanted)
    assert len(predictor.reports()) == 2
    close(predictor(iter([images(5)[:3], (images(5)[3:], "beside")]), batch_size=1), wanted)
    with pytest.raises(ArgumentError, match="at least one batch"):
        predictor(iter([]), batch_size=2)
    with pytest.raises(SingaNetError, match="batch_size"):
        predictor(images(5), batch_size=0)


def test_more_shapes_than_programs_are_kept():
    net, predictor = small_net(), small_net().predictor()
    for _ in range(3):
        for n in range(1, 2 * CAPACITY):
            close(predictor(rows(n)), by_layers(net, rows(n)))
    gc.collect()
    assert len(predictor.reports()) == CAPACITY


def test_what_is_run_by_layers_has_the_same_bits():
    net = image_net()
    predictor, full = net.predictor(), net.predictor()
    for n in range(1, CAPACITY + 1):
        full(images(n + 1))
    np.testing.assert_array_equal(predictor(images(1)), full(images(1)))


@pytest.mark.parametrize(
    "x", [rows().astype(np.float64), np.asfortranarray(rows()), rows(7), rows(4), rows(8)[::2]]
)
def test_every_kind_of_array_after_any_other(x):
    predictor = small_net().predictor()
    predictor(rows())
    usual = np.ascontiguousarray(x, np.float32)
    for _ in range(2):
        np.testing.assert_allclose(predictor(x), predictor(usual), rtol=1e-6)


def test_no_samples_give_no_predictions():
    predictor = image_net().predictor()
    for _ in range(2):
        assert predictor(images(0)).shape == (0, 4)


def test_several_inputs_and_bad_ones():
    a, b = Input("a", (3,)), Input("b", (3,))
    net = singanet.FeedForwardNet(inputs=[a, b], outputs=Add("sum")([Dense("d", 3)(a), b]), seed=1)
    predictor = net.predictor()
    feed = {name: np.full((2, 3), k, np.float32) for k, name in enumerate("ab")}
    wanted = by_layers(net, feed)
    close(predictor(feed), wanted)
    np.testing.assert_array_equal(predictor({name: feed[name] for name in "ba"}), predictor(feed))
    np.testing.assert_array_equal(predictor([feed["a"], feed["b"]], batch_size=1), wanted)
    for bad in ({"a": feed["a"]}, feed["a"], {**feed, "c": feed["a"]}, None, [[1.0]]):
        with pytest.raises(SingaNetError, match="predictor") as caught:
            predictor(bad)
        assert caught.value.expected
        assert caught.value.advice
    with pytest.raises(ShapeError, match="'b'"):
        predictor({"a": feed["a"], "b": np.ones((2, 4), np.float32)})
    close(predictor(feed), wanted)


def test_two_inputs_of_different_batches_are_the_layers_error():
    a, b = Input("a", (3, 6, 6)), Input("b", (4, 6, 6))
    net = singanet.FeedForwardNet(inputs=[a, b], outputs=Add("sum")([Conv2D("c", 4, 3)(a), b]))
    feed = {"a": np.ones((2, 3, 6, 6), np.float32), "b": np.ones((3, 4, 6, 6), np.float32)}
    with pytest.raises(ShapeError, match="sum"):
        net.predictor()(feed)


def test_several_outputs():
    x = Input("x", (3, 6, 6))
    h = Conv2D("c", 4, 3)(x)
    n = BatchNormalization("n")(h)
    net = singanet.FeedForwardNet(inputs=x, outputs=[h, Concat("j", 1)([n, h])], seed=1)
    stir(net)
    x = images()[:, :, :6, :6]
    wanted, made = by_layers(net, x), net.predictor()(x)
    assert set(made) == set(wanted) == {"c", "j"}
    for name, array in wanted.items():
        close(made[name], array)


def test_an_input_of_any_extent():
    net = singanet.FeedForwardNet(seed=1)
    net.add(Embedding("e", 9, 4, input_sample_shape=(None,)))
    net.add(LSTM("l", 5, return_sequences=False))
    predictor = net.predictor()
    assert predictor.inputs == {"e": (-1,)}
    for length in (2, 5, 3, 2):
        x = np.arange(2 * length).reshape(2, length) % 9
        close(predictor(x), by_layers(net, x))


def test_threads_predict_side_by_side():
    net = image_net()
    predictor = net.predictor()
    wanted = {n: by_layers(net, images(n)) for n in (1, 2, 3)}
    failures = []

    def run(k):
        try:
            for turn in range(12):
                n = 1 + (k + turn) % 3
                close(predictor(images(n)), wanted[n])
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    # A thread's programs go with it.
    del threads
    gc.collect()
    assert predictor.reports() == []
    close(predictor(images(2)), wanted[2])


def test_training_in_another_thread_goes_on():
    net = image_net()
    predictor, wanted = net.predictor(), by_layers(net, images())
    stop, failures = threading.Event(), []

    def train():
        try:
            while not stop.is_set():
                net.step(images(8), np.arange(8) % 4, SGD(lr=0.01))
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for n in (3, 2, 1) * 5:
            close(predictor(images()[:n]), wanted[:n])
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_repr_tells_shapes_and_memory():
    predictor = small_net().predictor()
    predictor(rows())
    told = repr(predictor)
    assert "one (5,) -> two" in told
    assert "1 program)" in told
    assert predictor.outputs == ["two"]


# Python drops what strikes in the callbacks of what is let go.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_wherever_it_is_interrupted_it_predicts_the_same():
    """As its program is bound to memory, other than before."""
    net = singanet.models.build("mlp", (20,), seed=0)
    x = np.random.default_rng(0).standard_normal((8, 20), np.float32)
    predictor = net.predictor()
    want = [predictor(x) for _ in range(3)][-1]
    line, struck = 0, True
    while struck:
        line += 2
        predictor._thread.arena._free.clear()
        struck = struck_at(line, lambda: predictor(x))
        np.testing.assert_array_equal(predictor(x), want, err_msg=f"line {line}")
    assert line > 50
