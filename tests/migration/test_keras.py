"""Every row of the guide from Keras, run beside the installed Keras."""

import csv
import inspect
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import singanet
from singanet import initializer, layers
from singanet.errors import DataError
from singanet.loss import MeanSquaredError
from singanet.optimizer import SGD, L2Regularizer, schedules
from singanet.training import callbacks
from tests.migration.rows import Compared, Guide, compare_losses, compare_rules, ours_of

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
torch = pytest.importorskip("torch")

SETTINGS = re.compile(r"\w+_(initializer|regularizer|constraint)")
GUIDE = Guide("keras.md", keras, elsewhere=lambda name: SETTINGS.fullmatch(name) is not None)
LAYERS = "keras.layers"
FEW, MANY = 2, 40


def row(heading, *theirs, values=None, **more):
    """A case; a weight decay of None is 0 for all rules."""
    none = {"weight_decay": lambda share: share or 0.0} if heading == "keras.optimizers" else {}
    return GUIDE.case(heading, *theirs, values=none | (values or {}), **more)


BOTH = [False, True]
LAST = {"data_format": "channels_last"}


def first(x):
    """Channels last as channels first, of images and volumes alone."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if x.ndim > 3 else x


def as_it_is(x):
    return x


@dataclass
class Model:
    """A Keras layer as a model."""

    layer: Any
    shapes: list
    dtype: str = "float32"
    files: str = ".weights.h5"

    def __post_init__(self):
        inputs = [keras.Input(shape, dtype=self.dtype) for shape in self.shapes]
        self.model = keras.Model(inputs, self.layer(inputs if len(inputs) > 1 else inputs[0]))

    def __call__(self, *xs):
        return self.model(xs if len(xs) > 1 else xs[0], training=True)

    def save(self, path):
        self.model.save_weights(path)

    def load(self, path):
        self.model.load_weights(path)

    def weights(self):
        return {v.path: v.value for v in self.model.weights if "seed" not in v.path}

    def trained(self):
        return {v.path: v.value for v in self.model.trainable_variables}


@pytest.fixture
def same(tmp_path):
    """Compare our layer with theirs on arrays as Keras has them, weights moved from their start."""

    def compare(ours, layer, *xs, turn_in=first, turn_out=first, **how):
        dtype = "int32" if xs[0].dtype.kind == "i" else "float32"
        theirs = Model(layer, [x.shape[1:] for x in xs], dtype)
        rng = np.random.default_rng(0)
        for weight in theirs.weights().values():
            weight.data.add_(torch.tensor(rng.uniform(0.0, 0.3, tuple(weight.shape)).astype("f")))
        Compared(tmp_path, turn_in, turn_out, **how).layers(ours, theirs, *xs)

    return compare


SHAPES = {1: (7, 4), 2: (7, 6, 4), 3: (6, 5, 6, 2)}
"""Sample shapes as Keras has them, by the number of axes behind the channels."""


def axes_of(pair):
    return int(re.search(r"(\d)D", pair.theirs_kind.__name__)[1])


def lying(axes):
    return LAST if axes == 1 else {}


def as_keras(pair, what):
    """`padding` for Keras' "same" where strides are longer than 1, which as many outputs fit."""
    axes = axes_of(pair)
    if pair.of("padding") != "same":
        return {}
    many = lambda value: value if isinstance(value, tuple) else (value,) * axes  # noqa: E731
    strides = many(pair.of(what) if pair.of("strides") is None else pair.of("strides"))
    ends = []
    spread = many(pair.of("dilation_rate") or 1)
    given = zip(SHAPES[axes], many(pair.of(what)), strides, spread, strict=False)
    for size, kernel, stride, gap in given:
        total = max((-(-size // stride) - 1) * stride + gap * (kernel - 1) + 1 - size, 0)
        ends.append((total // 2, total - total // 2))
    return {"padding": ends}


def ends_first(ends):
    return [ends] if isinstance(ends, tuple) and isinstance(ends[0], int) else ends


FUNCTIONS = [None, "linear", "relu", "tanh", "softmax"]
BORDERS = [1, (1, 2), ((1, 0), (2, 1))]
NORMS = {"epsilon": [1e-5, 1e-2]}
RECURRENT = {
    "units": [1, 4], "use_bias": BOTH, "return_sequences": BOTH, "return_state": BOTH,
    "go_backwards": BOTH, "apart": ["dropout", "recurrent_dropout", "stateful"],
}  # fmt: skip
STACK = {"turn_more": lambda state: state[:, None]}
TWO = STACK | {"twice": lambda name: "bias" in name}


def plain(*theirs, shapes=((5,), (3, 5)), both=1, here=None, how=None, **settings):
    """Layers that need nothing but their arguments, compared on inputs of one of the ``shapes``."""

    @row(LAYERS, *theirs, **settings)
    def check(pair, same):
        shape = pair.pick(*shapes) if shapes else SHAPES[axes_of(pair)]
        more = (here or {}) if shapes else lying(axes_of(pair))
        xs = [pair.normal(3, *shape) for _ in range(both)]
        same(pair.ours(**more), pair.theirs(), *xs, **(how or {}))


# fmt: off
plain("ELU", here={"mode": "elu"}, alpha=[0.5, 1.0, 2.0], usual={"alpha": 1.0})
plain("LeakyReLU", here={"mode": "leaky_relu"}, negative_slope=[0.0, 0.1, 0.5], usual={"negative_slope": 0.01})  # noqa: E501
for several in (2, 3):
    plain("Add", "Average", "Maximum", "Minimum", "Multiply", shapes=((5,), (3, 4), (4, 3, 2)), both=several)  # noqa: E501
plain("Subtract", shapes=((4, 5),), both=2)
plain("Dense", units=[2, 4], use_bias=BOTH, activation=FUNCTIONS)
plain("Permute", shapes=((2, 6),), dims=[(2, 1)])
plain("RepeatVector", shapes=((5,),), n=[1, 4])
plain("Identity")
plain("Rescaling", scale=[0.5, 2.0], offset=[-1.0, 0.5])
plain("LayerNormalization", axis=[-1], center=BOTH, scale=BOTH, **NORMS)
plain("RMSNormalization", axis=[-1], **NORMS)
plain("UnitNormalization")
plain("Softmax", shapes=((4, 5),), axis=[-1, 1])
plain("Cropping1D", "ZeroPadding1D", shapes=(), cropping=[1, (1, 2)], padding=[1, (2, 1)], values={"cropping": ends_first, "padding": ends_first})  # noqa: E501
plain("Cropping2D", "ZeroPadding2D", shapes=(), cropping=BORDERS, padding=BORDERS)
plain("Cropping3D", "ZeroPadding3D", shapes=(), cropping=[1, (1, 1, 2)], padding=[1, (1, 2, 1)])
plain("UpSampling2D", shapes=(), size=[2, 3, (1, 2)], interpolation=["nearest", "bilinear"])
plain(*[f"Adaptive{kind}Pooling{n}D" for kind in ("Average", "Max") for n in (1, 2, 3)], shapes=(), output_size=[1, 2, 3])  # noqa: E501
plain("LSTM", shapes=((4, 5),), how=TWO, **RECURRENT)
plain("SimpleRNN", shapes=((4, 5),), how=TWO, activation=["tanh", "relu"], **RECURRENT)
plain("GRU", shapes=((4, 5),), how=STACK, **RECURRENT)
# fmt: on


ACTIVATIONS = ["relu", "sigmoid", "tanh", "elu", "selu", "gelu", "silu", "softplus", "softsign"]
ACTIVATIONS += ["relu6", "hard_sigmoid", "hard_silu", "mish", "celu", "leaky_relu"]


@row(
    LAYERS, "Activation", activation=ACTIVATIONS,
    values={"activation": lambda name: {"hard_silu": "hard_swish"}.get(name, name)},
)  # fmt: skip
def check_activation(pair, same):
    slope = {"alpha": 0.2} if pair.of("activation") == "leaky_relu" else {}
    same(pair.ours(**slope), pair.theirs(), 3 * pair.normal(5, *pair.pick((6,), (3, 4))))


@row(LAYERS, "ReLU", negative_slope=[0.1, 0.2])
def check_relu(pair, same):
    x = 4 * pair.normal(5, 6)
    if not pair.of("negative_slope"):
        same(layers.Activation("a", "relu"), keras.layers.ReLU(), x)
        same(layers.Activation("a", "relu6"), keras.layers.ReLU(6.0), x)
        return
    same(pair.ours(mode="leaky_relu"), pair.theirs(), x)


@row(LAYERS, "PReLU", shared_axes=[[1, 2]], values={"shared_axes": lambda axes: False})
def check_prelu(pair, same):
    theirs = pair.theirs_kind(
        shared_axes=[1, 2], alpha_initializer=keras.initializers.Constant(0.2)
    )
    same(layers.PReLU("p"), theirs, pair.normal(3, 5, 4, 3))
    same(layers.PReLU("p"), pair.theirs_kind(), pair.normal(3, 4))


@row(LAYERS, "Concatenate", axis=[-1, 1], values={"axis": lambda axis: axis})
def check_concatenate(pair, same):
    x, y = pair.normal(3, 4, 5), pair.normal(3, 4, 5)
    same(pair.ours(axis=pair.of("axis")), pair.theirs(), x, y)
    if pair.of("axis") == -1:
        x, y = pair.normal(3, 4, 5, 2), pair.normal(3, 4, 5, 3)
        same(pair.ours(axis=1), pair.theirs(), x, y)


@row(LAYERS, "Dot", apart=["axes"])
def check_dot(pair, same):
    x, y = pair.normal(3, 5), pair.normal(3, 5)
    same(pair.ours(), pair.theirs(axes=-1), x, y)
    norms = layers.L2Norm("a"), layers.L2Norm("b")
    cosine = lambda a, b: layers.Dot("dot")(norms[0](a), norms[1](b))  # noqa: E731
    same(cosine, pair.theirs(axes=-1, normalize=True), x, y)


POOLS = [f"{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2, 3)]


@row(LAYERS, *POOLS, pool_size=[1, 2, 3], strides=[None, 1, 2], padding=["valid", "same"])
def check_pooling(pair, same):
    axes, more = axes_of(pair), as_keras(pair, "pool_size")
    uneven = any(before != after for before, after in more.get("padding", ()))
    if uneven and pair.theirs_kind.__name__.startswith("Average"):
        # Keras' backends do not agree on the mean in an uneven border.
        pair.given["padding"], more = "valid", {"padding": "valid"}
    same(pair.ours(**lying(axes), **more), pair.theirs(), pair.normal(2, *SHAPES[axes]))


GLOBAL = [f"Global{kind}Pooling{n}D" for kind in ("Average", "Max") for n in (1, 2, 3)]


@row(LAYERS, *GLOBAL, keepdims=BOTH)
def check_global_pooling(pair, same):
    axes = axes_of(pair)
    turn = first if pair.of("keepdims") else as_it_is
    same(pair.ours(**lying(axes)), pair.theirs(), pair.normal(2, *SHAPES[axes]), turn_out=turn)


WINDOW = {
    "kernel_size": [1, 2, 3], "strides": [1, 2], "padding": ["valid", "same"],
    "dilation_rate": [1, 2], "use_bias": BOTH, "activation": [None, "relu", "tanh"],
}  # fmt: skip


def check_windows(pair, same):
    if pair.of("dilation_rate") != 1 and pair.of("strides") not in (1, None):
        pair.given.pop("strides", None)
        pair.told.pop("strides", None)
    axes = axes_of(pair)
    more = {} if pair.theirs_kind.__name__.endswith("Transpose") else as_keras(pair, "kernel_size")
    same(pair.ours(**lying(axes), **more), pair.theirs(), pair.normal(2, *SHAPES[axes]))


row(LAYERS, *[f"Conv{n}D" for n in (1, 2, 3)], filters=[2, 4], groups=[1, 2], **WINDOW)(
    check_windows
)
row(
    LAYERS, "SeparableConv1D", "SeparableConv2D", filters=[2, 3], depth_multiplier=[1, 2], **WINDOW
)(check_windows)
row(LAYERS, "DepthwiseConv1D", "DepthwiseConv2D", depth_multiplier=[1, 2], **WINDOW)(check_windows)


@row(LAYERS, "Conv1D", padding=["causal"], filters=[3], kernel_size=[2, 3], dilation_rate=[1, 2])
def check_causal(pair, same):
    pair.given["padding"] = pair.told["padding"] = "causal"
    same(pair.ours(**LAST), pair.theirs(), pair.normal(2, *SHAPES[1]))


row(
    LAYERS, *[f"Conv{n}DTranspose" for n in (1, 2, 3)], filters=[2, 3], output_padding=[None],
    values={"padding": lambda mode: f"keras_{mode}"}, **WINDOW,
)(check_windows)  # fmt: skip


@row(LAYERS, "Embedding", input_dim=[9], output_dim=[1, 4])
def check_embedding(pair, same):
    ids = pair.draw.integers(0, 9, (3, 5)).astype(np.int32)
    same(pair.ours(), pair.theirs(), ids)


@row(LAYERS, "Flatten")
def check_flatten(pair, same):
    same(pair.ours(), pair.theirs(), pair.normal(3, *pair.pick((5,), (3, 4))))
    # Of images the numbers stand in another order, unless channels are brought behind.
    rows = [layers.Permute("last", (2, 3, 1)), layers.Flatten("flat")]
    same(rows, pair.theirs(), pair.normal(2, *SHAPES[2]))


@row(LAYERS, "Reshape", target_shape=[(12,), (3, 4), (2, 2, 3)])
def check_reshape(pair, same):
    same(pair.ours(), pair.theirs(), pair.normal(3, 2, 6), turn_out=as_it_is)


@row(LAYERS, "Bidirectional")
def check_bidirectional(pair, same):
    kind, whole = pair.pick("LSTM", "GRU", "SimpleRNN"), pair.pick(*BOTH)
    inner = getattr(keras.layers, kind)(4, return_sequences=whole)
    ours = getattr(layers, kind)("rnn", 4, return_sequences=whole, bidirectional=True)
    twice = (lambda name: "bias" in name) if kind != "GRU" else (lambda name: False)
    same(ours, keras.layers.Bidirectional(inner), pair.normal(3, 4, 5), twice=twice)


@row(LAYERS, "TimeDistributed", apart=["layer"])
def check_time_distributed(pair, same):
    x, theirs = pair.normal(3, 4, 5), keras.layers.TimeDistributed(keras.layers.Dense(4))
    there = theirs(x).detach().numpy()
    ours = layers.TimeDistributed("all", layers.Dense("each", 4))
    ours.build((4, 5))
    for param, value in zip(ours.params.values(), theirs.get_weights(), strict=True):
        param.value[...] = value
    np.testing.assert_allclose(draws(ours, x), there, 1e-4, 1e-5)


@row(LAYERS, "Masking", mask_value=[0.0, 1.5])
def check_masking(pair, same):
    x = pair.normal(4, 5, 3)
    value = pair.of("mask_value")
    for sample, steps in zip(x, (1, 5, 3, 2), strict=True):
        sample[steps:] = value
    inputs = keras.Input((5, 3))
    theirs = keras.layers.LSTM(2, return_sequences=False)(pair.theirs()(inputs))
    model = keras.Model(inputs, theirs)
    symbol = singanet.Input("x", (5, 3))
    lstm = layers.LSTM("lstm", 2, return_sequences=False)
    net = singanet.FeedForwardNet(inputs=symbol, outputs=lstm(pair.ours()(symbol)))
    for name, value in zip(("weight_x", "weight_h", "bias_x"), model.get_weights(), strict=True):
        lstm.params[f"l0/forward/{name}"].value[...] = value
    lstm.params["l0/forward/bias_h"].value[...] = 0.0
    there = model(x).detach().numpy()
    np.testing.assert_allclose(net.forward(False, x), there, 1e-4, 1e-5)


@row(
    LAYERS, "BatchNormalization", axis=[-1], center=BOTH, scale=BOTH, momentum=[0.9, 0.5],
    apart=["synchronized"], values={"momentum": lambda share: 1 - share, "axis": lambda axis: 1},
    **NORMS,
)  # fmt: skip
def check_batch_normalization(pair, same):
    count = 4
    shape, axis = pair.pick(((3,), 1), ((5, 3), -1), ((4, 5, 3), 1))
    x = pair.normal(count, *shape)
    same(pair.ours(axis=axis), pair.theirs(), x, unlike=("moving_variance",))
    # The variance that is kept is of n - 1 here.
    layer = pair.theirs_kind(momentum=0.0)
    layer(x, training=True)
    ours = layers.BatchNormalization("norm", momentum=1.0, axis=axis)
    draws(ours, first(x))
    n = x.size // x.shape[-1]
    kept = layer.moving_variance.numpy() * n / (n - 1)
    np.testing.assert_allclose(ours.params["var"].value, kept, 1e-4)


@row(LAYERS, "GroupNormalization", groups=[1, 2, 4], center=BOTH, scale=BOTH, **NORMS)
def check_group_norm(pair, same):
    groups = pair.pick(1, 2, 4)
    pair.given.setdefault("groups", groups)
    pair.told.setdefault("groups", groups)
    same(pair.ours(), pair.theirs(), pair.normal(2, 5, 3, 4))
    around = [layers.Permute("first", (2, 1)), pair.ours(), layers.Permute("last", (2, 1))]
    same(around, pair.theirs(), pair.normal(3, 5, 4))


ATTENTION = {"dropout": [0.0], "use_bias": BOTH}


@row(
    LAYERS, "MultiHeadAttention", num_heads=[1, 2], key_dim=[3], value_dim=[2, 3],
    output_shape=[4, 7], **ATTENTION,
)  # fmt: skip
@row(
    LAYERS, "GroupQueryAttention", head_dim=[3], num_query_heads=[4], num_key_value_heads=[1, 2],
    **ATTENTION,
)  # fmt: skip
def check_attention(pair, same):
    theirs = pair.theirs()
    same(pair.ours(), lambda xs: theirs(xs[0], xs[1]), pair.normal(2, 4, 6), pair.normal(2, 5, 6))


def draws(layer, x):
    """What a training forward of ours makes of ``x``."""
    start = singanet.Input("x", x.shape[1:])
    return singanet.FeedForwardNet(inputs=start, outputs=layer(start), seed=0).forward(True, x)


def kinds(y):
    """The values that stand there, rounded, and the shares of each."""
    values, counts = np.unique(np.round(y, 4), return_counts=True)
    return values, counts / y.size


@row(LAYERS, "Dropout", "AlphaDropout", rate=[0.1, 0.3, 0.5])
@row(LAYERS, *[f"SpatialDropout{n}D" for n in (1, 2, 3)], rate=[0.3, 0.5])
def check_dropout(pair, same):
    x, axes = np.ones((40, 500), np.float32), 0
    ours = pair.ours()
    if pair.theirs_kind.__name__.startswith("Spatial"):
        axes = axes_of(pair)
        x, ours = (
            np.ones((50, *SHAPES[axes][:-1], 40), "f4"),
            pair.ours(axis=-1 if axes == 1 else 1),
        )
    made = draws(ours, first(x)), first(pair.theirs()(x, training=True).numpy())
    for y in made if axes else ():  # whole channels
        whole = np.moveaxis(y, -1, 1) if axes == 1 else y
        assert np.ptp(whole.reshape(50, 40, -1), axis=2).max() == 0.0
    (values, shares), (wanted, there) = map(kinds, made)
    np.testing.assert_allclose(values, wanted, 1e-3)
    np.testing.assert_allclose(shares, there, atol=0.08 if axes else 0.03)


@row(LAYERS, "GaussianNoise", stddev=[0.1, 1.0])
def check_gaussian_noise(pair, same):
    x = np.zeros((40, 500), np.float32)
    ours, theirs = draws(pair.ours(), x), pair.theirs()(x, training=True).numpy()
    np.testing.assert_allclose([ours.std(), ours.mean()], [theirs.std(), 0.0], atol=0.05)


@row(LAYERS, "ActivityRegularization")
def check_activity_regularization(pair, same):
    """The term as the guide has it drawn; Keras takes the mean over samples."""
    x, y, kl = pair.normal(4, 3), pair.normal(4, 2), keras.layers
    theirs = keras.Sequential([keras.Input((3,)), kl.Dense(2), pair.theirs_kind(l1=0.1, l2=0.2)])
    theirs.compile(keras.optimizers.SGD(0.1), "mse")
    start, target = singanet.Input("x", (3,)), singanet.Input("y", (2,))
    out = layers.Dense("dense", 2)(start)
    size = layers.Reduce("l1", "sum", -1)(layers.Operation("abs", "abs")(out))
    term = size * 0.1 + layers.Reduce("l2", "sum", -1)(out**2) * 0.2
    loss = MeanSquaredError()(out, target)
    executor = singanet.Executor({"step": [loss, SGD(0.1).minimize(loss + term)]}, seed=0)
    params = {p.name: p for p in executor.net.params()}
    for name, value in zip(("weight", "bias"), theirs.get_weights(), strict=True):
        params[f"dense/{name}"].value[...] = value
    for _ in range(3):
        theirs.train_on_batch(x, y)
        executor.run("step", {start: x, target: y})
    np.testing.assert_allclose(params["dense/weight"].value, theirs.get_weights()[0], 1e-4, 1e-5)


@row(LAYERS, "InputLayer", apart=["dtype", "sparse", "name", "shape"])
def check_input(pair, same):
    symbol = singanet.Input("ids", shape=(3,), dtype="int32")
    there = keras.Input(shape=(3,), dtype="int32", name="ids")
    assert symbol.shape == there.shape[1:]
    assert symbol.call.layer.name == there.name
    assert symbol.kind == "integers"


BASES = [
    (LAYERS, "Layer"), ("keras.losses", "Loss"), ("keras.metrics", "Metric"),
    ("keras.optimizers", "Optimizer"), ("keras.optimizers.schedules", "LearningRateSchedule"),
    ("keras.initializers", "Initializer"), ("keras.regularizers", "Regularizer"),
    ("keras.constraints", "Constraint"), ("keras.callbacks", "Callback"),
]  # fmt: skip


def check_base(pair, same):
    """All of the room are below it."""
    kinds = {pair.ours_kind} | set(pair.ours_kind.__subclasses__())
    assert len(kinds) > 1


for place, base in BASES:
    apart = ["reduction", "weight_decay", "learning_rate", "name"]
    row(place, base, apart=apart, values={"reduction": lambda way: "mean"})(check_base)


LOSSES = "keras.losses"
REDUCED = {"reduction": lambda way: "sum" if way == "sum" else "mean", "alpha": lambda share: share}
WAYS = {"reduction": ["sum_over_batch_size", "sum"]}


def compared(pair, x, y, own_y=None, turn=as_it_is, more=None, each=False, **theirs):
    """The loss of outputs ``x`` here and of ``turn(x)`` there."""
    loss = pair.theirs(**theirs)
    # Ours sums over elements, where theirs has the mean of each sample.
    total = (x.shape[1] if each else 1.0) if pair.of("reduction") == "sum" else 0.0
    compare_losses(pair.ours(**(more or {})), lambda a, b: loss(b, turn(a)), x, y, own_y, total)


def one_hot(pair, *shape):
    labels = pair.draw.integers(0, shape[-1], shape[:-1])
    return labels, np.eye(shape[-1], dtype=np.float32)[labels]


def loss_of(*theirs, x, y, ours=None, values=None, settings=None, **how):
    """A case of losses: ``x`` draws outputs, and ``y`` targets for them."""

    @row(LOSSES, *theirs, ours=ours, values=REDUCED | (values or {}), **WAYS, **settings or {})
    def check(pair, same):
        outputs = x(pair).astype(np.float32)
        compared(pair, outputs, y(pair, outputs), **how)


def normal(*shapes, times=1):
    return lambda pair: times * pair.normal(*pair.pick(*shapes))


def like(pair, x):
    return pair.normal(*x.shape)


def zeros_and_ones(pair, x):
    return pair.draw.integers(0, 2, x.shape).astype(np.float32)


def hot(pair, x):
    return one_hot(pair, *x.shape)[1]


SMOOTH, FOCAL = {"label_smoothing": [0.0, 0.1]}, {"alpha": [0.25, 0.6], "gamma": [1.0, 2.0]}
SIGNS = {"x": normal((6, 1)), "y": lambda pair, x: pair.draw.choice([-1.0, 1.0], x.shape)}
IMAGES = {"x": normal((2, 1, 4, 5)), "y": zeros_and_ones}
# fmt: off
loss_of("BinaryCrossentropy", x=normal((6, 1), (6, 3)), y=zeros_and_ones, settings=SMOOTH, each=True, from_logits=True)  # noqa: E501
loss_of("BinaryCrossentropy", ours="BinaryCrossEntropy", x=lambda pair: pair.draw.uniform(0.1, 0.9, (6, 3)), y=zeros_and_ones, settings=SMOOTH, each=True)  # noqa: E501
loss_of("CategoricalCrossentropy", x=normal((6, 3), (6, 4, 3)), y=hot, settings=SMOOTH, from_logits=True)  # noqa: E501
loss_of("SparseCategoricalCrossentropy", x=normal((8, 4)), y=lambda pair, x: pair.draw.integers(0, 4, 8), settings={"ignore_class": [0, 2]}, from_logits=True)  # noqa: E501
loss_of("CategoricalFocalCrossentropy", x=normal((6, 3)), y=hot, settings={**SMOOTH, **FOCAL}, values={"alpha": lambda share: [share] * 3}, from_logits=True)  # noqa: E501
loss_of("CosineSimilarity", x=normal((6, 3)), y=like)
loss_of("MeanAbsoluteError", "MeanSquaredError", x=normal((6, 3)), y=like, each=True)
loss_of("Huber", x=normal((6, 3), times=2), y=like, settings={"delta": [0.5, 1.0, 2.0]}, each=True)
loss_of("Hinge", **SIGNS)
loss_of("SquaredHinge", **SIGNS, more={"squared": True})
loss_of("KLDivergence", x=normal((6, 4)), y=lambda pair, x: pair.draw.dirichlet(np.ones(4), 6).astype("f4"), turn=lambda x: torch.softmax(x, -1))  # noqa: E501
loss_of("Poisson", x=normal((6, 3)), y=lambda pair, x: pair.draw.integers(0, 4, x.shape).astype("f4"), turn=torch.exp, each=True)  # noqa: E501
loss_of("Dice", **IMAGES, turn=torch.sigmoid, more={"smooth": 1e-7}, axis=(1, 2, 3))


SIDES = {"alpha": [0.3, 0.5], "beta": [0.7, 1.5]}


@row(LOSSES, "Tversky", values={"reduction": REDUCED["reduction"]}, **WAYS, **SIDES)
def check_tversky(pair, same):
    x = pair.normal(2, 1, 4, 5).astype(np.float32)
    compared(pair, x, zeros_and_ones(pair, x), turn=torch.sigmoid, more={"smooth": 1e-7}, axis=(1, 2, 3))  # noqa: E501


# fmt: on


@row(LOSSES, "CTC", values=REDUCED, **WAYS)
def check_ctc(pair, same):
    x, y = pair.normal(3, 8, 5), pair.draw.integers(1, 5, (3, 3))
    y[0, 2:] = y[1, 1:] = 0
    compared(pair, x, y, np.where(y == 0, -1, y), more={"per_label": False})


@row(LOSSES, "BinaryFocalCrossentropy", alpha=[0.25, 0.6], gamma=[1.0, 2.0], values=REDUCED, **WAYS)
def check_binary_focal(pair, same):
    x, y = pair.normal(6, 3), pair.draw.integers(0, 2, (6, 3)).astype(np.float32)
    compared(pair, x, y, each=True, from_logits=True, apply_class_balancing=True)
    pair.told["alpha"] = None
    compared(pair, x, y, each=True, from_logits=True)


@row(
    LOSSES, "CategoricalCrossentropy", ours="CategoricalCrossEntropy", label_smoothing=[0.0, 0.1],
    values=REDUCED, **WAYS,
)  # fmt: skip
def check_categorical_of_probabilities(pair, same):
    """Behind a softmax layer: Keras divides by the sum once more, which changes nothing there."""
    x, y = pair.normal(6, 3), one_hot(pair, 6, 3)[1]
    tensor = torch.tensor(x, requires_grad=True)
    there = pair.theirs()(y, torch.softmax(tensor, -1))
    there.backward()
    loss, shares = pair.ours(), torch.softmax(tensor, -1).detach().numpy()
    losses = loss.forward(True, shares, y)
    dy = loss.backward()
    here = losses.sum() if pair.of("reduction") == "sum" else losses.mean()
    np.testing.assert_allclose(here, there.item(), 1e-4)
    dx = shares * (dy - (dy * shares).sum(1, keepdims=True))
    np.testing.assert_allclose(dx, tensor.grad.numpy(), 1e-3, 1e-6)


METRICS = "keras.metrics"


def binary(pair, *shape):
    x = pair.draw.uniform(size=(20, *shape)).astype(np.float32)
    return x, pair.draw.integers(0, 2, x.shape).astype(np.float32)


def classes(pair, hot):
    x = pair.draw.dirichlet(np.ones(4), 30).astype(np.float32)
    labels, rows = one_hot(pair, 30, 4)
    return x, (rows if hot else labels)


def measured(pair, batches, more=None, atol=1e-5, turn=as_it_is, **theirs):
    """Both metrics of outputs and targets, batch by batch; theirs of ``turn(x)``."""
    mine, there = pair.ours(**(more or {})), pair.theirs(**theirs)
    for x, y in batches:
        mine.update(x, y)
        there.update_state(y, turn(x))
    found = np.asarray(there.result())
    np.testing.assert_allclose(np.asarray(mine.result()), found, 1e-5, atol)


def metric_of(*theirs, batch, told=None, values=None, settings=None, **how):
    """A case of metrics: two batches of outputs and targets, which ``batch`` draws."""

    @row(METRICS, *theirs, values=values, **settings or {})
    def check(pair, same):
        for name, value in (told or {}).items():
            pair.told.setdefault(name, value)
        measured(pair, [batch(pair) for _ in range(2)], **how)


CURVES = {"curve": ["ROC", "PR"], "multi_label": BOTH}
READ = {"curve": str.lower, "multi_label": lambda several: "macro" if several else None}
CUT, MIDDLE = {"threshold": [0.3, 0.5]}, {"threshold": 0.5}
AVERAGED = {"average": [None, "micro", "macro", "weighted"], **CUT}
# fmt: off
metric_of("AUC", batch=lambda pair: binary(pair, 3 if pair.of("multi_label") else 1), values=READ, settings=CURVES, atol=0.04)  # noqa: E501
metric_of("Accuracy", batch=lambda pair: classes(pair, False), turn=lambda x: x.argmax(1))
metric_of("CategoricalAccuracy", batch=lambda pair: classes(pair, True))
metric_of("SparseCategoricalAccuracy", batch=lambda pair: classes(pair, False))
for wide in (1, 3):
    metric_of("BinaryAccuracy", batch=lambda pair, n=wide: binary(pair, n), settings=CUT)
    metric_of("R2Score", batch=lambda pair, n=wide: (pair.normal(6, n), pair.normal(6, n)))
metric_of("F1Score", batch=lambda pair: classes(pair, True), settings=AVERAGED)
metric_of("FBetaScore", batch=lambda pair: classes(pair, True), settings={**AVERAGED, "beta": [0.5, 2.0]})  # noqa: E501
metric_of("MeanAbsoluteError", "RootMeanSquaredError", batch=lambda pair: (pair.normal(5, 3), pair.normal(5, 3)))  # noqa: E501
for wide, more in ((1, {}), (3, {"average": "micro"})):
    metric_of("Precision", "Recall", batch=lambda pair, n=wide: binary(pair, n), more=more, told=MIDDLE, settings={"thresholds": [0.3, 0.5]})  # noqa: E501
# fmt: on


@row(METRICS, "SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy", k=[1, 2])
def check_top_k(pair, same):
    if "k" not in pair.given:
        pair.given["k"] = pair.told["k"] = 3
    hot = not pair.theirs_kind.__name__.startswith("Sparse")
    measured(pair, [classes(pair, hot) for _ in range(2)])


@row(METRICS, "IoU", "MeanIoU")
def check_iou(pair, same):
    x, y = classes(pair, False)
    y[:4] = range(4)
    more = {"num_classes": 4, "sparse_y_pred": False}
    if pair.theirs_kind.__name__ == "MeanIoU":
        measured(pair, [(x, y)], **more)
        return
    mine, there = pair.ours(average=None), pair.theirs(target_class_ids=[1], **more)
    mine.update(x, y)
    there.update_state(y, x)
    np.testing.assert_allclose(mine.result()[1], np.asarray(there.result()), 1e-5)


@row(METRICS, "Mean", "MeanMetricWrapper")
def check_mean_metric(pair, same):
    class Gap(pair.ours_kind):
        def values(self, ops, x, y):
            return abs(x - y).mean(-1)

    there = keras.metrics.MeanMetricWrapper(lambda y, x: keras.ops.mean(abs(x - y), -1))
    pair.ours_kind, pair.theirs_kind, pair.told = Gap, lambda: there, {}
    measured(pair, [(pair.normal(5, 3), pair.normal(5, 3)) for _ in range(2)])


RULES = "keras.optimizers"
SHARED = {"learning_rate": [0.01, 0.1], "weight_decay": [0.01, 0.1], "epsilon": [1e-7, 1e-3]}


def stepped(pair, atol=2e-5, **more):
    """Our rule beside theirs, on the same gradients."""

    def theirs(tensors):
        variables = [keras.Variable(t.detach().numpy()) for t in tensors]
        rule = pair.theirs()
        rule.build(variables)

        def step():
            rule.apply([t.grad for t in tensors], variables)
            for tensor, variable in zip(tensors, variables, strict=True):
                tensor.data.copy_(variable.value)

        return step

    seed = int(pair.draw.integers(99))
    compare_rules(pair.ours(decoupled=True, **more), theirs, seed=seed, atol=atol)


def check_rule(pair, same):
    stepped(pair)


@row(RULES, "SGD", nesterov=BOTH, momentum=[0.9], **SHARED)
def check_nesterov(pair, same):
    pair.given["momentum"] = pair.told["momentum"] = 0.9
    stepped(pair)


def check_rule_with_own_epsilon(pair, same):
    stepped(pair, epsilon_after_correction=True)


BETAS = {"beta_1": [0.8, 0.9], "beta_2": [0.9, 0.99]}
row(RULES, "SGD", momentum=[0.5, 0.9], **SHARED)(check_rule)
row(RULES, "Adadelta", rho=[0.5, 0.9], **SHARED)(check_rule)
row(RULES, "Adam", amsgrad=BOTH, **BETAS, **SHARED)(check_rule)
row(RULES, "AdamW", amsgrad=BOTH, **BETAS, **SHARED)(check_rule)
row(RULES, "Adamax", **BETAS, **SHARED)(check_rule)
row(RULES, "Lion", **BETAS, **SHARED)(check_rule)
row(RULES, "RMSprop", rho=[0.5, 0.9], momentum=[0.0, 0.5], centered=BOTH, **SHARED)(check_rule)
row(RULES, "Lamb", **BETAS, **SHARED)(check_rule_with_own_epsilon)


@row(
    RULES, "Adafactor", epsilon_1=[1e-30], epsilon_2=[1e-3], beta_2_decay=[-0.8],
    clip_threshold=[1.0, 2.0], **SHARED,
)  # fmt: skip
def check_adafactor(pair, same):
    """Its rate follows the weights, which Keras lets decay before, and the rule here behind."""
    stepped(pair, atol=1e-2 if pair.of("weight_decay") else 2e-5)


@row(RULES, "Nadam", **BETAS, **SHARED)
def check_nadam(pair, same):
    stepped(pair, momentum_decay=1, epsilon_after_correction=True)


@row(RULES, "Adagrad", **SHARED)
def check_adagrad(pair, same):
    pair.given["initial_accumulator_value"] = 0.0
    stepped(pair)


@row(RULES, "LossScaleOptimizer", initial_scale=[1024.0], dynamic_growth_steps=[100])
def check_loss_scale(pair, same):
    ours = pair.ours()
    there = pair.theirs(inner_optimizer=keras.optimizers.SGD(0.1))
    assert ours.scale == there.initial_scale
    assert ours.growth_interval == there.dynamic_growth_steps


SCHEDULES = "keras.optimizers.schedules"
START = {"initial_learning_rate": [0.1, 1.0], "decay_steps": [5, 8]}


def as_share(pair, name, start):
    """`final` is the rate itself."""
    if name in pair.told:
        pair.told[name] = pair.told[name] * start


def rates(pair, ours, theirs):
    for step in range(20):
        np.testing.assert_allclose(ours(step), float(theirs(step)), 1e-5, 1e-7, err_msg=step)


@row(SCHEDULES, "CosineDecay", alpha=[0.1, 0.5], apart=["warmup_steps"], **START)
def check_cosine(pair, same):
    as_share(pair, "end_learning_rate", pair.of("initial_learning_rate"))
    rates(pair, pair.ours(), pair.theirs())
    # `WarmUp` rises in a part more, and is one step ahead.
    there = pair.theirs_kind(0.0, 6, warmup_target=0.4, warmup_steps=3)
    ours = schedules.WarmUp(schedules.Cosine(0.4, 6), 3)
    found = [ours(step) for step in range(3)]
    np.testing.assert_allclose(found, [0.1, 0.2, 0.3], 1e-6)
    np.testing.assert_allclose([float(there(s)) for s in range(3)], [0.0, 0.4 / 3, 0.8 / 3], 1e-6)
    rates(pair, lambda step: ours(step + 3), lambda step: there(step + 3))


@row(
    SCHEDULES, "CosineDecayRestarts", initial_learning_rate=[0.1, 1.0], first_decay_steps=[3, 4],
    t_mul=[1.0, 2.0], m_mul=[1.0, 0.5], alpha=[0.1, 0.5],
)  # fmt: skip
def check_restarts(pair, same):
    as_share(pair, "end_learning_rate", pair.of("initial_learning_rate"))
    pair.told["t_mul"] = pair.told.get("t_mul", 2.0)
    rates(pair, pair.ours(), pair.theirs())


@row(SCHEDULES, "ExponentialDecay", decay_rate=[0.5, 0.9], staircase=BOTH, **START)
@row(SCHEDULES, "PolynomialDecay", end_learning_rate=[0.01], power=[1.0, 2.0], **START)
def check_decay(pair, same):
    rates(pair, pair.ours(), pair.theirs())


@row(SCHEDULES, "PiecewiseConstantDecay", apart=["boundaries", "values"])
def check_piecewise(pair, same):
    there = pair.theirs_kind([3, 8], [0.3, 0.2, 0.1])
    rates(pair, schedules.Chained([0.3, 0.2, 0.1], [4, 9]), there)


STARTS = "keras.initializers"


def drawn(initializer, kernel):
    """What ours makes of a weight of Keras' shape ``kernel``."""
    if len(kernel) == 2:
        layer = layers.Dense("d", kernel[1], W_specs={"init": initializer})
        shape = kernel[:1]
    else:
        layer = layers.Conv2D("c", kernel[3], kernel[0], W_specs={"init": initializer})
        shape = (kernel[2], 8, 8)
    start = singanet.Input("x", shape)
    net = singanet.FeedForwardNet(inputs=start, outputs=layer(start), seed=3)
    return net.params()[0].value


def check_start(pair, same):
    kernel = pair.pick((120, 80), (3, 3, 30, 40))
    ours = drawn(pair.ours(), kernel)
    theirs = np.asarray(pair.theirs(**SEED.get(pair.theirs_kind.__name__, {"seed": 0}))(kernel))
    tails = (0.0, 0.02, 0.3, 0.7, 0.98, 1.0)
    here, there = ([each.std(), *np.quantile(each, tails)] for each in (ours, theirs))
    near = [0.05, *[1.5 if part in (0.0, 1.0) else 0.06 for part in tails]]
    assert (abs(np.subtract(here, there)) <= np.array(near) * (theirs.std() + 1e-9)).all()


SEED = {name: {} for name in ("Constant", "Zeros", "Ones", "Identity")}
FANS = [f"{who}{how}" for who in ("Glorot", "He", "Lecun") for how in ("Normal", "Uniform")]
row(STARTS, *FANS)(check_start)
row(STARTS, "Constant", value=[0.0, 0.5])(check_start)
row(STARTS, "RandomNormal", mean=[0.1], stddev=[0.2])(check_start)
row(STARTS, "TruncatedNormal", mean=[0.1], stddev=[0.2])(check_start)
row(STARTS, "RandomUniform", minval=[-0.2], maxval=[0.1])(check_start)
row(
    STARTS, "VarianceScaling", scale=[0.5, 2.0], mode=["fan_in", "fan_out", "fan_avg"],
    distribution=["truncated_normal", "uniform", "untruncated_normal"],
    values={"distribution": lambda kind: "normal" if kind == "untruncated_normal" else kind},
)(check_start)  # fmt: skip


@row(STARTS, "Zeros", "Ones", apart=["value"])
def check_constant(pair, same):
    value = float(pair.theirs_kind.__name__ == "Ones")
    assert (drawn(pair.ours(value=value), (4, 3)) == np.asarray(pair.theirs()((4, 3)))).all()


@row(STARTS, "Identity", "Orthogonal", gain=[1.0, 2.0])
def check_matrices(pair, same):
    ours = drawn(pair.ours(), (6, 6))
    theirs = np.asarray(pair.theirs()((6, 6)))
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, 1e-4, 1e-5)


@row("keras.regularizers", "L1", "L2", l1=[0.1, 0.3], l2=[0.1, 0.3], values={
    "l2": lambda share: 2 * share,
})  # fmt: skip
def check_regularizer(pair, same):
    value = pair.normal(4, 3)
    tensor = torch.tensor(value, requires_grad=True)
    pair.theirs()(tensor).backward()
    grad = pair.ours().apply(0, value, np.zeros_like(value))
    np.testing.assert_allclose(grad, tensor.grad.numpy(), 1e-5)


@row("keras.constraints", "MaxNorm", max_value=[0.5, 1.0], axis=[0, 1])
def check_max_norm(pair, same):
    value = 3 * pair.normal(4, 3)
    there = np.asarray(pair.theirs()(torch.tensor(value)))
    pair.ours().project(value)
    np.testing.assert_allclose(value, there, 1e-4)


CALLBACKS = "keras.callbacks"
OF_FITS = ["monitor", "mode"]


def two_nets(rate, **more):
    """A model of one Dense, compiled, and a net with its weights."""
    there = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    there.compile(keras.optimizers.SGD(rate, **more), "mse")
    net = singanet.FeedForwardNet([layers.Dense("dense", 1, input_shape=(3,))])
    for param, value in zip(net.params(), there.get_weights(), strict=True):
        param.value[...] = value
    net.compile(SGD(rate), MeanSquaredError())
    return there, net


def drawn_rows(count, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 3)).astype("f4"), rng.normal(size=(count, 1)).astype("f4")


def fits(ours, theirs, epochs=8):
    """Compare fits of the same net on the same data, whose validation is noisy."""
    (x, _), other = drawn_rows(32, 1), drawn_rows(16, 2)
    y = x @ np.array([[0.5], [-1.0], [0.7]], "f4")
    there, net = two_nets(0.1)
    fit = {"batch_size": 8, "epochs": epochs, "shuffle": False, "validation_data": other}
    wanted = there.fit(x, y, **fit, callbacks=[theirs], verbose=0).history
    found = net.fit(x, y, **fit, callbacks=[ours], verbose=False)
    for key in ("loss", "val_loss"):
        np.testing.assert_allclose(found[key], wanted[key], 1e-3, 1e-5, err_msg=key)
    for param, value in zip(net.params(), there.get_weights(), strict=True):
        np.testing.assert_allclose(param.value, value, 1e-3, 1e-5)


@row(
    CALLBACKS, "EarlyStopping", patience=[1, 3], min_delta=[0.05], restore_best_weights=BOTH,
    apart=OF_FITS,
)  # fmt: skip
def check_early_stopping(pair, same):
    fits(pair.ours(), pair.theirs())


@row(CALLBACKS, "LearningRateScheduler", apart=["schedule"])
def check_scheduler(pair, same):
    for schedule in (lambda epoch: 0.1 / (1 + epoch), lambda epoch, rate: rate * 0.9):
        fits(pair.ours(schedule=schedule), pair.theirs(schedule=schedule))


@row(
    CALLBACKS, "ReduceLROnPlateau", factor=[0.2, 0.5], patience=[1, 2], min_delta=[0.05, 0.0],
    cooldown=[0, 1], min_lr=[0.01], apart=OF_FITS,
)  # fmt: skip
def check_plateau(pair, same):
    pair.given.setdefault("patience", 2)
    pair.told.setdefault("patience", 2)
    fits(pair.ours(absolute=True), pair.theirs())


@row(CALLBACKS, "SwapEMAWeights")
def check_average(pair, same):
    """A net's average beside Keras' own, from the same start and the same share."""
    x, y = drawn_rows(16, 0)
    there, net = two_nets(0.1, use_ema=True, ema_momentum=0.5)
    ema, seen = callbacks.EMA(0.5), [[p.value.copy() for p in net.params()]]

    class Look(callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            seen.append([p.value.copy() for p in net.params()])

    fit = {"batch_size": 16, "epochs": 4, "shuffle": False}
    there.fit(x, y, **fit, verbose=0)
    net.fit(x, y, **fit, callbacks=[ema, Look()], verbose=False)
    averages = [np.asarray(v) for v in there.optimizer._model_variables_moving_average]
    for param, value, before, behind in zip(net.params(), averages, *seen[:2], strict=True):
        # Keras' begins as the weights behind the first step.
        np.testing.assert_allclose(param.value, value + 0.5**4 * (before - behind), 1e-4, 1e-6)


@row(CALLBACKS, "TerminateOnNaN", raise_error=BOTH)
def check_nan(pair, same):
    """The epochs of a fit whose loss is no number."""
    x, y = np.full((8, 3), np.nan, np.float32), np.zeros((8, 1), np.float32)
    for net, callback in zip(two_nets(0.1), (pair.theirs(), pair.ours()), strict=True):
        fit = {"epochs": 3, "callbacks": [callback], "verbose": 0}
        if pair.of("raise_error"):
            with pytest.raises((DataError, RuntimeError)):
                net.fit(x, y, **fit)
        else:
            found = net.fit(x, y, **fit)
            assert max(1, len(getattr(found, "epochs", getattr(found, "epoch", ())))) == 1


@row(CALLBACKS, "CSVLogger", apart=["filename"])
def check_csv(pair, same, folder):
    ours, theirs = (folder / f"{who}.csv" for who in ("ours", "theirs"))
    fits(pair.ours(path=str(ours)), pair.theirs(filename=str(theirs)))
    rows = (csv.DictReader(path.read_text().splitlines()) for path in (ours, theirs))
    for here, there in zip(*rows, strict=True):
        assert here["epoch"] == there["epoch"]
        for key in ("loss", "val_loss"):
            np.testing.assert_allclose(float(here[key]), float(there[key]), 1e-3)


FILES = ["filepath", "save_freq", "backup_dir", "log_dir", "update_freq", *OF_FITS]


@row(CALLBACKS, "ModelCheckpoint", apart=FILES, values={"save_freq": lambda freq: 1})
@row(
    CALLBACKS, "BackupAndRestore", "TensorBoard", apart=FILES,
    values={"save_freq": lambda freq: None, "update_freq": lambda freq: None},
)  # fmt: skip
def check_files(pair, same, folder):
    """They write to the folder, and change nothing of a fit."""
    kind = pair.theirs_kind.__name__
    where = folder / ("best.keras" if kind == "ModelCheckpoint" else kind)
    if kind == "TensorBoard":
        pytest.importorskip("tensorboardX")
        theirs = keras.callbacks.Callback()
    else:
        theirs = pair.theirs_kind(str(where))
    fits(pair.ours(folder=str(folder / "ours")), theirs, epochs=2)
    assert list((folder / "ours").iterdir())


CELL, WINDOW_OF_3 = ({"units": 40}, (5, 30)), {"kernel_size": 3}
MANY_WEIGHTS = [
    ("Dense", {"units": 90}, (70,)), ("Conv1D", {"filters": 40, **WINDOW_OF_3}, (9, 30)),
    ("Conv2D", {"filters": 40, **WINDOW_OF_3}, (9, 9, 30)),
    ("Conv2D", {"filters": 40, **WINDOW_OF_3, "groups": 2}, (9, 9, 30)),
    ("Conv3D", {"filters": 20, **WINDOW_OF_3}, (5, 5, 5, 10)),
    ("Conv1DTranspose", {"filters": 50, **WINDOW_OF_3}, (9, 20)),
    ("Conv2DTranspose", {"filters": 50, **WINDOW_OF_3}, (9, 9, 20)),
    ("Conv3DTranspose", {"filters": 30, **WINDOW_OF_3}, (5, 5, 5, 10)),
    ("DepthwiseConv1D", {"kernel_size": 5}, (9, 200)),
    ("DepthwiseConv2D", WINDOW_OF_3, (9, 9, 200)),
    ("SeparableConv1D", {"filters": 50, "kernel_size": 5}, (9, 200)),
    ("SeparableConv2D", {"filters": 50, **WINDOW_OF_3}, (9, 9, 200)),
    ("Embedding", {"input_dim": 300, "output_dim": 20}, (4,)),
    ("LSTM", *CELL), ("GRU", *CELL), ("SimpleRNN", *CELL),
    ("MultiHeadAttention", {"num_heads": 4, "key_dim": 20}, (5, 30)),
    ("BatchNormalization", {}, (30,)), ("LayerNormalization", {}, (30,)),
    ("GroupNormalization", {}, (9, 9, 64)), ("RMSNormalization", {}, (30,)), ("PReLU", {}, (30,)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "shape"), MANY_WEIGHTS)
def test_weights_start_as_theirs_do_or_the_row_says_how(name, given, shape, tmp_path):
    """Read off a file of Keras, theirs and ours have the same mean and spread."""
    keras.utils.set_random_seed(0)
    net, theirs = beside(name, given, shape, {})
    there, wrong = of_file(theirs), []
    net.save(str(tmp_path / "it.weights.h5"))
    theirs.load(tmp_path / "it.weights.h5")
    for key, value in of_file(theirs).items():
        apart = abs(value.mean() - there[key].mean()), abs(value.std() - there[key].std())
        if max(apart) > 0.12 * there[key].std() + 1e-6:
            wrong.append(f"{key}: {apart} from {there[key].mean()} ± {there[key].std()} there")
    assert bool(wrong) <= ("start" in GUIDE.row(LAYERS, name).line), wrong


WHOLE = {"dtype": "int64"}


SETTABLE = [each for each in MANY_WEIGHTS if each[0] not in ("RMSNormalization", "PReLU")]


def settable(name):
    """The words for settings of weights that both take, and the rows that say so."""
    here, _ = GUIDE._here(LAYERS, name)
    words = [word for word, own in here.items() if SETTINGS.fullmatch(word) and word == own]
    # Recurrent layers have two biases here, of which one takes them, as their rows say.
    return [word for word in words if "recurrent_initializer" not in here or word[:4] != "bias"]


def beside(name, given, shape, words):
    """A net of ours and a model of theirs, of one layer; ``words`` are theirs and ours."""
    theirs, ours = ({word: value[k] for word, value in words.items()} for k in (0, 1))
    layer = getattr(keras.layers, name)(**given, **theirs)
    call = (lambda x: layer(x, x)) if name == "MultiHeadAttention" else layer
    whole = name == "Embedding"
    model = Model(call, [shape], "int32" if whole else "float32")
    start = singanet.Input("x", first(np.zeros((1, *shape))).shape[1:], **WHOLE if whole else {})
    kind = ours_of(GUIDE._beside(LAYERS, name))
    more = LAST if "1D" in name else {"sparse": False} if whole else {}
    made = kind("it", **given, **ours, **more)
    return singanet.FeedForwardNet(inputs=start, outputs=made(start), seed=0), model


def of_file(model):
    return {key: weight.detach().numpy().copy() for key, weight in model.weights().items()}


@pytest.mark.parametrize(("name", "given", "shape"), SETTABLE)
def test_initializers_by_word_make_the_same_weights(name, given, shape, tmp_path):
    value = keras.initializers.Constant(0.3), initializer.Constant(0.3)
    words = {word: value for word in settable(name) if word.endswith("initializer")}
    net, model = beside(name, given, shape, words)
    there = of_file(model)
    net.save(str(tmp_path / "it.weights.h5"))
    model.load(tmp_path / "it.weights.h5")
    for key, weight in of_file(model).items():
        np.testing.assert_allclose(weight, there[key], 1e-6, err_msg=key)


@pytest.mark.parametrize(("name", "given", "shape"), SETTABLE)
def test_regularizers_by_word_move_the_same_weights(name, given, shape, tmp_path):
    """By a step whose gradients are the penalties' alone."""
    value = keras.regularizers.L2(0.1), L2Regularizer(0.2)
    words = {word: value for word in settable(name) if word.endswith("regularizer")}
    net, model = beside(name, given, shape, words)
    path = tmp_path / "it.weights.h5"
    for param in net.params():
        param.value[...] = 1.0
    net.save(str(path))
    model.load(path)
    penalty = sum(model.model.losses, torch.zeros(()))
    if words:
        penalty.backward()
    there = {}
    for key, weight in model.weights().items():
        grad = 0.0 if weight.grad is None else weight.grad
        there[key] = (weight - 0.5 * grad).detach().numpy()
    x = np.zeros((2, *shape), np.int64 if name == "Embedding" else np.float32)
    y = net.forward(True, first(x))
    sgd = SGD(0.5)
    sgd.register_all(net.param_specs())
    for names, values, grads in net.backward(np.zeros_like(y)):
        sgd.update(names, values, grads)
    net.save(str(path))
    model.load(path)
    for key, weight in model.trained().items():
        np.testing.assert_allclose(weight.detach().numpy(), there[key], 1e-5, err_msg=key)


@pytest.mark.few(60)
@pytest.mark.parametrize(("heading", "theirs", "number"), GUIDE.all_cases())
def test_row(heading, theirs, number, same, tmp_path):
    run(heading, theirs, number, range(FEW), same, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "theirs", "number"), GUIDE.all_cases())
def test_row_often(heading, theirs, number, same, tmp_path):
    run(heading, theirs, number, range(FEW, MANY), same, tmp_path)


def run(heading, theirs, number, seeds, same, folder):
    keras.utils.set_random_seed(0)
    singanet.set_seed(0)
    check = GUIDE.cases[heading, theirs][number].check
    tools = (same, folder) if "folder" in inspect.signature(check).parameters else (same,)
    GUIDE.run(heading, theirs, number, seeds, *tools)


@pytest.mark.parametrize("heading", GUIDE.rows)
def test_each_row_has_a_case_and_each_argument_its_place(heading):
    assert GUIDE.wrong_cases(heading) == []
    assert GUIDE.wrong_rows(heading) == [], "write the rows of docs/migration/keras.md by hand"
    assert [*GUIDE.rows] == [place for place, _ in BASES]


def test_the_guide_lists_the_defaults_that_differ():
    assert GUIDE.told_defaults == GUIDE.differing_lines()
