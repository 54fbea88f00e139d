"""Predictors: what they predict, what they hold and what they share, which is nothing."""

import gc
import pickle
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import FeedForwardNet, Input, layers, models
from singanet.errors import ArgumentError, ShapeError, SingaNetError, UnknownNameError
from singanet.layers import (
    Activation,
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    Embedding,
    TimeDistributed,
)
from singanet.loss import SigmoidCrossEntropy, SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.ops import threads
from singanet.optimizer import SGD, Adam
from singanet.program.prediction.compiled import CAPACITY
from singanet.program.prediction.constant import ConstantArray, ConstantDense, numbered, order_of
from singanet.testing import strict_device
from tests.interrupts import struck_at
from tests.kit.threads import in_threads

# -- nets -----------------------------------------------------------------------------------


def drawn(*made_of, loss=None, **graph):
    """A net whose running statistics and scales are as after a training."""
    net = FeedForwardNet([*made_of] or None, loss=loss, **{"seed": 1, **graph})
    stir(net)
    return net


def stir(net):
    rng = np.random.default_rng(5)
    for param in net.params():
        if param.name.endswith(("gamma", "var")):
            param.value[...] = rng.uniform(0.5, 2.0, param.shape)
        elif param.name.endswith(("beta", "mean", "bias")):
            param.value[...] = rng.normal(0.0, 0.3, param.shape)


def small_net(loss=None):
    made_of = [Dense("one", 8, input_sample_shape=(5,)), Activation("relu"), Dense("two", 3)]
    return FeedForwardNet(made_of, loss=loss or SoftmaxCrossEntropy(), seed=1)


def image_net(kind="float32"):
    """Convolutions with everything that may follow them."""
    x = Input("x", (3, 12, 12))
    h = Activation("a1")(BatchNormalization("n1")(Conv2D("c1", 16, 3)(x)))
    left = BatchNormalization("n2")(Conv2D("c2", 16, 3, use_bias=False)(h))
    h = Activation("a2")(Add("s1")([left, h]))
    right = BatchNormalization("n3")(Conv2D("c3", 16, 1)(h))
    left = BatchNormalization("n4")(Conv2D("c4", 16, 3, groups=4)(h))
    h = Add("s2")([right, left])
    h = Activation("a3")(Conv2D("c5", 32, 3, stride=2)(h))
    h = Activation("a4", "tanh")(Conv2D("c6", 8, 3)(h))
    h = layers.MaxPooling2D("p", 2, 2)(BatchNormalization("n5")(h))
    y = Dense("out", 4)(layers.Flatten("f")(h))
    net = FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=2)
    net.as_type(kind)
    stir(net)
    return net


def reflected():
    """Folded into the convolution, the shift of the norm would pad with zeros."""
    x = Input("x", (3, 12, 12))
    h = BatchNormalization("n")(Conv2D("c", 4, 3, padding_mode="reflect")(x))
    y = Dense("out", 4)(layers.Flatten("f")(Activation("a")(h)))
    return drawn(loss=SoftmaxCrossEntropy(), inputs=x, outputs=y)


def depthwise(channels, multiplier):
    shape = (channels, 12, 12)
    return drawn(
        layers.DepthwiseConv2D("d1", 3, depth_multiplier=multiplier, input_sample_shape=shape),
        BatchNormalization("n1"), Activation("a1"),
        layers.DepthwiseConv2D("d2", 3, 2, use_bias=False), BatchNormalization("n2"),
    )  # fmt: skip


def dense(transposed):
    return drawn(
        Dense("one", 40, W_transpose=transposed, input_sample_shape=(5,)), Activation("a1"),
        Dense("two", 30, use_bias=False), Activation("a2", "sigmoid"),
        Dense("three", 3), Activation("a3"),
    )  # fmt: skip


def normalised_twice():
    """A layer called twice has two weights if it is normalised twice."""
    x, conv = Input("x", (3, 6, 6)), Conv2D("c", 3, 3)
    h = BatchNormalization("n1")(conv(x))
    return drawn(inputs=x, outputs=BatchNormalization("n2")(conv(Activation("a")(h))))


def nested():
    tower = FeedForwardNet(
        [Conv2D("c", 4, 3, input_sample_shape=(3, 6, 6)), BatchNormalization("n")], name="tower"
    )
    a, b = Input("a", (3, 6, 6)), Input("b", (3, 6, 6))
    return drawn(inputs=[a, b], outputs=Add("s")([tower(a), tower(b)]))


def means(shape):
    """Means of all positions of C-ordered and of other arrays."""
    x = Input("x", shape)
    if len(shape) == 3:
        pool, other = layers.GlobalAvgPooling2D, Conv2D("c", 8, 3)(x)
    else:
        pool, other = layers.GlobalAvgPooling1D, layers.Permute("p", (2, 1))(x)
    return drawn(inputs=x, outputs=[pool("plain")(x), pool("other")(other)])


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
    return FeedForwardNet(inputs=x, outputs=[h, y] if again == "handed out" else y, seed=4)


def several():
    x = Input("x", (3, 6, 6))
    h = Conv2D("c", 4, 3)(x)
    return drawn(inputs=x, outputs=[h, layers.Concat("j", 1)([BatchNormalization("n")(h), h])])


class Doubled(layers.Layer):
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
    return FeedForwardNet(
        [
            Conv2D("c1", 4, 3, input_sample_shape=(3, 12, 12)),
            Doubled("twice"),
            Conv2D("c2", 4, 3),
            BatchNormalization("n"),
        ],
        seed=1,
    )


class Halved(SoftmaxCrossEntropy):
    """A link in Python of its own."""

    by = 2.0

    def link(self, x):
        return x / self.by if float(abs(x).max()) > 0 else x


def with_assigned_forwards():
    """None of the layers whose forward was assigned is folded."""
    net = image_net()
    for name in ("c1", "n2", "a3", "s2"):
        whole = type(net[name]).forward.__get__(net[name])
        net[name].forward = lambda ctx, x, whole=whole: whole(ctx, x) + 1
    return net


def ready(name):
    def make():
        net = models.build(name, seed=0)
        stir(net)
        return net

    return make


WORDS = [Embedding("words", 11, 4, input_sample_shape=(5,)),
         layers.LSTM("lstm", 6, return_sequences=False), Dense("out", 3)]  # fmt: skip
READY = ("resnet20", "preresnet20", "mobilenet", "googlenet")
NETS = {
    "small": small_net,
    "images": image_net,
    "doubles": lambda: image_net("float64"),
    "reflected": reflected,
    **{
        f"depthwise {c}, {m}": lambda c=c, m=m: depthwise(c, m) for c in (3, 16) for m in (1, 2)
    },
    "dense": lambda: dense(False),
    "dense, transposed": lambda: dense(True),
    "words": lambda: FeedForwardNet(WORDS, loss=SoftmaxCrossEntropy(), seed=1),
    "normalised twice": normalised_twice,
    "nested": nested,
    **{f"means {shape}": lambda s=shape: means(s) for shape in ((16, 6, 6), (7, 9), (4, 40, 9))},
    **{
        f"sum, {again}": lambda again=again: sums(again)
        for again in ("never", "later", "by itself", "the input", "handed out")
    },
    "several": several,
    "users' layer": own_net,
    "users' link": lambda: small_net(Halved()),
    "assigned": with_assigned_forwards,
    **{name: ready(name) for name in READY},
}  # fmt: skip


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_each_step_are_laid_out(transposed, relu):
    dense = Dense("dense", 7, W_transpose=transposed)
    each = TimeDistributed("each", dense, input_sample_shape=(4, 6))
    net = drawn(each, Activation("relu" if relu else "tanh"))
    x = np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)
    predictor = net.predictor()
    steps = predictor._net._execution_plan().steps
    assert type(steps[0].layer) is ConstantDense
    assert len(steps) == 2 - relu
    weight, bias = (param.value for param in net.params())
    wanted = x @ (weight.T if transposed else weight) + bias
    wanted = np.maximum(wanted, 0) if relu else np.tanh(wanted)
    for _ in range(2):
        np.testing.assert_allclose(predictor(x), wanted, rtol=1e-5, atol=1e-6)


def test_sums_of_a_row_beside_compiled_products_are_compiled():
    x = Input("x", (20,))
    made = Add("sum")([Dense("a", 16)(x), Dense("b", 16)(x)])
    predictor = FeedForwardNet(inputs=x, outputs=made, seed=1).predictor()
    if predictor._ops.arithmetic(np.add, (1, 16), "each") is None:
        pytest.skip("these kernels compile no sums")
    values = {name: param.value for name, param in predictor._net.constants.named().items()}
    row = np.random.default_rng(0).standard_normal((1, 20)).astype(np.float32)
    wanted = sum(row @ values[f"{name}/weight"] + values[f"{name}/bias"] for name in "ab")
    np.testing.assert_allclose(predictor(row), wanted, rtol=1e-5, atol=1e-6)
    (program,) = predictor._programs
    calls = getattr(program, "_program", program).recording.calls
    (added,) = [call for call in calls if call.function is np.add]
    assert added.plans


def images(n=3, seed=0, kind=np.float32):
    return np.random.default_rng(seed).standard_normal((n, 3, 12, 12)).astype(kind)


def rows(n=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)


def fed(net, n, seed=0):
    """Inputs of ``n`` samples for any net."""
    rng = np.random.default_rng(seed)
    shapes = net.predictor().inputs
    if isinstance(net.layers[0], Embedding):
        return rng.integers(0, 11, (n, *next(iter(shapes.values()))))
    feed = {
        name: rng.standard_normal((n, *shape)).astype(net.dtype) for name, shape in shapes.items()
    }
    return feed if len(feed) > 1 else next(iter(feed.values()))


def by_layers(net, x):
    """The predictions of the net with its parameters of now."""
    net.programs.enabled = False
    try:
        return net.predict(x)
    finally:
        net.programs.enabled = True


def close(got, wanted, room=None):
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
        for name in wanted:
            close(got[name], wanted[name], room)
        return
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    room = room or (1e-11 if wanted.dtype == np.float64 else 1e-5)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=room * abs(wanted).max())


def on_host(made):
    """Arrays of a device on the host, by name or one."""
    if isinstance(made, dict):
        return {name: on_host(part) for name, part in made.items()}
    return made.get() if hasattr(made, "get") else made


def named(x):
    return x if isinstance(x, dict) else {"": x}


def parts(x):
    return list(x.values()) if isinstance(x, dict) else [x]


def samples(x, chosen):
    """Some samples of an array, or of each of a dict."""
    if isinstance(x, dict):
        return {name: part[chosen] for name, part in x.items()}
    return x[chosen]


# -- the contract ---------------------------------------------------------------------------


LARGE = {"mobilenet": pytest.mark.full, "googlenet": pytest.mark.slow}
EACH = [pytest.param(n, marks=LARGE.get(n, ())) for n in NETS]
# Without the Python of users that takes NumPy's arrays alone.
THERE = [name for name in NETS if name not in {*READY, "assigned", "users' layer"}]


@pytest.mark.parametrize("name", EACH)
def test_predictions_are_those_of_the_net(name):
    """Of batches of any size, with the same bits each time, and the callers' own."""
    net = NETS[name]()
    for n in (2,) if name in READY else (3, 1, 8):
        x = fed(net, n)
        given = [part.copy() for part in parts(x)]
        predictor, wanted = net.predictor(), by_layers(net, x)
        kept = [predictor(x) for _ in range(3)]
        copies = [[part.copy() for part in parts(made)] for made in kept]
        predictor(fed(net, n, seed=1))
        for made, copied in zip(kept, copies, strict=True):
            close(made, wanted)
            np.testing.assert_equal(parts(made), copied)
            np.testing.assert_equal(copied, copies[0])
            assert all(part.flags.writeable for part in parts(made))
        # A shape that comes later has the same constants.
        close(predictor(samples(x, slice(1))), samples(wanted, slice(1)))
        np.testing.assert_equal(parts(net.predictor()(x)), copies[0])
        np.testing.assert_equal(parts(x), given)
    if name not in ("words", "users' link"):
        expect_nan_in_its_sample_alone(net.predictor(), fed(net, 4))


def expect_nan_in_its_sample_alone(predictor, x):
    clean = parts(on_host(predictor(x)))
    part = parts(x)[0]
    part[(2, *(size // 2 for size in part.shape[1:]))] = np.nan
    got = parts(on_host(predictor(x)))
    assert any(np.isnan(made[2]).any() for made in got)
    for one, two in zip(got, clean, strict=True):
        others = one[[0, 1, 3]], two[[0, 1, 3]]
        np.testing.assert_allclose(*others, rtol=0, atol=1e-5 * max(1.0, abs(two).max()))


@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", THERE)
def test_predictions_on_a_device_are_those_of_the_net(name, kind):
    """Arrays of the host and of the device give the same bits, also where they are put."""
    net = NETS[name]()
    net.as_type(kind)
    x = fed(net, 4)
    if isinstance(net.layers[0], Embedding):
        x = {"words": x}
    x = x if isinstance(x, dict) else {net.layers[0].name: x}
    wanted = net.predict(x)
    net.to_device(strict_device())
    predictor = net.predictor()
    first = predictor(x)
    close(on_host(first), wanted, 2e-2 if kind == "float16" else None)
    again = predictor({key: net.device.put(part) for key, part in x.items()})
    np.testing.assert_equal(on_host(again), on_host(first))
    out = {key: net.device.put(np.zeros_like(p)) for key, p in named(on_host(first)).items()}
    out = out if isinstance(first, dict) else out[""]
    predictor(x, out=out)
    np.testing.assert_equal(on_host(out), on_host(first))
    predictor({key: part[::-1].copy() for key, part in x.items()})
    np.testing.assert_equal(on_host(again), on_host(first))
    assert not predictor.notes or name.startswith("users'")
    if name not in ("words", "users' link") and kind == "float32":
        expect_nan_in_its_sample_alone(predictor, x)


def test_nan_in_a_parameter_shows(tmp_path):
    net = image_net()
    net["c2"].params["weight"].value[0, 0] = np.nan
    predictor = net.predictor()
    predictor.save(tmp_path / "a.singanet")
    # oneDNN's maximum of nothing but NaN is the least number; BLAS warns of NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        for each in (predictor, singanet.load_predictor(tmp_path / "a.singanet")):
            assert np.isnan(each(images())).any(axis=1).all()


def changed_in_place(net):
    for value in net.param_values():
        value *= 0.5


def made_writeable(net):
    for param in net.params():
        param.value.flags.writeable = False
        param.value.flags.writeable = True
        param.value *= 0.5


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


CHANGES = [changed_in_place, made_writeable, assigned, grown, reconfigured, trained]


@pytest.mark.parametrize("change", [*CHANGES, trained_by_hand])
def test_changes_of_the_net_change_no_prediction(change):
    net = image_net()
    net.compile(SGD(lr=0.1))
    wanted, predictor = by_layers(net, images()), net.predictor()
    first = predictor(images())
    change(net)
    np.testing.assert_array_equal(predictor(images()), first)
    close(predictor(images()[:1]), wanted[:1])
    assert abs(by_layers(net, images()).max() - wanted.max()) > 1e-4
    assert all(value.flags.writeable for value in net.param_values())


@st.composite
def chains(draw):
    """A net of convolutions, normalisations, sums and relus in any order, some of them outputs."""
    x = Input("x", (draw(st.sampled_from([3, 16])), 6, 6))
    made = [x]
    for k in range(draw(st.integers(1, 7))):
        source = made[draw(st.integers(max(0, len(made) - 3), len(made) - 1))]
        kind = draw(st.sampled_from(["conv", "conv", "norm", "relu", "sum", "depthwise", "drop"]))
        if kind in ("conv", "depthwise"):
            biased = draw(st.booleans())
            if kind == "conv":
                layer = Conv2D(f"c{k}", 16, draw(st.sampled_from([1, 3])), use_bias=biased)
            else:
                layer = layers.DepthwiseConv2D(f"d{k}", 3, use_bias=biased)
        elif kind in ("norm", "drop"):
            layer = BatchNormalization(f"n{k}") if kind == "norm" else layers.Dropout(f"o{k}", 0.5)
        else:
            layer = Activation(f"a{k}", draw(st.sampled_from(["relu", "tanh"])))
        other = made[draw(st.integers(1, len(made) - 1))] if kind == "sum" and made[2:] else None
        alike = other is not None and other.shape == source.shape
        made.append(Add(f"s{k}")([source, other]) if alike else layer(source))
    last, inner = made[-1], draw(st.sampled_from(made[1:]))
    outputs = [last] if inner is last or draw(st.booleans()) else [inner, last]
    return drawn(inputs=x, outputs=outputs, seed=draw(st.integers(0, 9)))


@given(chains(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_any_net_predicts_as_its_layers_do(net, batch):
    x = fed(net, batch, batch)
    wanted, predictor = by_layers(net, x), net.predictor()
    for made in (predictor(x), predictor(x)):
        close(made, wanted)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_products_do_the_relu_after_them(made_of, batch):
    made = []
    for k, (size, bias, relu) in enumerate(made_of):
        first = {"input_sample_shape": (7,)} if k == 0 else {}
        made.append(Dense(f"d{k}", size, use_bias=bias, **first))
        made += [Activation(f"a{k}")] if relu else []
    net = drawn(*made, seed=3)
    x = fed(net, batch, batch)
    predictor = net.predictor()
    close(predictor(x), by_layers(net, x))
    x[-1, 3] = np.nan
    got, clean = predictor(x), by_layers(net, x)
    assert np.isnan(got[-1]).any()
    np.testing.assert_allclose(got[:-1], clean[:-1], rtol=0, atol=1e-5)


# -- how it is predicted --------------------------------------------------------------------


def test_half_precision_is_widened():
    net = image_net()
    net.compile(SGD(lr=0.1), mixed_precision="float16")
    made = net.predictor()(images())
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, net.predict(images()), atol=2e-2)


def test_one_kernel_does_several_layers():
    net = image_net()
    before = {kernel.layer for kernel in net.record(images(2)).report().kernels}
    predictor = net.predictor()
    predictor(images(2))
    (report,) = predictor.reports()
    after = {kernel.layer for kernel in report.kernels}
    assert {"n1", "n2", "s1", "n3", "n4", "n5"} <= before
    assert {"c1", "c2", "c3", "c5"} <= after  # a convolution, with all that follows
    assert not {"n1", "a1", "n2", "s1", "a2", "n3", "n4", "s2", "a3"} & after


def test_outputs_come_in_the_order_of_their_layers():
    """Whatever is folded: a normalisation is done at the place of its convolution, the first."""
    x = Input("x", (3, 6, 6))
    deep, relu = layers.DepthwiseConv2D("d", 3)(x), Activation("a")(x)
    net = drawn(inputs=x, outputs=[relu, BatchNormalization("n")(deep)])
    given = images()[:, :, :6, :6]
    assert list(net.predictor()(given)) == ["a", "n"]
    relu_last = FeedForwardNet(inputs=x, outputs=[relu, Activation("r")(deep)], seed=1)
    for flag in (True, False):
        assert list(relu_last.forward(flag, given)) == ["a", "r"]


@pytest.mark.skipif(
    singanet.device.cpu().ops.name != "onednn", reason="NumPy adds in a call of its own"
)
def test_a_shortcut_is_copied_if_it_is_needed_later():
    def copies(again):
        predictor = sums(again).predictor()
        predictor(np.ones((2, 16, 6, 6), np.float32))
        (report,) = predictor.reports()
        pairs = {(k.reads, k.writes) for k in report.kernels if k.name == "positive"}
        taken = set(report.layout.in_place)
        return sum((reads[0], writes[0]) not in taken for reads, writes in pairs)

    assert copies("never") == 0
    assert [copies(again) for again in ("later", "by itself", "handed out")] == [1, 1, 1]


def test_layers_and_links_of_a_user_run_as_they_are():
    net = own_net()
    wanted = by_layers(net, images())
    predictor, calls = net.predictor(), net["twice"].calls
    net["twice"].params["scale"].value[...] = 7.0
    for _ in range(3):
        close(predictor(images()), wanted)
    assert net["twice"].calls == calls
    assert any("twice" in note for note in predictor.notes)
    net = small_net(Halved())
    wanted, predictor = by_layers(net, rows()), net.predictor()
    net.loss.by = 3.0
    for _ in range(3):
        close(predictor(rows()), wanted)


class Clamped(FeedForwardNet):
    def predict(self, x, batch_size=None):
        return np.clip(super().predict(x, batch_size), 0.1, 0.9)


def test_nets_that_cannot_be_copied_or_predict_by_themselves_are_refused():
    net = Clamped([Dense("d", 3, input_sample_shape=(5,))], seed=1)
    with pytest.raises(ArgumentError, match="Clamped with its own predict"):
        net.predictor()
    net = own_net()
    net["twice"].lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"layer 'twice'.*lock"):
        net.predictor()


# -- what is shared, which is nothing -------------------------------------------------------


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


# -- memory ---------------------------------------------------------------------------------


def test_weights_are_held_about_once():
    net = drawn(
        Conv2D("c1", 64, 3, input_sample_shape=(32, 8, 8)), BatchNormalization("n1"),
        Activation("a1"), Conv2D("c2", 200, 1), layers.Flatten("f"), Dense("d1", 300),
        Activation("a2"), Dense("d2", 100, W_transpose=True), loss=SoftmaxCrossEntropy(),
    )  # fmt: skip
    x = fed(net, 64)
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


def test_weights_make_room_while_others_are_laid_out():
    net = drawn(*(Conv2D(f"c{k}", 128, 3, input_sample_shape=(128, 4, 4)) for k in range(12)))
    x = fed(net, 1)
    wanted = net.predict(x)
    weights = sum(value.nbytes for value in net.param_values())
    net.predictor()(x)  # what is imported and compiled stays
    tracemalloc.start()
    try:
        predictor = net.predictor()
        close(predictor(x), wanted)
        held, most = tracemalloc.get_traced_memory()
        assert most < held + weights / 2
    finally:
        tracemalloc.stop()


ORDERS = [
    ((6, 4), lambda a: a),
    ((6, 4), lambda a: a.T),
    ((64, 12), lambda a: a.reshape(4, 16, 12).transpose(0, 2, 1)),
    ((20, 6), lambda a: np.pad(a, ((0, 4), (0, 0))).reshape(3, 8, 6).transpose(0, 2, 1)),
    ((5, 20), lambda a: np.pad(a, ((0, 0), (0, 4))).reshape(5, 3, 8).transpose(1, 0, 2)),
    ((8, 3, 2), lambda a: a.transpose(2, 1, 0)),
]


@pytest.mark.parametrize(("shape", "made"), ORDERS)
def test_orders_are_found_and_undone_and_nothing_else(shape, made):
    size = int(np.prod(shape))
    numbers = made(numbered(size).view(np.float32).reshape(shape)).reshape(-1)
    order = order_of(np.ascontiguousarray(numbers).view(np.uint8), size)
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(order.array(made(array).reshape(-1)), array.reshape(-1))
    swapped, filled = numbers.copy(), numbers.copy()
    last = np.flatnonzero(numbers)[-2:]
    swapped[last] = swapped[last[::-1]]
    filled[-1] = numbers[-1] or 1.0
    others = [numbers[::-1], numbers * 2, np.zeros_like(numbers), swapped]
    for other in [*others, *([] if numbers[-1] else [filled])]:
        assert order_of(np.ascontiguousarray(other).view(np.uint8), size) is None


@pytest.mark.parametrize("sample", [False, True])
def test_an_array_goes_only_if_all_of_it_comes_back(sample):
    constant = ConstantArray(np.arange(24, dtype=np.float32).reshape(4, 6))
    order = order_of(numbered(24), 24)
    assert order is not None
    for transposed in ([0, 2, 1, *range(3, 24)], range(24)):
        is_all, numbers = transposed == range(24), numbered(24).view(np.float32)[transposed]
        # The first elements of each loop look like an order in both cases.
        assert order_of(numbers.view(np.uint8), 24) == (order if is_all else None)
        memory = constant.lend().reshape(-1)[transposed].view(np.uint8)
        assert constant.found(memory, order, sample) == is_all
        constant.let_go()
    assert [array is not None for array in constant.arrays] == [True]
    np.testing.assert_array_equal(constant.lend(), np.arange(24).reshape(4, 6))


@pytest.mark.parametrize("padded", [False, True])
def test_a_sample_of_blocks_is_compared(padded):
    width = 5 if padded else 4
    array = np.arange(1, 1 + 12 * width, dtype=np.float32).reshape(12, width)
    rows = np.zeros((12, 8 if padded else 4), np.float32)
    rows[:, :width] = array
    blocks = rows.reshape(12, -1, 4).swapaxes(0, 1)
    numbers = np.zeros_like(rows)
    numbers[:, :width] = numbered(array.size).view(np.float32).reshape(array.shape)
    order = order_of(np.ascontiguousarray(numbers.reshape(12, -1, 4).swapaxes(0, 1)).view(np.uint8)
                     .reshape(-1), array.size)  # fmt: skip
    assert order is not None
    assert order.is_padded == padded
    for wrong in (False, True):
        memory = blocks.reshape(-1).copy()
        memory[-4] += wrong
        for holds in (order.orders, order.orders_sample):
            assert holds(array.reshape(-1), memory) != wrong


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
    for _ in range(2):
        assert predictor(images(0)).shape == (0, 4)


def test_more_shapes_than_programs_are_kept():
    net, predictor = small_net(), small_net().predictor()
    for _ in range(3):
        for n in range(1, 2 * CAPACITY):
            close(predictor(rows(n)), by_layers(net, rows(n)))
    gc.collect()
    assert len(predictor.reports()) == CAPACITY


def test_runs_by_the_layers_have_the_same_bits():
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


def test_several_inputs_and_bad_ones():
    a, b = Input("a", (3,)), Input("b", (3,))
    net = FeedForwardNet(inputs=[a, b], outputs=Add("sum")([Dense("d", 3)(a), b]), seed=1)
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
    # Of different batches: the error of the layers.
    with pytest.raises(ShapeError, match="sum"):
        predictor({"a": feed["a"], "b": np.ones((3, 3), np.float32)})


def test_an_input_of_any_extent():
    first = Embedding("e", 9, 4, input_sample_shape=(None,))
    net = FeedForwardNet([first, layers.LSTM("l", 5, return_sequences=False)], seed=1)
    predictor = net.predictor()
    assert predictor.inputs == {"e": (-1,)}
    for length in (2, 5, 3, 2):
        x = np.arange(2 * length).reshape(2, length) % 9
        close(predictor(x), by_layers(net, x))


def test_threads_predict_side_by_side():
    net = image_net()
    predictor, wanted = net.predictor(), {n: by_layers(net, images(n)) for n in (1, 2, 3)}

    def predict(k):
        for turn in range(12):
            n = 1 + (k + turn) % 3
            close(predictor(images(n)), wanted[n])

    in_threads(*(lambda k=k: predict(k) for k in range(4)))
    # A thread's programs go with it.
    gc.collect()
    assert predictor.reports() == []
    close(predictor(images(2)), wanted[2])


def test_training_in_another_thread_goes_on():
    net = image_net()
    predictor, wanted, stop = net.predictor(), by_layers(net, images()), threading.Event()

    def train():
        while not stop.is_set():
            net.step(images(8), np.arange(8) % 4, SGD(lr=0.01))

    def predict():
        try:
            for n in (3, 2, 1) * 5:
                close(predictor(images()[:n]), wanted[:n])
        finally:
            stop.set()

    in_threads(train, predict)


def test_repr_tells_shapes_and_memory():
    predictor = small_net().predictor()
    predictor(rows())
    told = repr(predictor)
    assert "one (5,) -> two" in told
    assert "1 program)" in told
    assert predictor.outputs == ["two"]


# Python drops what strikes in the callbacks of what is let go.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_leaves_the_predictions():
    """As its program is bound to memory, other than before."""
    net = models.build("mlp", (20,), seed=0)
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


# -- on a device ----------------------------------------------------------------------------


def there(net):
    net.to_device(strict_device())
    return net


def test_constants_are_there_once_whatever_comes():
    predictor = there(image_net()).predictor()
    for count in range(1, CAPACITY + 3):
        x = images(count)
        whole = predictor(x).get()
        np.testing.assert_allclose(whole[:1], predictor(x[:1]).get(), rtol=1e-5, atol=1e-6)
    copied = predictor._net.there
    assert sum(array.nbytes for array, _ in copied.values()) <= predictor.nbytes
    large = [array for array, _ in copied.values() if array.nbytes > 100]
    assert len({array.tobytes() for array in large}) == len(large)


def test_it_shares_nothing_with_the_net_there_and_threads_have_their_own(tmp_path):
    net = there(image_net())
    predictor, x = net.predictor(), images()
    before, found = predictor(x).get(), []
    net.step(x, np.arange(3), SGD(lr=0.5))
    assert np.abs(net.predict(x).get() - before).max() > 1e-3
    in_threads(*[lambda: found.append(predictor(x).get())] * 3)
    for made in (*found, predictor(x).get()):
        np.testing.assert_array_equal(made, before)
    # Its file and copies predict on the CPU.
    predictor.save(tmp_path / "there.singanet")
    copied = pickle.loads(pickle.dumps(predictor))
    for other in (singanet.load_predictor(tmp_path / "there.singanet"), copied):
        close(other(x), before)


def test_places_that_do_not_fit_are_refused():
    net = there(image_net())
    predictor, x = net.predictor(), images()
    made, put = predictor(x), net.device.put
    with pytest.raises(ShapeError):
        predictor(x, out=put(np.zeros((4, 4), np.float32)))
    for wrong in (np.zeros((3, 4), np.float32), put(np.zeros((3, 4))), [1]):
        with pytest.raises(ArgumentError, match="an array of shape"):
            predictor(x, out=wrong)
    np.testing.assert_array_equal(predictor(x).get(), made.get())
    branches = there(several()).predictor()
    x = images()[:, :, :6, :6]
    with pytest.raises(UnknownNameError):
        branches(x, out=dict([next(iter(branches(x).items()))]))


class Looks(layers.Layer):
    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return x if float(x.get().sum()) > 0 else -x

    def backward(self, ctx, dy):
        return dy, {}


class Wants(Looks):
    """One that refuses ones, which are not what comes."""

    def forward(self, ctx, x):
        if float(abs(x - 1).max()) == 0:
            raise ValueError("ones")
        return super().forward(ctx, x)


@pytest.mark.parametrize("kind", [Looks, Wants])
def test_layers_in_python_run_between_kernels_there(kind, rng):
    net = there(drawn(Dense("a", 3, input_sample_shape=(4,)), kind("own"), Dense("b", 2)))
    predictor = net.predictor()
    for sign in (1, -1, 1):
        x = sign * rng.random((2, 4)).astype(np.float32)
        np.testing.assert_allclose(predictor(x).get(), net.predict(x).get(), rtol=1e-6)


# -- threads --------------------------------------------------------------------------------


@pytest.fixture
def two_threads(monkeypatch):
    """Two threads, also on one core."""
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    threads._changed(2)


@pytest.mark.parametrize("name", [name for name in NETS if name not in READY])
def test_threads_share_the_kernels(name, two_threads):
    """With the bits of one thread, and into the caller's array, also when a thread is new."""
    net = NETS[name]()
    x = fed(net, 17)
    predictor = net.predictor()
    wanted = parts(predictor(x))
    with threads.one_thread():
        np.testing.assert_equal(wanted, parts(net.predictor()(x)))
    in_threads(*[lambda: np.testing.assert_equal(parts(predictor(x)), wanted)] * 2)
    out = parts(predictor(fed(net, 17, seed=1)))
    assert not any(map(np.array_equal, out, wanted))
    made = predictor(x)
    out = {key: np.zeros_like(part) for key, part in named(made).items()}
    assert predictor(x, out=out if isinstance(made, dict) else out[""]) is not None
    np.testing.assert_equal(parts(out), wanted)


def test_an_error_names_the_sample_of_the_whole_batch(two_threads):
    net = NETS["words"]()
    x = fed(net, 8)
    predictor = net.predictor()
    predictor(x)
    x[6, 0] = 99
    with pytest.raises(SingaNetError, match=r"99 at position \(6, 0\)"):
        predictor(x)
